// Atomic access to words of plain memory, with the order spelled out, and prefetch.
//
// Cython can say std::atomic<T>, but not "treat this word of a mapped block as atomic" (std::atomic_ref is C++20),
// and the rows of a replay buffer are exactly such words. On x86-64 every function here is one plain move.
#pragma once
#include <cstdint>
#include <cstring>

namespace kary {

template <class T>
inline T load_relaxed(const T* p) {
    T value;
    __atomic_load(p, &value, __ATOMIC_RELAXED);
    return value;
}

template <class T>
inline T load_acquire(const T* p) {
    T value;
    __atomic_load(p, &value, __ATOMIC_ACQUIRE);
    return value;
}

template <class T>
inline void store_relaxed(T* p, T value) {
    __atomic_store(p, &value, __ATOMIC_RELAXED);
}

template <class T>
inline void store_release(T* p, T value) {
    __atomic_store(p, &value, __ATOMIC_RELEASE);
}

inline uint64_t fetch_add_relaxed(uint64_t* p, uint64_t n) {
    return __atomic_fetch_add(p, n, __ATOMIC_RELAXED);
}

inline void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }

// [row-word] The words of a row are stored with release and loaded with acquire, so that a reader that saw any word
// of a newer row also sees, at its second look, the generation that the newer writer had made odd before its first
// word. This is the seqlock without fences of Boehm (2012), "Can seqlocks get along with programming language memory
// models?", section 4. Relaxed words would not do: nothing would order the second look after them.
template <class Word>
inline void read_words(char* to, const char* row, int64_t nbytes) {
    const Word* words = reinterpret_cast<const Word*>(row);
    const int64_t n = nbytes / static_cast<int64_t>(sizeof(Word));
    for (int64_t i = 0; i < n; ++i) {
        const Word word = load_acquire(words + i);  // [row-word] pairs with the release in write_words
        std::memcpy(to + i * sizeof(Word), &word, sizeof(Word));
    }
    const int64_t rest = nbytes - n * static_cast<int64_t>(sizeof(Word));
    if (rest != 0) {
        const Word word = load_acquire(words + n);  // [row-word] as above; the row is padded to whole words
        std::memcpy(to + nbytes - rest, &word, rest);
    }
}

template <class Word>
inline void write_words(char* row, const char* from, int64_t nbytes) {
    Word* words = reinterpret_cast<Word*>(row);
    const int64_t n = nbytes / static_cast<int64_t>(sizeof(Word));
    for (int64_t i = 0; i < n; ++i) {
        Word word;
        std::memcpy(&word, from + i * sizeof(Word), sizeof(Word));
        store_release(words + i, word);  // [row-word] pairs with the acquire in read_words
    }
    const int64_t rest = nbytes - n * static_cast<int64_t>(sizeof(Word));
    if (rest != 0) {
        Word word = 0;
        std::memcpy(&word, from + nbytes - rest, rest);
        store_release(words + n, word);  // [row-word] as above
    }
}

// `word_size` is the size in which a field is always read and written: 8, 4, 2 or 1 bytes.
inline void read_field(char* to, const char* row, int64_t nbytes, int word_size) {
    switch (word_size) {
        case 8: return read_words<uint64_t>(to, row, nbytes);
        case 4: return read_words<uint32_t>(to, row, nbytes);
        case 2: return read_words<uint16_t>(to, row, nbytes);
        default: return read_words<uint8_t>(to, row, nbytes);
    }
}

inline void write_field(char* row, const char* from, int64_t nbytes, int word_size) {
    switch (word_size) {
        case 8: return write_words<uint64_t>(row, from, nbytes);
        case 4: return write_words<uint32_t>(row, from, nbytes);
        case 2: return write_words<uint16_t>(row, from, nbytes);
        default: return write_words<uint8_t>(row, from, nbytes);
    }
}

}  // namespace kary

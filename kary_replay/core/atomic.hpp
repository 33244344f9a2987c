// Atomic access to words of plain memory, with the order spelled out, and prefetches.
//
// Cython can say std::atomic<T>, but not "treat this word of a mapped block as atomic", and
// std::atomic_ref is C++20. The rows of a replay buffer are exactly such words. On x86-64 every
// function here is one plain move.
#pragma once
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace kary {

template <class T>
inline T load_relaxed(const T* p) {
    T value;
    __atomic_load(p, &value, __ATOMIC_RELAXED);
    return value;
}

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
// What the general function compiles to, without a detour through an integer register that costs a
// search a fifth of its time.
inline double load_relaxed(const double* p) {
    double value;
    __asm__("movsd %1, %0" : "=x"(value) : "m"(*p));
    return value;
}

// Loads two numbers into the halves of a vector register: each load is atomic, the pair is not.
#define KARY_PAIRS 1
inline __m128d load_relaxed(const double* low, const double* high) {
    __m128d pair;
    __asm__("movsd %1, %0" : "=x"(pair) : "m"(*low));
    __asm__("movhpd %1, %0" : "+x"(pair) : "m"(*high));
    return pair;
}
#endif

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

// For a loop that waits for another core: some tens of cycles.
inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// GCC drops calls of functions that do nothing but prefetch, so none of these must be a call.
[[gnu::always_inline]] inline void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }

// Into the second-level cache only: for rows, which are asked for so many lines ahead of their use
// that the first level would not hold them.
[[gnu::always_inline]] inline void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }

// [row-word] The words of a row are stored with release and loaded with acquire, so that a reader
// that saw any word of a newer row also sees, at its second look, the generation that the newer
// writer had made odd before its first word. This is the seqlock without fences of Boehm (2012),
// "Can seqlocks get along with programming language memory models?", section 4. Relaxed words would
// not do: nothing would order the second look after them.
template <class Word>
inline void read_word(char* to, const char* row) {
    // [row-word] pairs with write_word's release
    const Word word = load_acquire(reinterpret_cast<const Word*>(row));
    std::memcpy(to, &word, sizeof(Word));
}

template <class Word>
inline void write_word(char* row, const char* from) {
    Word word;
    std::memcpy(&word, from, sizeof(Word));
    store_release(reinterpret_cast<Word*>(row), word);  // [row-word] pairs with read_word's acquire
}

// Moves one field of one row, from the row (kRead) or to it.
#if KARY_PAIRS
// x86-64 keeps loads in order among each other, and stores, whatever their width; so only the
// compiler must be kept from moving them. That a wide one may be torn does no harm: the reader's
// second look tells. The last bytes are moved together with some before them, a second time.
// Nothing here becomes a call of memcpy, whose stores may come in any order.
struct alignas(1) Wide { char bytes[16]; };

inline void move_wide(char* to, const char* from) {
    __m128i wide;
    __asm__ volatile("movdqu %1, %0" : "=x"(wide) : "m"(*reinterpret_cast<const Wide*>(from)));
    __asm__ volatile("movdqu %1, %0" : "=m"(*reinterpret_cast<Wide*>(to)) : "x"(wide));
}

// Moves sizeof(Word) to twice as many bytes.
template <class Word>
inline void move_two(char* to, const char* from, int64_t nbytes) {
    Word first, last;
    const int64_t at = nbytes - static_cast<int64_t>(sizeof(Word));
    std::memcpy(&first, from, sizeof(Word));
    std::memcpy(&last, from + at, sizeof(Word));
    std::memcpy(to, &first, sizeof(Word));
    std::memcpy(to + at, &last, sizeof(Word));
}

template <bool kRead>
inline void move_field(char* row, char* value, int64_t offset, int64_t nbytes) {
    constexpr int64_t kWide = sizeof(Wide);
    char* to = kRead ? value : row + offset;
    const char* from = kRead ? row + offset : value;
    __asm__ volatile("" ::: "memory");  // [row-word] as in read_word and write_word; so below
    if (nbytes >= kWide) {
        int64_t at = 0;
        for (; at + kWide < nbytes; at += kWide) move_wide(to + at, from + at);
        move_wide(to + nbytes - kWide, from + nbytes - kWide);
    } else if (nbytes >= 8) {
        move_two<uint64_t>(to, from, nbytes);
    } else if (nbytes >= 4) {
        move_two<uint32_t>(to, from, nbytes);
    } else if (nbytes >= 2) {
        move_two<uint16_t>(to, from, nbytes);
    } else {
        *to = *from;
    }
    __asm__ volatile("" ::: "memory");
}
#else
// The field is always cut into the same words: as wide as its place is aligned (rows begin on
// 8-byte boundaries), then narrower ones.
template <class Word, bool kRead>
inline void move_words(char* row, char* value, int64_t nbytes) {
    const auto move = [&](auto word, int64_t at) {
        if constexpr (kRead) read_word<decltype(word)>(value + at, row + at);
        else write_word<decltype(word)>(row + at, value + at);
    };
    int64_t at = 0;
#pragma GCC unroll 4
    for (; at + static_cast<int64_t>(sizeof(Word)) <= nbytes; at += sizeof(Word)) move(Word{}, at);
    if (sizeof(Word) > 4 && nbytes & 4) move(uint32_t{}, at), at += 4;
    if (sizeof(Word) > 2 && nbytes & 2) move(uint16_t{}, at), at += 2;
    if (sizeof(Word) > 1 && nbytes & 1) move(uint8_t{}, at);
}

template <bool kRead>
inline void move_field(char* row, char* value, int64_t offset, int64_t nbytes) {
    row += offset;
    if ((offset & 7) == 0) move_words<uint64_t, kRead>(row, value, nbytes);
    else if ((offset & 3) == 0) move_words<uint32_t, kRead>(row, value, nbytes);
    else if ((offset & 1) == 0) move_words<uint16_t, kRead>(row, value, nbytes);
    else move_words<uint8_t, kRead>(row, value, nbytes);
}
#endif

inline void read_field(char* row, char* value, int64_t offset, int64_t nbytes) {
    move_field<true>(row, value, offset, nbytes);
}

// The same, asking for what is read next, line by line. At random places a copy is bound by memory,
// and the hardware follows a field only up to the end of its page.
inline void read_field_ahead(char* row, char* value, int64_t offset, int64_t nbytes,
                             const char* next) {
    constexpr int64_t kLine = 64;
    int64_t at = 0;
    for (; at + kLine <= nbytes; at += kLine) {
        prefetch_far(next + at);
        move_field<true>(row, value + at, offset + at, kLine);
    }
    if (at == nbytes) return;
    prefetch_far(next + at);
    move_field<true>(row, value + at, offset + at, nbytes - at);
}

inline void write_field(char* row, char* value, int64_t offset, int64_t nbytes) {
    move_field<false>(row, value, offset, nbytes);
}

}  // namespace kary

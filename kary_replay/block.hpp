// The head of a block of memory: the lock, the counters and the random stream that the block's parts share.
//
// A struct with cache-line alignment, which Cython cannot say. Nothing in it is a pointer, so that a block means the
// same at every address it is mapped to.
#pragma once
#include <pthread.h>

#include <cstdint>

namespace kary {

struct Header {
    // Guards every write to the tree, every change of a generation, and the fields below it.
    alignas(64) pthread_mutex_t lock;

    // Written under the lock; the ones marked * are also read without it, as relaxed atomics, where any recent value
    // will do.
    alignas(64) int64_t position;  // the slot to reserve next
    int64_t n_published;           // * rows that can be sampled
    int64_t n_writing;             // * slots reserved and not yet published
    int64_t n_started;             // * slots ever reserved since the last reset: 0 … n_started - 1
    int64_t n_touched;             // slots ever reserved, resets notwithstanding: the rows whose generation is not 0
    int64_t n_paused;              // * > 0: no new reservations (a snapshot or reset waits for the writers to finish)
    double alpha;                  // * mass = priority ** alpha
    double max_priority;           // * largest priority seen
    double max_mass;               // max_priority ** alpha

    // Any thread adds to the counter; the key never changes.
    alignas(64) uint64_t random_key[2];
    uint64_t random_counter;
};

// Spins for about as long as a batch update holds the lock, then sleeps in the kernel.
inline void acquire(Header* header) {
    for (int i = 0; i < 100; ++i) {
        if (pthread_mutex_trylock(&header->lock) == 0) return;
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#endif
    }
    pthread_mutex_lock(&header->lock);
}

inline void release(Header* header) { pthread_mutex_unlock(&header->lock); }

}  // namespace kary

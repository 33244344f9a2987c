// The lock of a block: a robust mutex, whose next holder repairs what a dead one left.
#pragma once
#include <sched.h>
#include <time.h>

#include <cerrno>

#include "block.hpp"
#include "recovery.hpp"

namespace kary {

// Spins for about as long as a batch update holds the lock, then sleeps in the kernel. Nobody calls
// it with the GIL held, for the lock's holder may be waiting for the GIL.
inline void acquire(Header* header) {
    int outcome = EBUSY;
    for (int i = 0; i < 100 && outcome == EBUSY; ++i) {
        outcome = pthread_mutex_trylock(&header->lock);
        if (outcome == EBUSY) relax();
    }
    if (outcome == EBUSY) outcome = pthread_mutex_lock(&header->lock);
#ifdef __linux__
    if (outcome == EOWNERDEAD) {
        store_relaxed(&header->n_repaired, header->n_repaired + 1);
        repair(header);  // whoever dies in here leaves the next one the lock in the same state
        pthread_mutex_consistent(&header->lock);
    }
#endif
}

inline void release(Header* header) { pthread_mutex_unlock(&header->lock); }

// Between two holds of the lock, for somebody who takes it again and again, in pieces or to wait.
// Others who spin for it get it then. One that sleeps is woken by a release, but finds it taken
// again by the time that it runs: so now and then there is a pause as long as that.
inline void give_way() {
    constexpr int kTimes = 32;
    thread_local int n_times = 0;
    for (int i = 0; i < 64; ++i) relax();
    if (++n_times % kTimes != 0) {
        sched_yield();
        return;
    }
    const timespec pause{0, 100'000};
    nanosleep(&pause, nullptr);
}

inline int init_lock(Header* header, bool shared) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
#ifdef __linux__
    if (shared) {
        pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    }
#endif
    const int outcome = pthread_mutex_init(&header->lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
    return outcome;
}

inline void destroy_lock(Header* header) { pthread_mutex_destroy(&header->lock); }

}  // namespace kary

// The lock of a block, and what is to be done by whoever gets it from a dead holder.
//
// The holder may have died at any instruction. Everything that the lock guards follows from the
// generations, the priorities and alpha, and is computed anew from them. So there is no log of what
// the holder was about to do, but an order: what others are derived from is stored first. Release
// stores keep that order in memory. Only a reset, which takes many steps and must not be seen half
// done, says that it is under way.
#pragma once
#include <cerrno>

#include "block.hpp"
#include "priorities.hpp"
#include "sum_tree.hpp"

namespace kary {

// Forgets all rows; nobody is writing one. Doing it twice does no harm.
inline void reset(Header* header) {
    store_release(&header->is_resetting, int64_t{1});
    if (header->tree_at != 0) {
        const Tree tree = tree_of(header);
        double* leaf = leaves_of(tree);
        // [leaf] pairs with Reader.read_rows
        for (int64_t i = 0; i < header->n_started; ++i) store_release(leaf + i, 0.0);
        rebuild(tree);
    }
    for (int64_t i = 0; i < header->n_started; ++i) {
        // [publish-slot] release: pairs with the acquire in Reader.read_rows. Vacant, not merely
        // later: nobody draws a row from here under a handle that would be current afterwards.
        store_release(generation_of(header, i), vacated(load_relaxed(generation_of(header, i))));
    }
    header->position = 0;
    store_relaxed(&header->n_published, int64_t{0});
    store_relaxed(&header->max_priority, 1.0);
    header->max_mass = 1.0;
    if (Ranking* ranking = ranking_of(header)) ranking->n_changed = ranking->n_bounds = ranking->n_on_top = 0;
    // after the generations, which are counted by it
    store_release(&header->n_started, int64_t{0});
    store_release(&header->is_resetting, int64_t{0});
}

// Makes the block whole again after the death of the lock's holder; we have it now.
inline void repair(Header* header) {
    header->buried_at = 0;  // whoever waits for the dead one's slots looks at once
    if (header->capacity == 0) return;  // a tree alone
    if (header->is_resetting) reset(header);
    // A slot counts as started before its generation says whose it is.
    while (header->n_started > 0 && load_relaxed(generation_of(header, header->n_started - 1)) == 0) {
        store_relaxed(&header->n_started, header->n_started - 1);
    }
    while (header->n_touched > 0 && load_relaxed(generation_of(header, header->n_touched - 1)) == 0) {
        store_relaxed(&header->n_touched, header->n_touched - 1);
    }
    Participant* all = participants_of(header);
    int64_t n_published = 0, n_writing = 0, n_paused = 0;
    for (int64_t id = 0; id < header->n_participants; ++id) {
        if (!all[id].is_present) all[id] = Participant{};  // half removed
        all[id].n_writing = 0;
        n_paused += all[id].n_paused;
    }
    for (int64_t i = 0; i < header->n_started; ++i) {
        const uint64_t generation = load_relaxed(generation_of(header, i));
        const uint64_t owner = generation >> kOwnerShift;
        if (is_published(generation)) {
            ++n_published;
        } else if (1 <= owner && owner <= static_cast<uint64_t>(header->n_participants)) {
            ++n_writing;
            ++all[owner - 1].n_writing;
        }
    }
    store_relaxed(&header->n_published, n_published);
    store_relaxed(&header->n_writing, n_writing);
    store_relaxed(&header->n_paused, n_paused);
    // without memory to rank: of the ranks of the last time
    if (header->tree_at != 0) derive_masses(header);
}

// Spins for about as long as a batch update holds the lock, then sleeps in the kernel. Never called
// with the GIL held: the lock's holder may be waiting for it.
inline void acquire(Header* header) {
    int outcome = EBUSY;
    for (int i = 0; i < 100 && outcome == EBUSY; ++i) {
        outcome = pthread_mutex_trylock(&header->lock);
#if defined(__x86_64__) || defined(__i386__)
        if (outcome == EBUSY) __builtin_ia32_pause();
#endif
    }
    if (outcome == EBUSY) outcome = pthread_mutex_lock(&header->lock);
#ifdef __linux__
    if (outcome == EOWNERDEAD) {
        store_relaxed(&header->n_repaired, header->n_repaired + 1);
        repair(header);  // whoever dies in here leaves the lock to the next one in the same state
        pthread_mutex_consistent(&header->lock);
    }
#endif
}

inline void release(Header* header) { pthread_mutex_unlock(&header->lock); }

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

}  // namespace kary

// The lock of a block, and what is to be done by whoever gets it from a dead holder.
//
// The holder may have died at any instruction. It wrote down what it was about to do (begin_change, Job), so that it can be
// finished; everything else that the lock guards follows from the leaves and the generations, and is computed anew.
#pragma once
#include <cfloat>
#include <cmath>

#include "participants.hpp"
#include "rank.hpp"
#include "sum_tree.hpp"

namespace kary {

inline Tree tree_of(Header* header) {
    Tree tree{};
    if (header->tree_at != 0) {
        lay_out(&tree, reinterpret_cast<char*>(header) + header->tree_at, header->capacity, header->arity);
    }
    return tree;
}
inline double* leaves_of(const Tree& tree) { return tree.n_levels == 0 ? nullptr : tree.level[tree.n_levels - 1]; }

// Raises every priority to the exponent job_alpha: mass becomes mass ** (new / old). Goes on where it was left.
inline void continue_set_alpha(Header* header) {
    const Tree tree = tree_of(header);
    double* leaf = leaves_of(tree);
    const double old = header->alpha, alpha = header->job_alpha;
    const double limit = DBL_MAX / (2.0 * header->capacity + 128);
    for (int64_t i = header->job_at; i < header->n_started; ++i) {
        double mass = load_relaxed(leaf + i);  // only changed under the lock, which we hold
        if (mass > 0) {
            // From alpha = 0 the priorities cannot be told apart: the rows count as new.
            mass = old > 0 ? std::pow(mass, alpha / old) : std::pow(header->max_priority, alpha);
            mass = std::min(std::max(mass, 5e-324), limit);
            begin_change(header, i, load_relaxed(generation_of(header, i)), mass);
            store_release(leaf + i, mass);  // [leaf] pairs with the acquire in Storage.read_rows
            store_release(&header->job_at, i + 1);
            end_change(header);
        }
    }
    store_relaxed(&header->alpha, alpha);
    renew_max_mass(header);
    rebuild(tree);
    store_release(&header->job, int64_t{kNothing});
}

// False, and nothing changed, if there is no memory for it.
inline bool set_alpha(Header* header, double alpha) {
    if (alpha == header->alpha) return true;
    if (header->ranking_at != 0) return rank_all(header, tree_of(header), alpha);
    header->job_alpha = alpha;
    header->job_at = 0;
    store_release(&header->job, int64_t{kSetAlpha});
    continue_set_alpha(header);
    return true;
}

// Forgets all rows; nobody is writing one. Doing it twice does no harm.
inline void reset(Header* header) {
    store_release(&header->job, int64_t{kReset});
    const Tree tree = tree_of(header);
    if (double* leaf = leaves_of(tree)) {
        for (int64_t i = 0; i < header->n_started; ++i) store_release(leaf + i, 0.0);  // [leaf] pairs with Storage.read_rows
        rebuild(tree);
    }
    for (int64_t i = 0; i < header->n_started; ++i) {
        // [publish-slot] release: pairs with the acquire in Storage.read_rows; what is read meanwhile counts as changed
        store_release(generation_of(header, i), load_relaxed(generation_of(header, i)) + 2);
    }
    header->position = 0;
    store_relaxed(&header->n_published, int64_t{0});
    store_relaxed(&header->max_priority, 1.0);
    header->max_mass = 1.0;
    if (Ranking* ranking = ranking_of(header)) ranking->n_changed = ranking->n_bounds = ranking->n_on_top = 0;
    store_release(&header->n_started, int64_t{0});  // after the generations, which are counted by it
    store_release(&header->job, int64_t{kNothing});
}

// Makes the block whole again after the death of the lock's holder; we have it now.
inline void repair(Header* header) {
    if (header->capacity == 0) return;
    const Tree tree = tree_of(header);
    double* leaf = leaves_of(tree);
    if (header->intent != 0) {
        const int64_t slot = header->intent - 1;
        if (leaf != nullptr) store_release(leaf + slot, 0.0);  // [leaf] never another row's mass beside a generation
        store_release(generation_of(header, slot), header->intent_generation);  // [publish-slot] see reserve and publish
        if (leaf != nullptr) store_release(leaf + slot, header->intent_mass);
        if (slot >= header->n_started) store_relaxed(&header->n_started, slot + 1);
        store_relaxed(&header->n_touched, std::max(header->n_touched, slot + 1));
        if (header->job == kSetAlpha) header->job_at = slot + 1;
        end_change(header);
    }
    if (header->job == kReset) reset(header);
    if (header->job == kSetAlpha) continue_set_alpha(header);

    Participant* all = participants_of(header);
    int64_t n_published = 0, n_writing = 0, n_paused = 0;
    for (int64_t id = 0; id < header->n_participants; ++id) {
        if (all[id].pid == 0) all[id] = Participant{};  // half removed
        all[id].n_writing = 0;
        n_paused += all[id].n_paused;
    }
    for (int64_t i = 0; i < header->n_started; ++i) {
        const uint64_t generation = load_relaxed(generation_of(header, i));
        if ((generation & 1) == 0) {
            ++n_published;
        } else if (!is_vacant(generation)) {
            ++n_writing;
            ++all[(generation >> kOwnerShift) - 1].n_writing;
        }
    }
    store_relaxed(&header->n_published, n_published);
    store_relaxed(&header->n_writing, n_writing);
    store_relaxed(&header->n_paused, n_paused);
    renew_max_mass(header);
    if (leaf != nullptr) rebuild(tree);
    if (header->job == kRank && !rank_all(header, tree, header->job_alpha)) {  // every mass is of one rank or another
        store_relaxed(&header->alpha, header->job_alpha);
        store_release(&header->job, int64_t{kNothing});
    }
}

// Spins for about as long as a batch update holds the lock, then sleeps in the kernel. Never called with the GIL held: the
// lock's holder may be waiting for it.
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
        bury(header, true);
    }
#endif
}

inline void release(Header* header) { pthread_mutex_unlock(&header->lock); }

// Takes the lock at a moment when nobody is writing a row.
inline void pause(Header* header, int64_t me) {
    acquire(header);
    participants_of(header)[me].n_paused += 1;
    store_relaxed(&header->n_paused, header->n_paused + 1);
    while (header->n_writing > 0) {
        bury(header, false);
        if (header->n_writing == 0) break;
        release(header);
        sched_yield();
        acquire(header);
    }
}

// Ends what pause began.
inline void resume(Header* header, int64_t me) {
    participants_of(header)[me].n_paused -= 1;
    store_relaxed(&header->n_paused, header->n_paused - 1);
    release(header);
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

}  // namespace kary

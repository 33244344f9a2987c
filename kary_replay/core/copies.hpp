// Copies of all masses and priorities that are of one moment, without a long hold of the lock.
//
// A thread announces that it copies (a short hold). From then on whoever stores a mass counts that
// at the slot's group of kGroup slots, in the block. The thread copies group after group without
// the lock, each after a look at its count; then those again whose count has changed since, until
// few have. Under the lock, at the moment that counts, it copies these: a group whose count is the
// one it saw has not changed since it was copied.
//
// A priority changes before the mass that goes with it, so counting masses is enough. What a slot
// without a row has for a priority means nothing. If the thread's process dies, others count for
// nothing until somebody finds that it is gone: at the latest, the next one to copy.
#pragma once
#include <algorithm>

#include "block.hpp"
#include "lock.hpp"
#include "participants.hpp"
#include "selector.hpp"

namespace kary {

// Belongs to one thread.
struct Copies {
    double* mass;      // [n]
    double* priority;  // [n]
    uint32_t* seen;    // of each group, the count before it was copied
    int64_t n;         // slots
};

inline void announce_copies(const Attachment* attachment) {
    acquire(attachment->header);
    bury(attachment, false);
    participants_of(attachment->header)[attachment->me].n_copying += 1;
    attachment->header->n_copying += 1;
    release(attachment->header);
}

inline void end_copies(const Attachment* attachment) {
    acquire(attachment->header);
    participants_of(attachment->header)[attachment->me].n_copying -= 1;
    attachment->header->n_copying -= 1;
    release(attachment->header);
}

// Copies the groups whose count has changed, or all; returns how many these were.
inline int64_t copy_groups(Header* header, const Selector* selector, Copies* copies, bool all) {
    const uint32_t* count = counts_of(header);
    int64_t n_copied = 0;
    for (int64_t first = 0, group = 0; first < copies->n; first += kGroup, ++group) {
        // [count] acquire: pairs with the release in count_change (block.hpp), so every mass that
        // it counts is there
        const uint32_t now = load_acquire(count + group);
        if (!all && now == copies->seen[group]) continue;
        copies->seen[group] = now;
        const int64_t end = std::min(first + kGroup, copies->n);
        for (int64_t slot = first; slot < end; ++slot) {
            // [leaf] [priority] relaxed: of a group that changes meanwhile, the count changes
            copies->mass[slot] = load_relaxed(selector->leaf + slot);
            copies->priority[slot] = load_relaxed(selector->priority + slot);
        }
        ++n_copied;
    }
    return n_copied;
}

}  // namespace kary

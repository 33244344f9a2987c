// What is done when a holder of the lock has died, and the reset, which recovery finishes.
//
// The holder may have died at any instruction. The masses, the tree and the counts of rows follow
// from the generations, the priorities and alpha, and are computed anew from them. The position,
// the number of rows added and the largest priority are one number each, which is the old one or
// the new one. So there is no log of what the holder was about to do. There is an order: what
// others are derived from is stored first, and release stores keep that order in memory. Only a
// reset, which takes many steps and must not be seen half done, says that it is under way.
#pragma once
#include "selectors.hpp"

namespace kary {

// Forgets all rows; nobody is writing one. Doing it twice does no harm.
inline void reset(Header* header, Selector* selector) {
    store_release(&header->is_resetting, int64_t{1});
    header->n_passed += header->layout.capacity;  // before the generations, as in Slots.reserve
    selector->forget();
    for (int64_t i = 0; i < header->n_started; ++i) {
        // [publish-slot] release: pairs with the acquire in Reader.read_rows (reader.pyx). Vacant,
        // not merely later, so that nobody draws a row under a handle that is current afterwards.
        uint64_t* generation = generation_of(header, i);
        store_release(generation, vacated(load_relaxed(generation)));
    }
    header->position = 0;
    store_relaxed(&header->n_published, int64_t{0});
    // after the generations, which are counted by it
    store_release(&header->n_started, int64_t{0});
    store_release(&header->is_resetting, int64_t{0});
}

// Counts anew what follows from generations, and who is writing how many slots.
inline void recount(Header* header) {
    Participant* all = participants_of(header);
    int64_t n_published = 0, n_writing = 0, n_paused = 0, n_sweeping = 0, n_copying = 0;
    for (int64_t id = 0; id < header->n_participants; ++id) {
        if (!all[id].is_present) all[id] = Participant{};  // half removed
        all[id].n_writing = 0;
        n_paused += all[id].n_paused;
        n_sweeping += all[id].n_sweeping;
        n_copying += all[id].n_copying;
    }
    for (int64_t i = 0; i < header->n_started; ++i) {
        const uint64_t generation = load_relaxed(generation_of(header, i));
        const int64_t owner = static_cast<int64_t>(generation >> kOwnerShift);
        if (is_published(generation)) {
            ++n_published;
        } else if (1 <= owner && owner <= header->n_participants) {
            ++n_writing;
            ++all[owner - 1].n_writing;
        }
    }
    store_relaxed(&header->n_published, n_published);
    store_relaxed(&header->n_writing, n_writing);
    store_relaxed(&header->n_paused, n_paused);
    header->n_sweeping = n_sweeping;
    header->n_copying = n_copying;
}

// Makes the block whole again after the death of the lock's holder; we have it now.
inline void repair(Header* header) {
    // whoever waits for the dead one's slots looks at once
    store_relaxed(&header->buried_at, int64_t{0});
    if (header->layout.selection == kNoSelection) return;  // a tree alone
    SelectorSpace space;
    Selector* selector = make_selector(header, &space);
    if (header->is_resetting) reset(header, selector);
    // A slot counts as started before its generation says whose it is.
    for (int64_t* count : {&header->n_started, &header->n_touched}) {
        while (*count > 0 && load_relaxed(generation_of(header, *count - 1)) == 0) {
            store_relaxed(count, *count - 1);
        }
    }
    recount(header);
    selector->derive();
    if (header->n_copying == 0 || counts_of(header) == nullptr) return;
    // the dead one may have stored what it had not counted yet
    for (int64_t slot = 0; slot < header->layout.capacity; slot += kGroup) {
        count_change(header, slot);
    }
}

}  // namespace kary

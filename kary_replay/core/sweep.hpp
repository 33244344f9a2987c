// Sweeps: new masses for all rows, without a long hold of the lock.
//
// When alpha is set, or all rows are ranked, every mass changes. One hold of the lock for all of
// them would keep everybody waiting who adds or updates, for hundreds of milliseconds where rows
// are a million. So the work is done beside. A thread **asks** (a short hold: alpha is the new one
// from then on, and everybody who gives a row a mass uses it). It copies priorities and computes
// masses without the lock: of a piece, or of all rows where a mass is that of a rank. Then it
// stores a piece of them in each hold, sums included, from the first slot to the last.
//
// Masses follow from priorities. So a piece looks at each priority again, under the lock: a row
// that has another one by now gets the mass of that, as an update gives it. Nothing needs to be
// undone, and doing it twice does no harm. If somebody asks while a sweep is under way, theirs
// begins at the first slot again, and whoever asked before waits for it: of all that was asked for,
// the newest includes the rest. The header has the number of the newest, and the newest that is
// done.
//
// Nobody but the thread itself has what it computed. If it dies between two holds, it is missing
// among those who are at work (as its pauses and the rows it was writing are), and the next one who
// adds, draws or updates asks for a sweep of its own, with the alpha that there is.
#pragma once
#include <time.h>

#include <algorithm>
#include <cstdlib>

#include "participants.hpp"
#include "selector.hpp"

namespace kary {

// Rows whose masses are stored in one hold of the lock: some tens of microseconds.
constexpr int64_t kSwept = 1024;

// What one thread computes beside.
struct Sweep {
    int64_t number;    // of those asked for
    int64_t room;      // rows there is memory for
    double* priority;  // [room]; the others are in the same memory
    double* mass;      // [room]
    double* ranking;
    double* scratch;   // [2 * room]
};

inline bool make_room(Sweep* sweep, const Selector* selector, const Header* header,
                      int64_t piece) {
    // relaxed: a row that comes later counts as one whose priority has changed
    sweep->room = selector->needs_all() ? load_relaxed(&header->n_started) : piece;
    const int64_t n = 4 * sweep->room + selector->n_ranking + 1;
    sweep->priority = static_cast<double*>(std::malloc(n * sizeof(double)));
    if (sweep->priority == nullptr) return false;
    sweep->mass = sweep->priority + sweep->room;
    sweep->scratch = sweep->mass + sweep->room;
    sweep->ranking = sweep->scratch + 2 * sweep->room;
    return true;
}

// Whether a sweep that was asked for is nobody's. The caller holds the lock.
inline bool is_abandoned(const Attachment* attachment) {
    const Header* header = attachment->header;
    if (is_settled(header)) return false;
    if (header->n_sweeping > 0) bury(attachment, false);
    return header->n_sweeping == 0;
}

// The same for somebody without the lock, who takes it only if the others have not been looked at
// for a while. So the draws that go on beside a sweep leave the lock alone.
inline bool seems_abandoned(const Attachment* attachment) {
    Header* header = attachment->header;
    if (is_settled(header) || header->n_participants == 1) return false;
    if (!is_time_to_bury(header)) return false;
    acquire(header);
    const bool is = is_abandoned(attachment);
    release(header);
    return is;
}

// Whether a sweep that nobody asked for is needed. The caller holds the lock.
inline bool needs_sweep(const Attachment* attachment, const Selector* selector) {
    if (!is_settled(attachment->header)) return is_abandoned(attachment);
    return selector->ranking != nullptr && selector->is_due();
}

// Asks for a sweep, and counts this thread among those at work. The caller holds the lock.
inline void ask(const Attachment* attachment, Selector* selector, double alpha, Sweep* sweep) {
    Header* header = attachment->header;
    participants_of(header)[attachment->me].n_sweeping += 1;
    header->n_sweeping += 1;
    sweep->number = header->sweep_asked + 1;
    // before alpha and all that: a death in here leaves the lock to somebody who repairs it all
    header->n_swept = 0;
    store_relaxed(&header->sweep_asked, sweep->number);
    selector->ask(alpha);
}

inline void stop_sweeping(const Attachment* attachment) {
    participants_of(attachment->header)[attachment->me].n_sweeping -= 1;
    attachment->header->n_sweeping -= 1;
}

inline void copy_and_derive(const Selector* selector, double alpha, Sweep* sweep, int64_t first,
                            int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        // [priority] [leaf] relaxed: both are looked at again under the lock
        sweep->priority[i] = load_relaxed(selector->priority + first + i);
        sweep->mass[i] = load_relaxed(selector->leaf + first + i);
    }
    selector->derive_masses(alpha, sweep->priority, sweep->mass, n, sweep->ranking,
                            sweep->scratch);
}

// Does what was asked for. False if somebody asked later, or the sweep is done in another way.
inline bool carry_out(const Attachment* attachment, Selector* selector, double alpha, Sweep* sweep,
                      int64_t piece) {
    Header* header = attachment->header;
    const bool needs_all = selector->needs_all();
    if (needs_all) copy_and_derive(selector, alpha, sweep, 0, sweep->room);
    bool is_last = false;
    for (int64_t first = 0; !is_last; first += piece) {
        // Of the rows that there are no masses for, a piece derives each as a changed one.
        const int64_t n_known =
            std::min(piece, (needs_all ? sweep->room : header->layout.capacity) - first);
        double* priority = sweep->priority + (needs_all ? first : 0);
        double* mass = sweep->mass + (needs_all ? first : 0);
        if (!needs_all) copy_and_derive(selector, alpha, sweep, first, n_known);
        acquire(header);
        const bool is_ours =
            header->sweep_asked == sweep->number && header->sweep_done < sweep->number;
        if (is_ours) {
            if (first == 0) selector->take_over(sweep->ranking);
            const int64_t end = std::min(first + piece, header->n_started);
            const int64_t known = std::min(end, first + std::max<int64_t>(n_known, 0));
            header->n_swept = end;  // before: a row that takes a place by this sweep keeps it
            selector->set_derived(first, known, priority, mass);
            selector->set_derived(known, end, nullptr, nullptr);
            is_last = end == header->n_started;
            if (is_last) store_relaxed(&header->sweep_done, sweep->number);
        }
        if (is_last || !is_ours) stop_sweeping(attachment);
        release(header);
        if (!is_ours) return false;
        give_way();
    }
    return true;
}

// Waits until a sweep is done. False: it is nobody's any more.
inline bool wait_for(const Attachment* attachment, int64_t number) {
    Header* header = attachment->header;
    while (true) {
        acquire(header);
        const bool is_done = header->sweep_done >= number;
        const bool is_nobodys = !is_done && is_abandoned(attachment);
        release(header);
        if (is_done || is_nobodys) return is_done;
        const timespec pause{0, 200'000};
        nanosleep(&pause, nullptr);
    }
}

// Gives all rows the masses of `alpha`, or with null of the alpha that there is, and of their ranks
// where masses go by these; done when it returns. `if_needed`: only if needs_sweep says so by then.
// `piece`: rows in one hold. False, and nothing changed that others would not have: no memory.
inline bool sweep(const Attachment* attachment, Selector* selector, const double* alpha,
                  bool if_needed, int64_t piece) {
    if (selector->leaf == nullptr) return true;
    Header* header = attachment->header;
    Sweep own;
    if (!make_room(&own, selector, header, piece)) return false;
    acquire(header);
    bool is_asking = if_needed ? needs_sweep(attachment, selector)
                               : alpha == nullptr || *alpha != header->alpha;
    own.number = header->sweep_asked;
    bool is_done = if_needed && !is_asking;
    while (!is_done) {
        if (is_asking && selector->needs_all() && header->n_started > own.room) {  // rows came
            release(header);
            std::free(own.priority);
            if (!make_room(&own, selector, header, piece)) return false;
            acquire(header);
            continue;
        }
        if (is_asking) ask(attachment, selector, alpha != nullptr ? *alpha : header->alpha, &own);
        const double present = header->alpha;
        release(header);
        // The alpha asked for may have been there, but not yet in all masses: then it only waits.
        is_done = (is_asking && carry_out(attachment, selector, present, &own, piece)) ||
                  wait_for(attachment, own.number);
        acquire(header);
        is_asking = is_abandoned(attachment);
        alpha = nullptr;  // somebody may have set another one since
    }
    release(header);
    std::free(own.priority);
    return true;
}

}  // namespace kary

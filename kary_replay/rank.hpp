// Masses from priorities: in proportion to priority ** alpha, or to rank ** -alpha (Schaul et al. 2016, section 3.3).
//
// A rank depends on all priorities. So masses are exact when all rows have been ranked; until they are ranked again, a new
// priority gets the mass of the place it would have had then. A table of priorities at chosen ranks tells it: every rank up
// to 64, then each 2.5 % beyond the last.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "block.hpp"
#include "sum_tree.hpp"

namespace kary {

constexpr int kRanks = 1024;

// Guarded by the lock.
struct Ranking {
    int64_t n_changed;         // priorities set since all rows were ranked
    int64_t n_bounds;          // 0: never ranked
    double priority[kRanks];   // of the row at each chosen rank, in descending order
    double mass[kRanks];       // rank ** -alpha
};

inline Ranking* ranking_of(Header* header) {
    return header->ranking_at == 0 ? nullptr : reinterpret_cast<Ranking*>(reinterpret_cast<char*>(header) + header->ranking_at);
}
inline double* priorities_of(Header* header) { return reinterpret_cast<double*>(ranking_of(header) + 1); }
inline size_t ranking_nbytes(int64_t capacity) { return (sizeof(Ranking) + capacity * sizeof(double) + 63) / 64 * 64; }

// Keeps the priority of a slot, where ranks will be asked for it.
inline void note_priority(Header* header, int64_t slot, double priority) {
    if (header->ranking_at != 0) priorities_of(header)[slot] = priority;
}

// What a leaf holds for a priority above 0.
inline double mass_of(Header* header, double priority) {
    const Ranking* ranking = ranking_of(header);
    if (ranking == nullptr) return std::pow(priority, header->alpha);
    const int64_t n = ranking->n_bounds;
    if (n == 0) return 1.0;
    const double* bound = ranking->priority;
    const int64_t j = std::lower_bound(bound, bound + n, priority, [](double b, double p) { return b > p; }) - bound;
    if (j == 0) return ranking->mass[0];
    if (j == n) return ranking->mass[n - 1];
    const double part = (bound[j - 1] - priority) / (bound[j - 1] - bound[j]);
    return ranking->mass[j - 1] + part * (ranking->mass[j] - ranking->mass[j - 1]);
}

// Gives every row the mass of its rank, the largest priority first; of equal ones, the lower slot. The caller holds the lock.
// Doing it twice does no harm.
inline void rank_all(Header* header, const Tree& tree) {
    Ranking* ranking = ranking_of(header);
    const double* priority = priorities_of(header);
    double* leaf = tree.level[tree.n_levels - 1];
    auto* slot = static_cast<int64_t*>(std::malloc(std::max<int64_t>(header->n_started, 1) * sizeof(int64_t)));
    ranking->n_changed = 0;
    if (slot == nullptr) return;  // the old masses are as good as they were
    store_release(&header->job, int64_t{kRank});
    int64_t n = 0;
    for (int64_t i = 0; i < header->n_started; ++i) {
        if (load_relaxed(leaf + i) > 0) slot[n++] = i;  // rows without mass stay without
    }
    std::sort(slot, slot + n, [priority](int64_t a, int64_t b) {
        return priority[a] != priority[b] ? priority[a] > priority[b] : a < b;
    });
    int64_t next = 1;
    ranking->n_bounds = 0;
    for (int64_t rank = 1; rank <= n; ++rank) {
        const double mass = std::pow(static_cast<double>(rank), -header->alpha);
        store_release(leaf + slot[rank - 1], mass);  // [leaf] pairs with the acquire in Reader.read_rows
        if ((rank == next || rank == n) && ranking->n_bounds < kRanks) {
            ranking->priority[ranking->n_bounds] = priority[slot[rank - 1]];
            ranking->mass[ranking->n_bounds++] = mass;
            next = rank < 64 ? rank + 1 : rank + rank / 40;
        }
    }
    std::free(slot);
    rebuild(tree);
    store_release(&header->job, int64_t{kNothing});
}

// Counts n changed priorities, and ranks all rows when as many have changed as there are: so it costs each change O(log n).
inline void rank_if_due(Header* header, const Tree& tree, int64_t n) {
    Ranking* ranking = ranking_of(header);
    if (ranking == nullptr) return;
    ranking->n_changed += n;
    if (ranking->n_changed >= header->n_started) rank_all(header, tree);
}

// The mass of the largest priority; for alpha or that priority has changed.
inline void renew_max_mass(Header* header) {
    header->max_mass = header->ranking_at != 0 ? 1.0 : std::pow(header->max_priority, header->alpha);
}

}  // namespace kary

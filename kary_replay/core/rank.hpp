// Masses from ranks: rank ** -alpha, the largest priority having rank 1 (Schaul et al. 2016,
// section 3.3).
//
// A rank depends on all priorities. So masses are exact when all rows have been ranked; until they
// are ranked again, a new priority gets the mass of the place it would have had then; one of
// several equal ones, their mean. Those at the top, where new rows come in, take the ranks 1, 2, …
// in turn. A table of priorities at chosen ranks tells the place: every rank up to 64, then each
// 2.5 % beyond the last.
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
    int64_t n_on_top;          // of the changed ones, those not below the first
    double priority[kRanks];   // of the row at each chosen rank, in descending order
    double rank[kRanks];
    double mass[kRanks];       // rank ** -alpha
    double sum[kRanks];        // of the masses of all ranks up to this one
};

inline Ranking* ranking_of(Header* header) {
    return header->ranking_at == 0 ? nullptr : reinterpret_cast<Ranking*>(reinterpret_cast<char*>(header) + header->ranking_at);
}
constexpr size_t kRankingBytes = (sizeof(Ranking) + 63) / 64 * 64;

// Which of two slots ranks first: the one of the larger priority; of equal ones, the lower one.
struct RanksBefore {
    const double* priority;
    bool operator()(int64_t a, int64_t b) const {
        return priority[a] != priority[b] ? priority[a] > priority[b] : a < b;
    }
};

// The mass of the place that a new priority takes.
inline double take_place(Ranking* ranking, double priority, double alpha) {
    const int64_t n = ranking->n_bounds;
    const double* bound = ranking->priority;
    if (n == 0 || priority >= bound[0]) return std::pow(static_cast<double>(++ranking->n_on_top), -alpha);
    const int64_t j = std::lower_bound(bound, bound + n, priority, [](double b, double p) { return b > p; }) - bound;
    if (j == n) return ranking->mass[n - 1];
    if (bound[j] == priority) {
        const int64_t k =
            std::upper_bound(bound + j, bound + n, priority, [](double p, double b) { return b < p; }) - bound - 1;
        return (ranking->sum[k] - ranking->sum[j] + ranking->mass[j]) / (ranking->rank[k] - ranking->rank[j] + 1);
    }
    const double part = (bound[j - 1] - priority) / (bound[j - 1] - bound[j]);
    return ranking->mass[j - 1] + part * (ranking->mass[j] - ranking->mass[j - 1]);
}

// Gives rows whose priorities have just been set the masses of the places that they take: each row
// once, however often its slot is among the n, the largest priority first, of equal ones the lower
// slot. Leaves each slot once in `slot`, and returns how many.
inline int64_t take_places(Header* header, const Tree& tree, const double* priority, int64_t* slot, int64_t n) {
    std::sort(slot, slot + n, RanksBefore{priority});
    n = std::unique(slot, slot + n) - slot;
    for (int64_t i = 0; i < n; ++i) {
        // [leaf] pairs with the acquire in Reader.read_rows
        store_release(leaves_of(tree) + slot[i], take_place(ranking_of(header), priority[slot[i]], header->alpha));
    }
    return n;
}

// Gives every row with mass that of its rank, the largest priority first; of equal ones, the lower
// slot. Sets alpha. The caller holds the lock. Doing it twice does no harm. False, and nothing
// changed, if there is no memory for it.
inline bool rank_all(Header* header, const Tree& tree, const double* priority, double alpha) {
    Ranking* ranking = ranking_of(header);
    double* leaf = leaves_of(tree);
    auto* slot = static_cast<int64_t*>(std::malloc(std::max<int64_t>(header->n_started, 1) * sizeof(int64_t)));
    if (slot == nullptr) return false;
    // first: who repairs the block after our death ranks all rows by it
    store_release(&header->alpha, alpha);
    ranking->n_changed = ranking->n_on_top = 0;
    int64_t n = 0;
    double sum = 0;
    for (int64_t i = 0; i < header->n_started; ++i) {
        if (load_relaxed(leaf + i) > 0) slot[n++] = i;  // rows without mass stay without
    }
    std::sort(slot, slot + n, RanksBefore{priority});
    int64_t next = 1;
    ranking->n_bounds = 0;
    for (int64_t rank = 1; rank <= n; ++rank) {
        const double mass = std::pow(static_cast<double>(rank), -alpha);
        sum += mass;
        // [leaf] pairs with the acquire in Reader.read_rows
        store_release(leaf + slot[rank - 1], mass);
        if ((rank == next || rank == n) && ranking->n_bounds < kRanks) {
            ranking->priority[ranking->n_bounds] = priority[slot[rank - 1]];
            ranking->rank[ranking->n_bounds] = static_cast<double>(rank);
            ranking->sum[ranking->n_bounds] = sum;
            ranking->mass[ranking->n_bounds++] = mass;
            next = rank < 64 ? rank + 1 : rank + rank / 40;
        }
    }
    std::free(slot);
    rebuild(tree);
    return true;
}

// Counts n changed priorities, and ranks all rows when as many have changed as there are: so it
// costs each change O(log n). Without ranks, nothing.
inline void rank_if_due(Header* header, const Tree& tree, const double* priority, int64_t n) {
    Ranking* ranking = ranking_of(header);
    if (ranking == nullptr) return;
    ranking->n_changed += n;
    // or the next time
    if (ranking->n_changed >= header->n_started) rank_all(header, tree, priority, header->alpha);
}

}  // namespace kary

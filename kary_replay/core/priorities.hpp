// What a row's priority is, and the mass that follows from it.
//
// Priorities are stored; masses, the leaves of the tree, are derived from them. So the exponent
// alpha can be set to anything and back, and whoever repairs a block after a death derives every
// mass anew instead of finding out which stores the dead process still made.
#pragma once
#include <cfloat>
#include <cmath>

#include "block.hpp"
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

// Priorities, one a slot, guarded by the lock. 0: the row is no transition, and is never drawn (it
// only has a frame that others refer to, or its own frames are gone). What a slot without a row has
// there means nothing.
inline double* priorities_of(Header* header) {
    return reinterpret_cast<double*>(reinterpret_cast<char*>(header) + header->priorities_at);
}

// The mass of one new priority above 0. With ranks that is the mass of the place it takes, which
// the next one then cannot have: only for a priority that really is stored, and once.
inline double mass_of(Header* header, double priority) {
    Ranking* ranking = ranking_of(header);
    return ranking != nullptr ? take_place(ranking, priority, header->alpha) : std::pow(priority, header->alpha);
}

// The mass of the largest priority; for alpha or that priority has changed.
inline void renew_max_mass(Header* header) {
    header->max_mass = header->ranking_at != 0 ? 1.0 : std::pow(header->max_priority, header->alpha);
}

// The priority that a mass set from outside stands for, so that it outlives a change of alpha.
// Under alpha = 0, and by rank, masses do not tell: the row keeps its priority, or gets the
// largest.
inline double priority_for_mass(Header* header, int64_t slot, double mass) {
    const double before = priorities_of(header)[slot];
    if (mass == 0) return 0.0;
    if (header->ranking_at != 0 || header->alpha == 0) return before > 0 ? before : header->max_priority;
    if (before > 0 && std::pow(before, header->alpha) == mass) return before;
    const double limit = DBL_MAX / (2.0 * header->capacity + 128);
    return std::fmin(std::fmax(std::pow(mass, 1 / header->alpha), 5e-324), limit);
}

// Derives every mass from its row's priority, and the inner nodes from the masses. The caller holds
// the lock. Doing it twice does no harm. False if there is no memory to rank the rows: then their
// masses are of the ranks of the last time.
inline bool derive_masses(Header* header) {
    const Tree tree = tree_of(header);
    double* leaf = leaves_of(tree);
    const double* priority = priorities_of(header);
    renew_max_mass(header);
    for (int64_t i = 0; i < header->n_started; ++i) {
        const double before = load_relaxed(leaf + i);  // only changed under the lock, which we hold
        double mass = 0;
        if (priority[i] > 0 && is_published(load_relaxed(generation_of(header, i)))) {
            mass = header->ranking_at != 0 && before > 0 ? before : mass_of(header, priority[i]);
        }
        // [leaf] pairs with the acquire in Reader.read_rows
        if (mass != before) store_release(leaf + i, mass);
    }
    rebuild(tree);
    return header->ranking_at == 0 || rank_all(header, tree, priority, header->alpha);
}

// Sets the exponent. False, and nothing changed, if there is no memory to rank the rows.
inline bool set_alpha(Header* header, double alpha) {
    if (alpha == header->alpha) return true;
    if (header->ranking_at != 0) return rank_all(header, tree_of(header), priorities_of(header), alpha);
    // first: who repairs the block after our death finishes what follows
    store_release(&header->alpha, alpha);
    derive_masses(header);
    return true;
}

}  // namespace kary

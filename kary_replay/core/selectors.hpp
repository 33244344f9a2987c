// The selector of a block, and the parts of the block that it needs, by the kind of selection that
// the header's layout names.
#pragma once
#include <algorithm>
#include <new>

#include "proportional.hpp"
#include "ranked.hpp"
#include "uniform.hpp"

namespace kary {

// The layout of a block for so many slots, whose parts begin at `at`.
inline Layout layout_of(int64_t selection, int64_t capacity, int64_t row_nbytes, int arity,
                        int64_t at) {
    Layout layout{selection, capacity, row_nbytes, arity, 0, 0, 0, 0, 0, 0};
    const auto place = [&](int64_t nbytes) {
        const int64_t start = at;
        at += whole_lines(nbytes);
        return start;
    };
    if (selection != kUniform) {
        layout.tree_at = place(lay_out(nullptr, nullptr, capacity, arity));
        layout.priorities_at = place(capacity * sizeof(double));
        layout.counts_at = place((capacity + kGroup - 1) / kGroup * sizeof(uint32_t));
    }
    if (selection == kRanked) layout.ranking_at = place(sizeof(Ranking));
    layout.rows_at = at;
    layout.nbytes = at + capacity * row_nbytes;
    return layout;
}

// Where a selector is put: making one allocates nothing, for repair cannot do without.
struct SelectorSpace {
    alignas(Ranked) char bytes[std::max(sizeof(Uniform), sizeof(Ranked))];
};

// Makes the selector of a block whose layout is there.
inline Selector* make_selector(Header* header, SelectorSpace* space) {
    switch (header->layout.selection) {
        case kProportional: return new (space->bytes) Proportional(header);
        case kRanked: return new (space->bytes) Ranked(header);
        default: return new (space->bytes) Uniform(header);
    }
}

// Sets n masses in the tree of a block, or in a tree alone, whose leaves are at `leaf`. The caller
// holds the lock, and adds up the sums above.
inline void set_masses(Header* header, double* leaf, const int64_t* slot, const double* mass,
                       int64_t n) {
    if (header->layout.selection == kNoSelection) {
        // [leaf] release: pairs with the acquire in SumTree.sample (sum_tree.pyx)
        for (int64_t i = 0; i < n; ++i) store_release(leaf + slot[i], mass[i]);
        return;
    }
    SelectorSpace space;
    make_selector(header, &space)->set_masses(slot, mass, n);
}

}  // namespace kary

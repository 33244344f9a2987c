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
    Layout layout{selection, capacity, row_nbytes, arity, 0, 0, 0, 0, 0};
    const auto place = [&](int64_t nbytes) {
        const int64_t start = at;
        at += whole_lines(nbytes);
        return start;
    };
    if (selection != kUniform) {
        layout.tree_at = place(lay_out(nullptr, nullptr, capacity, arity));
        layout.priorities_at = place(capacity * sizeof(double));
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

// Stores the priorities that n masses stand for which somebody sets in the tree of a block; a tree
// alone has none. The caller holds the lock.
inline void take_masses(Header* header, const int64_t* slot, const double* mass, int64_t n) {
    if (header->layout.selection == kNoSelection) return;
    SelectorSpace space;
    make_selector(header, &space)->take_masses(slot, mass, n);
}

}  // namespace kary

// The loops of the K-ary sum tree, compiled once for each arity.
//
// Cython has no integer template parameters, and the whole speed of these loops comes from K being
// a constant: the scan of a group unrolls and has no branch. What the tree promises is stated in
// sum_tree.pxd.
//
//     level 0                 [ root ]
//     level 1        [ n0  n1  n2  n3 ]                     one group of K = 4 siblings
//     level 2    [ . . . . ][ . . . . ][ . . . . ][ . . . . ]   n1's children: the second group
//
// The children of node i are nodes K·i … K·i + K − 1 of the next level. Each level starts on a
// 64-byte boundary and is padded with zeros to whole groups, so a group of K ≤ 8 siblings never
// straddles two cache lines.
#pragma once
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>

#include "atomic.hpp"

namespace kary {

constexpr int kMaxLevels = 48;  // arity 2 and 2^47 leaves

struct Tree {
    double* level[kMaxLevels];   // first node of each level, root level first
    int64_t width[kMaxLevels];   // nodes in use there: without the padding
    int n_levels;
    int log2_arity;
};

inline double* leaves_of(const Tree& tree) { return tree.level[tree.n_levels - 1]; }

// The sum of all masses. [node] relaxed: a search is checked at its leaf, whatever total its prefix
// came from.
inline double total_of(const Tree& tree) { return load_relaxed(tree.level[0]); }

// The largest mass that each of so many leaves may have, so that no sum overflows: padding and
// rounding included, there are at most twice as many.
inline double largest_mass(int64_t capacity) { return DBL_MAX / (2.0 * capacity + 128); }

// Places the levels of a tree from `base` on, and returns the bytes that they take. With tree null,
// it only counts.
inline size_t lay_out(Tree* tree, char* base, int64_t capacity, int arity) {
    int64_t width[kMaxLevels];
    int n_levels = 0;
    for (int64_t nodes = capacity;; nodes = (nodes + arity - 1) / arity) {  // from the leaves up
        width[n_levels++] = nodes;
        if (n_levels > 1 && nodes == 1) break;
    }
    size_t offset = 0;
    for (int l = 0; l < n_levels; ++l) {  // from the root down
        const int64_t nodes = width[n_levels - 1 - l];
        const int64_t stored = l == 0 ? 1 : (nodes + arity - 1) / arity * arity;
        if (tree != nullptr) {
            tree->level[l] = reinterpret_cast<double*>(base + offset);
            tree->width[l] = nodes;
        }
        offset += (stored * sizeof(double) + 63) / 64 * 64;
    }
    if (tree != nullptr) {
        tree->n_levels = n_levels;
        tree->log2_arity = 0;
        while (1 << tree->log2_arity < arity) ++tree->log2_arity;
    }
    return offset;
}

// Siblings are added in blocks of at most eight, left to right, then the blocks, left to right. The
// sum of a group and the search in it use this one association, so that at rest a prefix below the
// parent ends inside the group.
template <int K>
inline double group_sum(const double* group) {
    if constexpr (K <= 8) {
        // [node] relaxed: a stale sibling can only misdirect a search that runs meanwhile, and what
        // a search returns is checked against the leaf and its slot; the lock makes every sibling
        // current for the writer itself.
        double sum = load_relaxed(group);
#pragma GCC unroll 8
        for (int j = 1; j < K; ++j) sum += load_relaxed(group + j);
        return sum;
    } else {
        double sum = group_sum<8>(group);
#pragma GCC unroll 8
        for (int j = 8; j < K; j += 8) sum += group_sum<8>(group + j);
        return sum;
    }
}

// The child that holds *prefix, which becomes the prefix within that child. The last child is never
// compared: at rest the prefix is below the parent, so it is the only one left. Where rounding or a
// writer broke that, the last child may be empty or padding, and whoever searched sees it at the
// leaf.
template <int K>
inline int64_t find_child(const double* group, double* prefix) {
    // siblings in a candidate: first a block of eight, then one of the eight
    constexpr int block = K <= 8 ? 1 : 8;
    constexpr int n = K / block;
    const double p = *prefix;
    double before[n];  // before[j]: sum of the candidates left of j
    before[0] = 0;
    int64_t j = 0;
#pragma GCC unroll 8
    for (int c = 0; c + 1 < n; ++c) {
        if constexpr (block == 1) {
            before[c + 1] = before[c] + load_relaxed(group + c);  // [node] see group_sum
        } else {
            before[c + 1] = before[c] + group_sum<8>(group + 8 * c);
        }
        j += p >= before[c + 1];
    }
    *prefix = p - before[j];
    if constexpr (block == 1) return j;
    else return 8 * j + find_child<8>(group + 8 * j, prefix);
}

#if KARY_PAIRS
// find_child<4> for two searches at once, in the two halves of vector registers: the same additions
// and comparisons.
inline void find_two_children(const double* level, double* prefix, int64_t* node) {
    const double* left = level + node[0] * 4;
    const double* right = level + node[1] * 4;
    const __m128d p = _mm_loadu_pd(prefix);
    const __m128d one = load_relaxed(left, right);  // [node] see group_sum, here and below
    const __m128d two = _mm_add_pd(one, load_relaxed(left + 1, right + 1));
    const __m128d three = _mm_add_pd(two, load_relaxed(left + 2, right + 2));
    // all bits set, which is also the integer -1, or none
    const __m128d past_one = _mm_cmpge_pd(p, one);
    const __m128d past_two = _mm_cmpge_pd(p, two);
    const __m128d past_three = _mm_cmpge_pd(p, three);
    __m128i n_past = _mm_add_epi64(_mm_castpd_si128(past_two), _mm_castpd_si128(past_three));
    n_past = _mm_add_epi64(_mm_castpd_si128(past_one), n_past);
    // The sums ascend, so the largest one passed is the last one passed.
    __m128d before = _mm_max_pd(_mm_and_pd(past_one, one), _mm_and_pd(past_two, two));
    before = _mm_max_pd(before, _mm_and_pd(past_three, three));
    auto* nodes = reinterpret_cast<__m128i*>(node);
    _mm_storeu_si128(nodes, _mm_sub_epi64(_mm_slli_epi64(_mm_loadu_si128(nodes), 2), n_past));
    _mm_storeu_pd(prefix, _mm_sub_pd(p, before));
}
#endif

// Padding has no children. A search that rounding or a writer sent there belongs to the right end
// of the last node before it.
inline void stay_inside(int64_t last, double* prefix, int64_t* node) {
    if (*node <= last) return;
    *node = last;
    *prefix = HUGE_VAL;
}

template <int K, bool kPadded, class Ask>
inline void descend_level(const Tree& tree, int l, double* prefix, int64_t* node, int64_t n,
                          Ask ask) {
    const double* level = tree.level[l];
    const int64_t last = tree.width[l] - 1;
    const auto arrive = [&](int64_t i) {
        if constexpr (kPadded) stay_inside(last, prefix + i, node + i);
        ask(node[i]);
    };
    int64_t i = 0;
#if KARY_PAIRS
    if constexpr (K == 4) {
        for (; i + 2 <= n; i += 2) {
            find_two_children(level, prefix + i, node + i);
            arrive(i);
            arrive(i + 1);
        }
    }
#endif
    for (; i < n; ++i) {
        node[i] = node[i] * K + find_child<K>(level + node[i] * K, prefix + i);
        arrive(i);
    }
}

// The same for prefixes in ascending order: the searches that stand at one node follow each other,
// and so do those that go on to one of its children. It is worth it only near the root, where many
// searches share a node.
template <int K>
inline void descend_runs(const Tree& tree, int l, double* prefix, int64_t* node, int64_t n) {
    const int64_t last = tree.width[l] - 1;
    for (int64_t i = 0; i < n;) {
        const int64_t parent = node[i];
        const double* group = tree.level[l] + parent * K;
        double before[K];
        before[0] = 0;
        // [node] see group_sum
        for (int c = 0; c + 1 < K; ++c) before[c + 1] = before[c] + load_relaxed(group + c);
        for (int c = 0; i < n && node[i] == parent; ++i) {
            while (c + 1 < K && prefix[i] >= before[c + 1]) ++c;
            prefix[i] -= before[c];
            node[i] = parent * K + c;
            stay_inside(last, prefix + i, node + i);
        }
    }
}

// Descends n searches together, one level at a time, and prefetches each one's next group, so that
// the cache misses of a level overlap instead of queueing up behind each other. It uses up `prefix`
// and leaves each search's leaf, always one of the tree's own, in `node`. `density`: if the
// prefixes ascend, how many there would be in the whole tree, else 0. `ask` is told each leaf as
// soon as it is found.
template <int K, class Ask>
void descend(const Tree& tree, double* prefix, int64_t* node, int64_t n, int64_t density,
             Ask ask) {
    const int leaves = tree.n_levels - 1;
    for (int64_t i = 0; i < n; ++i) node[i] = 0;
    for (int l = 1; l < leaves; ++l) {
        const double* below = tree.level[l + 1];
        const auto next = [below](int64_t at) __attribute__((always_inline)) {
            for (int j = 0; j < K; j += 8) prefetch_far(below + at * K + j);
        };
        if (K <= 8 && tree.width[l] <= density / 8) descend_runs<K>(tree, l, prefix, node, n);
        else if (tree.width[l] % K != 0) descend_level<K, true>(tree, l, prefix, node, n, next);
        else descend_level<K, false>(tree, l, prefix, node, n, next);
    }
    descend_level<K, true>(tree, leaves, prefix, node, n, ask);
}

// The last leaf with mass at or left of `leaf`, or -1: where a search should have ended whose leaf
// is empty, at rest.
template <int K>
int64_t last_with_mass(const Tree& tree, int64_t leaf) {
    int l = tree.n_levels - 1;
    int64_t node = leaf;
    while (load_relaxed(tree.level[l] + node) <= 0) {  // [node] see group_sum, here and below
        while (node % K == 0) {  // nothing is left of it in its group: look left of its parent
            if (l == 0) return -1;
            node /= K;
            --l;
        }
        if (l == 0) return -1;
        --node;
    }
    for (; l + 1 < tree.n_levels; ++l) {
        const double* children = tree.level[l + 1] + node * K;
        int64_t j = K - 1;
        while (load_relaxed(children + j) <= 0) {
            if (--j < 0) return -1;
        }
        node = node * K + j;
    }
    return node;
}

template <int K>
inline void recompute_node(double* parents, const double* children, int64_t node) {
    // [node] relaxed: see group_sum
    store_relaxed(parents + node, group_sum<K>(children + node * K));
}

// Recomputes every ancestor of the n given leaves. The caller holds the lock. `node` is used up as
// scratch.
template <int K>
void recompute(const Tree& tree, int64_t* node, int64_t n) {
    bool merging = true;  // neighbours share parents: a run of slots, or indices in order
    for (int l = tree.n_levels - 2; l >= 0; --l) {
        double* parents = tree.level[l];
        const double* children = tree.level[l + 1];
        if (n >= tree.width[l]) {  // near the root: each node once beats each path once
            for (int64_t i = 0; i < tree.width[l]; ++i) recompute_node<K>(parents, children, i);
            continue;
        }
        if (merging) {
            int64_t m = 0, last = -1;
            for (int64_t i = 0; i < n; ++i) {
                const int64_t parent = node[i] / K;
                if (parent != last) node[m++] = last = parent;
            }
            merging = m <= n - n / 8;
            n = m;
            for (int64_t i = 0; i < n; ++i) recompute_node<K>(parents, children, node[i]);
        } else {
            for (int64_t i = 0; i < n; ++i) recompute_node<K>(parents, children, node[i] /= K);
        }
    }
}

// Recomputes every ancestor of the leaves first … last. The caller holds the lock.
template <int K>
void recompute_run(const Tree& tree, int64_t first, int64_t last) {
    for (int l = tree.n_levels - 2; l >= 0; --l) {
        first /= K;
        last /= K;
        for (int64_t i = first; i <= last; ++i) {
            recompute_node<K>(tree.level[l], tree.level[l + 1], i);
        }
    }
}

// Recomputes every inner node.
template <int K>
void rebuild(const Tree& tree) {
    for (int l = tree.n_levels - 2; l >= 0; --l) {
        double* parents = tree.level[l];
        const double* children = tree.level[l + 1];
        for (int64_t i = 0; i < tree.width[l]; ++i) recompute_node<K>(parents, children, i);
    }
}

// The same functions for an arity known at run time.
#define KARY_FOR_ARITY(call)                    \
    switch (tree.log2_arity) {                  \
        case 1: { constexpr int K = 2; call; break; }   \
        case 2: { constexpr int K = 4; call; break; }   \
        case 3: { constexpr int K = 8; call; break; }   \
        case 4: { constexpr int K = 16; call; break; }  \
        case 5: { constexpr int K = 32; call; break; }  \
        default: { constexpr int K = 64; call; break; } \
    }

template <class Ask>
inline void descend(const Tree& tree, double* prefix, int64_t* node, int64_t n, int64_t density,
                    Ask ask) {
    KARY_FOR_ARITY(descend<K>(tree, prefix, node, n, density, ask))
}
inline void recompute(const Tree& tree, int64_t* node, int64_t n) {
    KARY_FOR_ARITY(recompute<K>(tree, node, n))
}
inline void recompute_run(const Tree& tree, int64_t first, int64_t last) {
    KARY_FOR_ARITY(recompute_run<K>(tree, first, last))
}
inline void rebuild(const Tree& tree) { KARY_FOR_ARITY(rebuild<K>(tree)) }
inline int64_t last_with_mass(const Tree& tree, int64_t leaf) {
    KARY_FOR_ARITY(return last_with_mass<K>(tree, leaf))
    return -1;
}
inline double group_sum(const Tree& tree, const double* group) {
    KARY_FOR_ARITY(return group_sum<K>(group))
    return 0;
}
inline int64_t find_child(const Tree& tree, const double* group, double* prefix) {
    KARY_FOR_ARITY(return find_child<K>(group, prefix))
    return 0;
}
#undef KARY_FOR_ARITY

// Searches that descend together: their groups fit into the first-level cache.
constexpr int64_t kSearches = 256;

// Descends any number of searches. A writer may have emptied a leaf that one ends at.
template <class Ask>
inline void search(const Tree& tree, double* prefix, int64_t* leaf, int64_t n, int64_t density,
                   Ask ask) {
    for (int64_t i = 0; i < n; i += kSearches) {
        descend(tree, prefix + i, leaf + i, std::min(kSearches, n - i), density, ask);
    }
}

// For searches whose leaves nobody reads.
inline void search(const Tree& tree, double* prefix, int64_t* leaf, int64_t n, int64_t density) {
    search(tree, prefix, leaf, n, density, [](int64_t) {});
}

}  // namespace kary

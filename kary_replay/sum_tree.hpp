// The loops of the K-ary sum tree, compiled once for each arity.
//
// Cython has no integer template parameters, and the whole speed of these loops comes from K being a constant: the scan
// of a group unrolls and has no branch. What the tree promises is stated in sum_tree.pxd.
//
//     level 0                 [ root ]
//     level 1        [ n0  n1  n2  n3 ]                     one group of K = 4 siblings
//     level 2    [ . . . . ][ . . . . ][ . . . . ][ . . . . ]   the children of n1 are the second group
//
// The children of node i are nodes K·i … K·i + K − 1 of the next level. Each level starts on a 64-byte boundary and is
// padded with zeros to whole groups, so a group of K ≤ 8 siblings never straddles two cache lines.
#pragma once
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

// Siblings are added in blocks of at most eight, left to right, then the blocks, left to right. The sum of a group and
// the search in it must use this one association: then prefix < parent implies that the search ends inside the group.
template <int K>
inline double group_sum(const double* group) {
    if constexpr (K <= 8) {
        // [node] relaxed: a stale sibling can only misdirect a search that runs meanwhile, and what a search returns
        // is checked against the leaf and its slot; the lock makes every sibling current for the writer itself.
        double sum = load_relaxed(group);
        for (int j = 1; j < K; ++j) sum += load_relaxed(group + j);
        return sum;
    } else {
        double sum = group_sum<8>(group);
        for (int j = 8; j < K; j += 8) sum += group_sum<8>(group + j);
        return sum;
    }
}

// The last child with mass, for a prefix at or beyond the group's sum: rounding on the way down, or a writer meanwhile.
// -1 where every child is empty (a writer meanwhile).
template <int K>
int last_child(const double* group, double* prefix) {
    for (int j = K - 1; j >= 0; --j) {
        const double mass = load_relaxed(group + j);  // [node] see group_sum
        if (mass > 0) {
            *prefix = mass;  // at or beyond the child's sum too, so its last descendant follows
            return j;
        }
    }
    return -1;
}

// The child that holds *prefix, which becomes the prefix within that child.
template <int K>
inline int find_child(const double* group, double* prefix) {
    constexpr int n = K <= 8 ? K : K / 8;     // candidates in this step: siblings, or blocks of eight
    constexpr int block = K <= 8 ? 1 : 8;
    double before[n + 1];                     // before[j] = sum of the candidates left of j
    before[0] = 0;
    const double p = *prefix;
    int j = 0;
    double sum = 0;
    for (int c = 0; c < n; ++c) {
        double mass;
        if constexpr (block == 1) mass = load_relaxed(group + c);  // [node] see group_sum
        else mass = group_sum<8>(group + 8 * c);
        sum = c == 0 ? mass : sum + mass;
        before[c + 1] = sum;
        j += p >= sum;
    }
    if (__builtin_expect(j == n, 0)) return last_child<K>(group, prefix);
    *prefix = p - before[j];
    if constexpr (block == 1) {
        return j;
    } else {
        const int child = find_child<8>(group + 8 * j, prefix);
        return child < 0 ? -1 : 8 * j + child;
    }
}

// Descends n searches together, one level at a time, and prefetches each one's next group: the cache misses of a level
// overlap instead of queueing up behind each other.
template <int K>
void descend(const Tree& tree, double* prefix, int64_t* node, int64_t n) {
    for (int64_t i = 0; i < n; ++i) node[i] = 0;
    for (int l = 1; l < tree.n_levels; ++l) {
        const double* level = tree.level[l];
        const double* next = l + 1 < tree.n_levels ? tree.level[l + 1] : nullptr;
        for (int64_t i = 0; i < n; ++i) {
            if (node[i] < 0) continue;
            const int64_t first = node[i] * K;
            const int child = find_child<K>(level + first, prefix + i);
            node[i] = child < 0 ? -1 : first + child;
            if (next != nullptr && child >= 0) {
                for (int j = 0; j < K; j += 8) prefetch(next + node[i] * K + j);
            }
        }
    }
}

// Recomputes every ancestor of the n given leaves. The caller holds the lock. `node` is used up as scratch.
template <int K>
void recompute(const Tree& tree, int64_t* node, int64_t n) {
    for (int l = tree.n_levels - 2; l >= 0; --l) {
        int64_t m = 0, last = -1;
        for (int64_t i = 0; i < n; ++i) {
            const int64_t parent = node[i] >> tree.log2_arity;
            if (parent != last) node[m++] = last = parent;
        }
        n = m;
        if (n >= tree.width[l]) {  // near the root: each node once beats each path once
            n = tree.width[l];
            for (int64_t i = 0; i < n; ++i) node[i] = i;
        }
        double* parents = tree.level[l];
        const double* children = tree.level[l + 1];
        for (int64_t i = 0; i < n; ++i) {
            // [node] relaxed: see group_sum
            store_relaxed(parents + node[i], group_sum<K>(children + node[i] * K));
        }
    }
}

// Recomputes every inner node.
template <int K>
void rebuild(const Tree& tree) {
    for (int l = tree.n_levels - 2; l >= 0; --l) {
        for (int64_t i = 0; i < tree.width[l]; ++i) {
            store_relaxed(tree.level[l] + i, group_sum<K>(tree.level[l + 1] + i * K));  // [node] see group_sum
        }
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

inline void descend(const Tree& tree, double* prefix, int64_t* node, int64_t n) {
    KARY_FOR_ARITY(descend<K>(tree, prefix, node, n))
}
inline void recompute(const Tree& tree, int64_t* node, int64_t n) { KARY_FOR_ARITY(recompute<K>(tree, node, n)) }
inline void rebuild(const Tree& tree) { KARY_FOR_ARITY(rebuild<K>(tree)) }
inline double group_sum(const Tree& tree, const double* group) {
    KARY_FOR_ARITY(return group_sum<K>(group))
    return 0;
}
#undef KARY_FOR_ARITY

}  // namespace kary

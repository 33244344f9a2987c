// A sum tree whose arity, layout and order of descent can each be changed alone.
//
// Independent of kary_replay on purpose: the package has only the variant that won. Loads and
// stores of nodes are relaxed atomics in every variant, as they must be where searches take no
// lock; what differs is named in the template parameters.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <new>
#include <sys/mman.h>

namespace ablation {

// [node] relaxed: one thread writes here, or a lock orders the writers; a stale node can only
// misdirect a search.
inline double load(const double* p) {
    double value;
    __atomic_load(p, &value, __ATOMIC_RELAXED);
    return value;
}
#if defined(__x86_64__)
// the same move without GCC's detour through an integer register
inline double load_node(const double* p) {
    double value;
    __asm__("movsd %1, %0" : "=x"(value) : "m"(*p));
    return value;
}
#else
inline double load_node(const double* p) { return load(p); }
#endif
inline void store(double* p, double value) { __atomic_store(p, &value, __ATOMIC_RELAXED); }

// Zeroed memory on huge pages where the system grants them, so that no variant pays for address
// translation alone.
inline char* allocate(size_t nbytes) {
    const size_t page = size_t(2) << 20, rounded = (nbytes + page - 1) / page * page;
    char* memory = static_cast<char*>(std::aligned_alloc(page, rounded));
    if (memory == nullptr) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
    madvise(memory, rounded, MADV_HUGEPAGE);
#endif
    return memory;
}

// aligned: every level starts on a cache line, so a group of K ≤ 8 siblings lies in one line.
// naive:   one flat array in which the children of node i are K·i + 1 … K·i + K. The levels are the
//          same, but level l starts at node (K^l − 1) / (K − 1), so groups straddle cache lines:
//          half of them for K = 4, all for K = 8.
struct Tree {
    double* level[48];
    int64_t width[48];
    int n_levels = 0;
    int log2_arity = 0;
    bool is_aligned = true;
    char* memory = nullptr;

    Tree(int64_t n_leaves, int log2_k, bool aligned) : log2_arity(log2_k), is_aligned(aligned) {
        const int64_t arity = int64_t(1) << log2_k;
        int64_t widths[48], nodes = n_leaves;
        for (;;) {
            widths[n_levels++] = nodes;
            if (nodes == 1) break;
            nodes = (nodes + arity - 1) / arity;
        }
        size_t offset[48], end = 0;
        // nodes of this level in the complete tree, which is what the naive layout numbers
        int64_t full = 1;
        for (int l = 0; l < n_levels; ++l, full *= arity) {
            width[l] = widths[n_levels - 1 - l];
            const size_t stored = (width[l] + arity - 1) / arity * arity * sizeof(double);
            offset[l] = end;
            end += is_aligned ? (stored + 63) / 64 * 64 : full * sizeof(double);
        }
        // The naive layout's last level needs only its used part.
        const int last = n_levels - 1;
        memory = allocate(offset[last] + (width[last] + 2 * arity) * sizeof(double) + 64);
        for (int l = 0; l < n_levels; ++l) {
            level[l] = reinterpret_cast<double*>(memory + offset[l]);
            const int64_t stored = l == 0 ? 1 : (width[l] + arity - 1) / arity * arity;
            for (int64_t i = 0; i < stored; ++i) level[l][i] = 0;
        }
    }
    ~Tree() { std::free(memory); }
    Tree(const Tree&) = delete;
    Tree& operator=(const Tree&) = delete;

    double* leaves() const { return level[n_levels - 1]; }
};

// Above eight siblings, blocks of eight: the sum of a group and the search in it must add in one
// order.
template <int K>
inline double group_sum(const double* group) {
    if constexpr (K <= 8) {
        double sum = load_node(group);
#pragma GCC unroll 8
        for (int j = 1; j < K; ++j) sum += load_node(group + j);
        return sum;
    } else {
        double sum = group_sum<8>(group);
        for (int j = 8; j < K; j += 8) sum += group_sum<8>(group + j);
        return sum;
    }
}

// The child that holds *prefix, which becomes the prefix within it. The last one needs no
// comparison: a prefix below the parent has nowhere else to go. Above eight siblings: first the
// block of eight, then one of the eight.
template <int K>
inline int64_t find_child(const double* group, double* prefix) {
    constexpr int block = K <= 8 ? 1 : 8, n = K / block;
    const double p = *prefix;
    double before[n];
    int64_t j = 0;
    before[0] = 0;
#pragma GCC unroll 8
    for (int c = 0; c + 1 < n; ++c) {
        const double sum = block == 1 ? load_node(group + c) : group_sum<block>(group + block * c);
        before[c + 1] = before[c] + sum;
        j += p >= before[c + 1];
    }
    *prefix = p - before[j];
    if constexpr (block == 1) return j;
    else return 8 * j + find_child<8>(group + 8 * j, prefix);
}

// Every line of the group, without a branch on where it begins: one for each eight siblings, and
// where groups straddle lines the one of the last sibling.
template <int K, bool IS_ALIGNED>
inline void prefetch_group(const double* group) {
    for (int j = 0; j < K; j += 8) __builtin_prefetch(group + j, 0, 3);
    if (!IS_ALIGNED) __builtin_prefetch(group + K - 1, 0, 3);
}

enum Order { ONE_AT_A_TIME = 0, BY_LEVEL = 1, BY_LEVEL_PREFETCH = 2 };

template <int K, int ORDER, bool IS_ALIGNED>
void descend(const Tree& tree, double* prefix, int64_t* node, int64_t n) {
    if constexpr (ORDER == ONE_AT_A_TIME) {
        for (int64_t i = 0; i < n; ++i) {
            int64_t at = 0;
            for (int l = 1; l < tree.n_levels; ++l) {
                at = at * K + find_child<K>(tree.level[l] + at * K, prefix + i);
                // rounding may lead into the padding
                at = at < tree.width[l] ? at : tree.width[l] - 1;
            }
            node[i] = at;
        }
    } else {
        for (int64_t i = 0; i < n; ++i) node[i] = 0;
        for (int l = 1; l < tree.n_levels; ++l) {
            const double* level = tree.level[l];
            const double* next = l + 1 < tree.n_levels ? tree.level[l + 1] : nullptr;
            const int64_t last = tree.width[l] - 1;
            for (int64_t i = 0; i < n; ++i) {
                int64_t at = node[i] * K + find_child<K>(level + node[i] * K, prefix + i);
                at = at < last ? at : last;
                node[i] = at;
                if (ORDER == BY_LEVEL_PREFETCH && next != nullptr) {
                    prefetch_group<K, IS_ALIGNED>(next + at * K);
                }
            }
        }
    }
}

// Recomputes the ancestors of the leaves in `node`, which is used up; neighbours with one parent
// count once.
template <int K>
void recompute(const Tree& tree, int64_t* node, int64_t n) {
    bool merging = true;
    for (int l = tree.n_levels - 2; l >= 0; --l) {
        double* parents = tree.level[l];
        const double* children = tree.level[l + 1];
        if (n >= tree.width[l]) {
            for (int64_t i = 0; i < tree.width[l]; ++i) {
                store(parents + i, group_sum<K>(children + i * K));
            }
            continue;
        }
        int64_t m = 0, last = -1;
        for (int64_t i = 0; merging && i < n; ++i) {
            const int64_t parent = node[i] / K;
            if (parent != last) node[m++] = last = parent;
        }
        if (merging) {
            merging = m <= n - n / 8;
            n = m;
            for (int64_t i = 0; i < n; ++i) {
                store(parents + node[i], group_sum<K>(children + node[i] * K));
            }
        } else {
            for (int64_t i = 0; i < n; ++i) {
                node[i] /= K;
                store(parents + node[i], group_sum<K>(children + node[i] * K));
            }
        }
    }
}

template <int K>
void rebuild(const Tree& tree) {
    for (int l = tree.n_levels - 2; l >= 0; --l)
        for (int64_t i = 0; i < tree.width[l]; ++i) {
            store(tree.level[l] + i, group_sum<K>(tree.level[l + 1] + i * K));
        }
}

template <int K>
void descend_as(const Tree& tree, int order, double* prefix, int64_t* node, int64_t n) {
    if (order == ONE_AT_A_TIME) descend<K, ONE_AT_A_TIME, true>(tree, prefix, node, n);
    else if (order == BY_LEVEL) descend<K, BY_LEVEL, true>(tree, prefix, node, n);
    else if (tree.is_aligned) descend<K, BY_LEVEL_PREFETCH, true>(tree, prefix, node, n);
    else descend<K, BY_LEVEL_PREFETCH, false>(tree, prefix, node, n);
}

#define ABLATION_FOR_ARITY(call)                        \
    switch (tree.log2_arity) {                          \
        case 1: { constexpr int K = 2; call; break; }   \
        case 2: { constexpr int K = 4; call; break; }   \
        case 3: { constexpr int K = 8; call; break; }   \
        case 4: { constexpr int K = 16; call; break; }  \
        case 5: { constexpr int K = 32; call; break; }  \
        default: { constexpr int K = 64; call; break; } \
    }

// The batches one after the other, as separate calls would do them.
inline void descend_batches(const Tree& tree, int order, double* prefix, int64_t* node,
                            int64_t n_batches, int64_t batch) {
    for (int64_t b = 0; b < n_batches; ++b)
        ABLATION_FOR_ARITY(descend_as<K>(tree, order, prefix + b * batch, node + b * batch, batch))
}

inline void update_batches(const Tree& tree, int64_t* index, const double* mass, int64_t n_batches,
                           int64_t batch) {
    for (int64_t b = 0; b < n_batches; ++b) {
        for (int64_t i = b * batch; i < (b + 1) * batch; ++i) {
            store(tree.leaves() + index[i], mass[i]);
        }
        ABLATION_FOR_ARITY(recompute<K>(tree, index + b * batch, batch))
    }
}

inline void rebuild_all(const Tree& tree) { ABLATION_FOR_ARITY(rebuild<K>(tree)) }

}  // namespace ablation

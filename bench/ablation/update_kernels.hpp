// Two ways for several threads to set batches of leaves in one tree of arity 4.
//
//   recompute under a lock   float64 masses; the leaves are stored and their ancestors recomputed
//                            inside one short lock
//   lock-free, fixed point   uint64 masses; the leaf is exchanged and the difference added to every
//                            ancestor, without a lock. They are integers, because only the sums of
//                            integers are the same in every order; a mass is a multiple of 2^-20.
#pragma once
#include <cmath>

#include "lock_kernels.hpp"

namespace ablation {

enum Update { RECOMPUTE = 0, FIXED_POINT = 1 };

class UpdateRace {
public:
    explicit UpdateRace(int64_t capacity)
        : capacity_(capacity), tree_(capacity, 2, true), fixed_(capacity, 2, true) {}

    double rate(int kind, int n_threads, int64_t batch, double seconds) {
        return race(n_threads, seconds, [&](int number) {
            return [this, kind, batch,
                    random = Random{0x9E3779B97F4A7C15ULL * (number + 1)},
                    node = std::vector<int64_t>(batch),
                    mass = std::vector<double>(batch)]() mutable {
                for (int64_t i = 0; i < batch; ++i) {
                    node[i] = static_cast<int64_t>(random() * capacity_);
                    mass[i] = random();
                }
                if (kind == RECOMPUTE) recompute_under_lock(node.data(), mass.data(), batch);
                else add_differences(node.data(), mass.data(), batch);
            };
        });
    }

    // Whether every node of the fixed-point tree is the sum of its children.
    bool is_exact() const {
        for (int l = 0; l + 1 < fixed_.n_levels; ++l)
            for (int64_t i = 0; i < fixed_.width[l]; ++i) {
                uint64_t sum = 0;
                for (int j = 0; j < 4; ++j) sum += *word(l + 1, 4 * i + j);
                if (sum != *word(l, i)) return false;
            }
        return true;
    }

private:
    void recompute_under_lock(int64_t* node, const double* mass, int64_t n) {
        lock_.acquire();
        for (int64_t i = 0; i < n; ++i) store(tree_.leaves() + node[i], mass[i]);
        recompute<4>(tree_, node, n);
        lock_.release();
    }

    void add_differences(int64_t* node, const double* mass, int64_t n) {
        std::vector<uint64_t>& difference = scratch();
        difference.resize(n);
        int l = fixed_.n_levels - 1;
        for (int64_t i = 0; i < n; ++i) {
            const uint64_t fixed = static_cast<uint64_t>(std::llround(std::ldexp(mass[i], 20)));
            // relaxed, here and below: sums are exact at rest, and nobody reads them meanwhile
            difference[i] = fixed - __atomic_exchange_n(word(l, node[i]), fixed, __ATOMIC_RELAXED);
        }
        // level by level, so that the misses of a level overlap as far as locked instructions let
        // them
        while (l-- > 0) {
            for (int64_t i = 0; i < n; ++i) {
                node[i] >>= 2;
                __atomic_fetch_add(word(l, node[i]), difference[i], __ATOMIC_RELAXED);
            }
        }
    }

    static std::vector<uint64_t>& scratch() {
        thread_local std::vector<uint64_t> words;
        return words;
    }
    uint64_t* word(int l, int64_t i) const {
        return reinterpret_cast<uint64_t*>(fixed_.level[l] + i);
    }

    int64_t capacity_;
    Tree tree_, fixed_;  // fixed_: the same layout, its nodes taken for integers
    Lock lock_;
};

}  // namespace ablation

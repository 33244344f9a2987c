// How fast can the memory traffic of a call be? Loops that read and write what the buffer has to,
// and do nothing else: no interpreter, no lock, no powers, no new arrays, no second look at a row.
//
// The tree has eight children a node, and a group of them is one cache line of running sums: a
// search compares all eight at once, and an update adds to those from the child on. A row has a
// generation and 165 bytes of five fields, as HalfCheetah's. Masses are whole multiples of UNIT, so
// that their sums are exact and no update has to begin anew. Compiled for the machine at hand.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "lock_kernels.hpp"

namespace ablation {

class Limit {
public:
    // Row i holds i in every word, and mass[i], rounded to UNIT.
    Limit(int64_t capacity, const double* mass) : capacity_(capacity) {
        int64_t widths[24], n = capacity;
        do {
            n = (n + ARITY - 1) / ARITY;
            widths[n_levels_++] = n;
        } while (n > 1);
        std::vector<double> sums(mass, mass + capacity), parents;
        for (double& sum : sums) sum = std::max(1.0, std::round(sum / UNIT)) * UNIT;
        for (int l = n_levels_ - 1; l >= 0; --l) {
            const int64_t width = widths[n_levels_ - 1 - l];
            level_[l] = reinterpret_cast<double*>(allocate(width * ARITY * sizeof(double)));
            parents.assign(width, 0);
            for (int64_t i = 0; i < width * ARITY; ++i) {
                double& parent = parents[i / ARITY];
                if (i < static_cast<int64_t>(sums.size())) parent += sums[i];
                level_[l][i] = parent;
            }
            sums = parents;
        }
        priority_ = reinterpret_cast<double*>(allocate(capacity * sizeof(double)));
        row_ = reinterpret_cast<Row*>(allocate(capacity * sizeof(Row)));
        for (int64_t i = 0; i < capacity; ++i) {
            row_[i].generation = 2;
            for (uint64_t& word : row_[i].word) word = i;
        }
    }
    ~Limit() {
        for (int l = 0; l < n_levels_; ++l) std::free(level_[l]);
        std::free(priority_);
        std::free(row_);
    }
    Limit(const Limit&) = delete;
    Limit& operator=(const Limit&) = delete;

    double total() const { return level_[0][ARITY - 1]; }

    // Draws stratified, and copies the rows into arrays of their fields.
    void sample(int64_t n) {
        make_room(n);
        const double step = total() / n;
        for (int64_t i = 0; i < n; ++i) prefix_[i] = (i + random_()) * step;
        for (int64_t i = 0; i < n; i += BATCH) descend(i, std::min(n, i + BATCH));
        copy(n);
    }

    // The same with uniform draws, which need no tree.
    void sample_uniform(int64_t n) {
        make_room(n);
        for (int64_t i = 0; i < n; ++i) {
            node_[i] = static_cast<int64_t>(random_() * capacity_);
            prefetch_row(node_[i]);
        }
        copy(n);
    }

    // Sets priorities and masses of rows whose generation is the given one.
    void update(const int64_t* index, const double* mass, int64_t n, uint64_t generation) {
        for (int64_t i = 0; i < n; ++i) prefetch_path(index[i]);
        for (int64_t i = 0; i < n; ++i) {
            if (row_[index[i]].generation != generation) continue;
            priority_[index[i]] = mass[i];
            set(index[i], mass[i]);
        }
    }

    // Writes n rows at the next places, each with a new generation and the same mass.
    void add(const char* const* field, int64_t n, double mass) {
        const char* from[N_FIELDS];
        std::copy(field, field + N_FIELDS, from);
        while (n > 0) {
            const int64_t n_here = std::min(n, capacity_ - next_);
            for (int64_t i = next_; i < next_ + n_here; ++i) {
                row_[i].generation += 2;
                write_field<0>(reinterpret_cast<char*>(row_[i].word), from);
            }
            std::fill(priority_ + next_, priority_ + next_ + n_here, mass);
            set_run(next_, n_here, mass);
            next_ = next_ + n_here == capacity_ ? 0 : next_ + n_here;
            n -= n_here;
        }
    }

    // Whether the batch drawn last has the rows it names, and the masses of the tree.
    bool is_right(int64_t n) const {
        for (int64_t i = 0; i < n; ++i) {
            uint64_t word;
            std::memcpy(&word, &field_[0][i * FIELD_BYTES[0]], sizeof word);
            if (word != static_cast<uint64_t>(node_[i]) || generation_[i] != 2) return false;
            if (mass_[i] != mass_of(node_[i])) return false;
        }
        return true;
    }

    double mass_of(int64_t at) const {
        const double* sums = level_[n_levels_ - 1] + at;
        return at % ARITY ? sums[0] - sums[-1] : sums[0];
    }

    static constexpr double UNIT = 0x1p-20;

private:
    static constexpr int64_t ARITY = 8, BATCH = 256, N_FIELDS = 5;
    static constexpr int64_t FIELD_BYTES[N_FIELDS] = {68, 24, 4, 68, 1};

    typedef double Group __attribute__((vector_size(ARITY * sizeof(double)), may_alias));
    static constexpr Group CHANGE[ARITY] = {  // which sums a child takes part in
        {1, 1, 1, 1, 1, 1, 1, 1}, {0, 1, 1, 1, 1, 1, 1, 1}, {0, 0, 1, 1, 1, 1, 1, 1},
        {0, 0, 0, 1, 1, 1, 1, 1}, {0, 0, 0, 0, 1, 1, 1, 1}, {0, 0, 0, 0, 0, 1, 1, 1},
        {0, 0, 0, 0, 0, 0, 1, 1}, {0, 0, 0, 0, 0, 0, 0, 1}};

    // The child whose part of the group holds the prefix: as many of the sums lie before it.
    static int64_t find(const double* group, double prefix) {
#if defined(__AVX512F__)
        const __mmask8 before = _mm512_cmp_pd_mask(_mm512_set1_pd(prefix), _mm512_load_pd(group),
                                                   _CMP_GE_OQ);
        return __builtin_popcount(before & 0x7F);
#elif defined(__AVX2__)
        const __m256d p = _mm256_set1_pd(prefix);
        const int low =
            _mm256_movemask_pd(_mm256_cmp_pd(p, _mm256_load_pd(group), _CMP_GE_OQ));
        const int high =
            _mm256_movemask_pd(_mm256_cmp_pd(p, _mm256_load_pd(group + 4), _CMP_GE_OQ));
        return __builtin_popcount((low | high << 4) & 0x7F);
#else
        int64_t before = 0;
        for (int j = 0; j < ARITY - 1; ++j) before += prefix >= group[j];
        return before;
#endif
    }

    // Level by level, the next group on its way while the others are searched; last the rows.
    void descend(int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) node_[i] = 0;
        for (int l = 0; l < n_levels_; ++l) {
            const double* next = l + 1 < n_levels_ ? level_[l + 1] : nullptr;
            for (int64_t i = begin; i < end; ++i) {
                const double* group = level_[l] + node_[i] * ARITY;
                const int64_t child = find(group, prefix_[i]);
                const double before = child ? group[child - 1] : 0.0;
                node_[i] = node_[i] * ARITY + child;
                prefix_[i] -= before;
                if (next != nullptr) {
                    prefetch(next + node_[i] * ARITY);
                } else {
                    mass_[i] = group[child] - before;
                    prefetch_row(node_[i]);
                }
            }
        }
    }

    void copy(int64_t n) {
        for (int64_t i = 0; i < n; ++i) {
            const Row& row = row_[node_[i]];
            const char* from = reinterpret_cast<const char*>(row.word);
            generation_[i] = row.generation;
            copy_field<0>(from, i);
        }
    }

    template <int F>
    void copy_field(const char* from, int64_t i) {
        std::memcpy(&field_[F][i * FIELD_BYTES[F]], from, FIELD_BYTES[F]);
        if constexpr (F + 1 < N_FIELDS) copy_field<F + 1>(from + FIELD_BYTES[F], i);
    }

    void set(int64_t at, double mass) {
        const double change = mass - mass_of(at);
        for (int l = n_levels_ - 1; l >= 0; --l) {
            Group& group = reinterpret_cast<Group*>(level_[l])[at / ARITY];
            group += CHANGE[at % ARITY] * change;
            at /= ARITY;
        }
    }

    // The same for neighbours: each group of them changes once.
    void set_run(int64_t first, int64_t n, double mass) {
        if (static_cast<int64_t>(change_.size()) < n) change_.resize(n);
        for (int64_t i = 0; i < n; ++i) change_[i] = mass - mass_of(first + i);
        for (int l = n_levels_ - 1; l >= 0; --l) {
            const int64_t end = first + n, parent = first / ARITY;
            for (int64_t at = first; at < end;) {
                Group& group = reinterpret_cast<Group*>(level_[l])[at / ARITY];
                Group sums{};
                double sum = 0;
                const int64_t number = at / ARITY - parent;
                const int64_t stop = std::min(end, (at / ARITY + 1) * ARITY);
                for (; at < stop; ++at) {
                    sums += CHANGE[at % ARITY] * change_[at - first];
                    sum += change_[at - first];
                }
                group += sums;
                change_[number] = sum;
            }
            n = (end - 1) / ARITY - parent + 1;
            first = parent;
        }
    }

    template <int F>
    static void write_field(char* to, const char** from) {
        std::memcpy(to, from[F], FIELD_BYTES[F]);
        from[F] += FIELD_BYTES[F];
        if constexpr (F + 1 < N_FIELDS) write_field<F + 1>(to + FIELD_BYTES[F], from);
    }

    // Into the second cache: as many lines as a batch has at once would crowd the first. GCC drops
    // calls of functions that do nothing but prefetch, so these are no calls.
    [[gnu::always_inline]] static void prefetch(const void* at) { __builtin_prefetch(at, 0, 2); }

    [[gnu::always_inline]] void prefetch_row(int64_t at) const {
        const char* row = reinterpret_cast<const char*>(row_ + at);
        for (size_t byte = 0; byte < sizeof(Row); byte += 64) prefetch(row + byte);
        prefetch(row + sizeof(Row) - 1);
    }

    [[gnu::always_inline]] void prefetch_path(int64_t at) const {
        prefetch(row_ + at);
        prefetch(priority_ + at);
        for (int l = n_levels_ - 1; l >= std::max(0, n_levels_ - 2); --l) {
            prefetch(level_[l] + at);
            at /= ARITY;
        }
    }

    void make_room(int64_t n) {
        if (static_cast<int64_t>(node_.size()) >= n) return;
        prefix_.resize(n);
        mass_.resize(n);
        node_.resize(n);
        generation_.resize(n);
        for (int f = 0; f < N_FIELDS; ++f) field_[f].resize(n * FIELD_BYTES[f]);
    }

    int64_t capacity_, next_ = 0;
    double* level_[24];
    int n_levels_ = 0;
    double* priority_;
    Row* row_;
    Random random_{0x9E3779B97F4A7C15ULL};
    std::vector<double> prefix_, mass_, change_;
    std::vector<int64_t> node_;
    std::vector<uint64_t> generation_;
    std::vector<char> field_[N_FIELDS];
};

}  // namespace ablation

// The memory traffic of the buffer's calls, and as little else as we know how: no lock, no checks,
// no other threads, no weights, arrays made once. How much faster could the buffer be at best?
#pragma once
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <stdexcept>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ablation {

class Limit {
  public:
    static constexpr int64_t kBatch = 256, kAhead = 24;

    // Rows of these fields behind a word, packed, each beginning at a multiple of eight bytes.
    Limit(int64_t capacity, const int64_t* nbytes, int64_t n_fields) : capacity_(capacity) {
#if defined(__x86_64__)
        if (!__builtin_cpu_supports("avx2")) throw std::runtime_error("this takes AVX2");
#else
        throw std::runtime_error("this takes AVX2");
#endif
        row_nbytes_ = 8;
        for (int64_t f = 0; f < n_fields; ++f) {
            nbytes_.push_back(nbytes[f]);
            column_.emplace_back(kBatch * nbytes[f] + 64);
            row_nbytes_ += nbytes[f];
        }
        row_nbytes_ = (row_nbytes_ + 7) / 8 * 8;
        rows_ = make<char>(capacity * row_nbytes_ + 64);
        priority_ = make<double>(capacity);
        for (int64_t n = capacity;; n = (n + 7) / 8) {
            width_.push_back(n);
            if (n == 1) break;
        }
        std::reverse(width_.begin(), width_.end());  // the root first
        std::mt19937_64 random(1);
        std::uniform_real_distribution<double> mass(0.01, 1.01);
        for (const int64_t n : width_) sum_.push_back(make<double>((n + 7) / 8 * 8));
        for (int64_t i = 0; i < capacity; ++i) sum_.back()[i] = mass(random);
        for (size_t l = width_.size() - 1; l > 0; --l) {
            before_.push_back(make<double>((width_[l] + 7) / 8 * 8));  // the leaves first
            for (int64_t i = 0; i < width_[l - 1]; ++i) {
                double sum = 0;
                for (int64_t j = 8 * i; j < 8 * i + 8; ++j) {
                    before_.back()[j] = sum;
                    sum += sum_[l][j];
                }
                sum_[l - 1][i] = sum;
            }
        }
        std::reverse(before_.begin(), before_.end());  // of level 1, 2, ...
    }
    ~Limit() {
        for (const auto& [memory, n] : mapped_) munmap(memory, n);
    }

#if defined(__x86_64__)
    // Seconds a batch of draws: stratified points, a descent by prefix sums, and the rows' copy.
    __attribute__((target("avx2"))) double sample(int64_t n_batches) {
        const double started = now();
        for (int64_t batch = 0; batch < n_batches; ++batch) {
            double point[kBatch];
            int64_t slot[kBatch];
            const double part = sum_[0][0] / kBatch;
            for (int64_t i = 0; i < kBatch; ++i) point[i] = (i + uniform()) * part, slot[i] = 0;
            for (size_t l = 0; l < before_.size(); ++l) {
                const double* next = l + 1 < before_.size() ? before_[l + 1] : nullptr;
                for (int64_t i = 0; i < kBatch; ++i) {
                    const double* group = before_[l] + slot[i] * 8;
                    const __m256d p = _mm256_set1_pd(point[i]);
                    const int low = _mm256_movemask_pd(
                        _mm256_cmp_pd(p, _mm256_loadu_pd(group), _CMP_GE_OQ));
                    const int high = _mm256_movemask_pd(
                        _mm256_cmp_pd(p, _mm256_loadu_pd(group + 4), _CMP_GE_OQ));
                    const int j = __builtin_popcount(low | high << 4) - 1;
                    point[i] -= group[j];
                    slot[i] = std::min(slot[i] * 8 + j, width_[l + 1] - 1);
                    if (next != nullptr) __builtin_prefetch(next + slot[i] * 8, 0, 2);
                }
            }
            gather(slot);
        }
        return (now() - started) / static_cast<double>(n_batches);
    }

    // Whole registers are copied: what they write beyond a value, the next row's overwrites.
    __attribute__((target("avx2"))) void gather(const int64_t* slot) {
        constexpr int64_t kWide = 32;
        const char* rows = rows_;
        const int64_t row_nbytes = row_nbytes_;
        const auto n_fields = static_cast<int64_t>(nbytes_.size());
        const int64_t* nbytes = nbytes_.data();
        char* column[16];
        for (int64_t f = 0; f < n_fields; ++f) column[f] = column_[f].data();
        for (int64_t i = 0; i < kAhead; ++i) ask_for(slot[i]);
        for (int64_t i = 0; i < kBatch; ++i) {
            if (i + kAhead < kBatch) ask_for(slot[i + kAhead]);
            const char* from = rows + slot[i] * row_nbytes + 8;
            for (int64_t f = 0; f < n_fields; from += nbytes[f++]) {
                char* to = column[f];
                for (int64_t at = 0; at < nbytes[f]; at += kWide) {
                    _mm256_storeu_si256(
                        reinterpret_cast<__m256i*>(to + at),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at)));
                }
                column[f] = to + nbytes[f];
            }
        }
    }

    // Seconds a batch of new masses: they are stored, with their priorities, and the sums above.
    __attribute__((target("avx2"))) double update(int64_t n_batches) {
        const double started = now();
        for (int64_t batch = 0; batch < n_batches; ++batch) {
            int64_t node[kBatch];
            double* leaf = sum_.back();
            double* parents = sum_[sum_.size() - 2];
            for (int64_t i = 0; i < kBatch; ++i) {
                node[i] = static_cast<int64_t>(uniform() * static_cast<double>(capacity_));
                __builtin_prefetch(leaf + node[i], 0, 2);
                __builtin_prefetch(priority_ + node[i], 0, 2);
            }
            for (int64_t i = 0; i < kBatch; ++i) __builtin_prefetch(parents + node[i] / 8, 0, 2);
            for (int64_t i = 0; i < kBatch; ++i) {
                leaf[node[i]] = priority_[node[i]] = 0.5 + static_cast<double>(i) / kBatch;
            }
            for (size_t l = sum_.size() - 1; l > 0; --l) {
                const bool each = kBatch >= width_[l - 1];
                const int64_t n = each ? width_[l - 1] : kBatch;
                for (int64_t i = 0; i < n; ++i) {
                    if (!each) node[i] /= 8;
                    const int64_t parent = each ? i : node[i];
                    const double* group = sum_[l] + 8 * parent;
                    const __m256d sum =
                        _mm256_add_pd(_mm256_loadu_pd(group), _mm256_loadu_pd(group + 4));
                    const __m128d two =
                        _mm_add_pd(_mm256_castpd256_pd128(sum), _mm256_extractf128_pd(sum, 1));
                    sum_[l - 1][parent] = _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
                }
            }
        }
        return (now() - started) / static_cast<double>(n_batches);
    }
#else
    double sample(int64_t) { return 0; }
    double update(int64_t) { return 0; }
#endif

    // Seconds a row that is added: it is copied, and its mass and priority are stored, in order.
    double add(int64_t n_rows) {
        const double started = now();
        for (int64_t n = 0; n < n_rows; ++n) {
            char* row = rows_ + position_ * row_nbytes_;
            ++*reinterpret_cast<uint64_t*>(row);
            row += 8;
            for (size_t f = 0; f < nbytes_.size(); row += nbytes_[f++]) {
                std::memcpy(row, column_[f].data(), nbytes_[f]);
            }
            priority_[position_] = sum_.back()[position_] = 1.0;
            int64_t node = position_;
            for (size_t l = sum_.size() - 1; l > 0; --l) {
                node /= 8;
                double sum = 0;
                for (int64_t j = 8 * node; j < 8 * node + 8; ++j) sum += sum_[l][j];
                sum_[l - 1][node] = sum;
            }
            position_ = position_ + 1 == capacity_ ? 0 : position_ + 1;
        }
        return (now() - started) / static_cast<double>(n_rows);
    }

  private:
    static double now() {
        const auto time = std::chrono::steady_clock::now().time_since_epoch();
        return std::chrono::duration<double>(time).count();
    }
    double uniform() {  // xorshift: as cheap as random numbers get
        state_ ^= state_ << 13;
        state_ ^= state_ >> 7;
        state_ ^= state_ << 17;
        return static_cast<double>(state_ >> 11) * 0x1p-53;
    }
    void ask_for(int64_t slot) const {
        const char* row = rows_ + slot * row_nbytes_;
        for (int64_t at = 0; at < row_nbytes_; at += 64) __builtin_prefetch(row + at, 0, 2);
        __builtin_prefetch(row + row_nbytes_ - 1, 0, 2);
    }
    // Zeros, on huge pages where the system has them.
    template <class T>
    T* make(int64_t n) {
        constexpr size_t kPage = 2 << 20;
        const size_t nbytes = n * sizeof(T) + kPage;
        void* memory = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                            -1, 0);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        mapped_.emplace_back(memory, nbytes);
        const auto at = (reinterpret_cast<uintptr_t>(memory) + kPage - 1) / kPage * kPage;
        madvise(reinterpret_cast<void*>(at), nbytes - kPage, MADV_HUGEPAGE);
        std::memset(reinterpret_cast<void*>(at), 0, n * sizeof(T));
        return reinterpret_cast<T*>(at);
    }

    int64_t capacity_, row_nbytes_, position_ = 0;
    uint64_t state_ = 88172645463325252;
    std::vector<int64_t> nbytes_, width_;
    std::vector<std::vector<char>> column_;
    std::vector<std::pair<void*, size_t>> mapped_;
    char* rows_;
    double* priority_;
    std::vector<double*> sum_, before_;
};

}  // namespace ablation

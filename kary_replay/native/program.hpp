// Native programs: lists of operations on float32 numbers, as
// algorithms/updates/translation.py makes them.
//
// A program knows pieces of memory by number: its own, then what it is given at each call. An
// operation finds a tensor by such a number and an offset. Nothing is allocated while it runs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "flushing.hpp"
#include "thread_pool.hpp"

namespace kary {

// Operations, and what translation.py calls them.
#define KARY_CODES(CODE) \
    CODE(kProduct, "product") \
    CODE(kDots, "dots") \
    CODE(kBatchProduct, "batch_product") \
    CODE(kConvolve, "convolve") \
    CODE(kConvolveWeights, "convolve_weights") \
    CODE(kConvolveInputs, "convolve_inputs") \
    CODE(kWiden, "widen") \
    CODE(kPack, "pack") \
    CODE(kCopy, "copy") \
    CODE(kSum, "sum") \
    CODE(kMean, "mean") \
    CODE(kLeast, "least") \
    CODE(kGreatest, "greatest") \
    CODE(kNorm, "norm") \
    CODE(kGreatestOfRows, "greatest_of_rows") \
    CODE(kSoftmax, "softmax") \
    CODE(kSoftmaxGradient, "softmax_gradient") \
    CODE(kSelect, "select") \
    CODE(kPut, "put") \
    CODE(kAdd, "add") \
    CODE(kSubtract, "subtract") \
    CODE(kMultiply, "multiply") \
    CODE(kDivide, "divide") \
    CODE(kAddNumber, "add_number") \
    CODE(kMultiplyNumber, "multiply_number") \
    CODE(kDivideNumber, "divide_number") \
    CODE(kNumberMinus, "number_minus") \
    CODE(kNegate, "negate") \
    CODE(kMagnitude, "magnitude") \
    CODE(kSquare, "square") \
    CODE(kReciprocal, "reciprocal") \
    CODE(kExponential, "exponential") \
    CODE(kLogarithm, "logarithm") \
    CODE(kTangent, "tangent") \
    CODE(kSoftplus, "softplus") \
    CODE(kRelu, "relu") \
    CODE(kAtLeast, "at_least") \
    CODE(kAtMost, "at_most") \
    CODE(kBetween, "between") \
    CODE(kEqual, "equal") \
    CODE(kNotBelowNumber, "not_below_number") \
    CODE(kNotAboveNumber, "not_above_number") \
    CODE(kWhere, "where") \
    CODE(kThresholdGradient, "threshold_gradient") \
    CODE(kTangentGradient, "tangent_gradient") \
    CODE(kSquaredErrorGradient, "squared_error_gradient") \
    CODE(kSoftplusGradient, "softplus_gradient") \
    CODE(kHuberGradient, "huber_gradient")

#define KARY_CODE(code, name) code,
enum class Code : std::int64_t { KARY_CODES(KARY_CODE) };
#undef KARY_CODE

#define KARY_NAME(code, name) name,
constexpr const char* kCodes[] = {KARY_CODES(KARY_NAME)};
#undef KARY_NAME
constexpr int kNumberOfCodes = sizeof(kCodes) / sizeof(*kCodes);

constexpr int kWords = 22;

// As a row of the tables that translation.py writes. A place is two words: the number of a piece of
// memory, or -1 for none, and an offset in numbers.
struct Operation {
    Code code;
    std::int64_t word[kWords];
    double number[2];
};

inline float* place(const Operation& o, int word, char* const* memory) {
    const std::int64_t piece = o.word[word];
    return piece < 0 ? nullptr : reinterpret_cast<float*>(memory[piece]) + o.word[word + 1];
}

struct Elementwise {
    float* to;
    std::int64_t n;
    const float *a, *b, *c;
    std::int64_t a_step, b_step, c_step;  // 1, or 0 for one number
    float first, second;
};

inline Elementwise elementwise_of(const Operation& o, char* const* memory) {
    return {place(o, 0, memory), o.word[2], place(o, 3, memory), place(o, 6, memory),
            place(o, 9, memory), o.word[5], o.word[8], o.word[11], float(o.number[0]),
            float(o.number[1])};
}

// C (m × n) = A B, then + bias, of each column or each row, then relu; or 0 where the mask is not
// above 0, as the gradient of relu asks for. B is a matrix whose rows are contiguous, or was
// packed: panels of some columns, one after another, the last of as many whole vectors as it needs.
struct Product {
    const float* a;
    std::int64_t a_row, a_column;
    const float* b;
    std::int64_t b_row;  // 0: packed
    float* c;
    std::int64_t c_row;
    const float *bias, *mask;
    std::int64_t mask_row;
    bool relu;
    std::int64_t m, n, k;
    float* spare;  // for the rows of A, and their numbers, if some may be left out
    bool bias_of_rows = false;
    bool adds = false;  // to what C has
    // Where numbers of A are that lie in no rows: at row_at[i] + step_at[k] from `a`; or neither.
    const std::int32_t *row_at = nullptr, *step_at = nullptr;
};

inline Product product_of(const Operation& o, char* const* memory) {
    return {place(o, 0, memory), o.word[2], o.word[3], place(o, 4, memory), o.word[6],
            place(o, 7, memory), o.word[9], place(o, 10, memory), place(o, 12, memory), o.word[14],
            o.word[15] != 0, o.word[16], o.word[17], o.word[18], place(o, 19, memory),
            o.word[21] != 0};
}

struct BatchProduct {
    const float* a;
    std::int64_t a_batch, a_row, a_column;
    const float* b;
    std::int64_t b_batch, b_row, b_column;
    float* to;  // contiguous
    std::int64_t batch, m, n, k;
};

inline BatchProduct batch_product_of(const Operation& o, char* const* memory) {
    return {place(o, 0, memory), o.word[2], o.word[3], o.word[4], place(o, 5, memory), o.word[7],
            o.word[8], o.word[9], place(o, 10, memory), o.word[12], o.word[13], o.word[14],
            o.word[15]};
}

// Of images [batch, channels, height, width] with windows [outputs, channels, window...], without a
// border. All is contiguous. What a window sees of an image are `n_weights` numbers, at each of
// `n_places` places.
struct Convolution {
    const float *one, *two;  // images or a gradient; windows or images
    float* bias;             // read, or the gradient of it; or none
    float* to;
    float* spare;  // tables, matrices and an outcome, image by image, as kernels.hpp has them
    std::int64_t batch, channels, height, width, outputs, window[2], step[2];
    bool relu;
    int threads;  // as many have spare memory
    std::int64_t rows() const { return (height - window[0]) / step[0] + 1; }
    std::int64_t columns() const { return (width - window[1]) / step[1] + 1; }
    std::int64_t n_places() const { return rows() * columns(); }
    std::int64_t n_weights() const { return channels * window[0] * window[1]; }
    std::int64_t n_image() const { return channels * height * width; }
};

inline Convolution convolution_of(const Operation& o, char* const* memory) {
    return {place(o, 0, memory), place(o, 2, memory), place(o, 4, memory), place(o, 6, memory),
            place(o, 8, memory), o.word[10], o.word[11], o.word[12], o.word[13], o.word[14],
            {o.word[15], o.word[16]}, {o.word[17], o.word[18]}, o.word[19] != 0, int(o.word[20])};
}

struct Copy {
    const float* from;
    float* to;
    std::int64_t shape[4], from_step[4], to_step[4];
};

inline Copy copy_of(const Operation& o, char* const* memory) {
    Copy c = {place(o, 0, memory), place(o, 2, memory), {}, {}, {}};
    std::memcpy(c.shape, o.word + 4, sizeof c.shape);
    std::memcpy(c.from_step, o.word + 8, sizeof c.from_step);
    std::memcpy(c.to_step, o.word + 12, sizeof c.to_step);
    return c;
}

// of (outer × n × inner) contiguous numbers over the middle
struct Reduction {
    const float* from;
    float* to;
    std::int64_t outer, n, inner;
};

inline Reduction reduction_of(const Operation& o, char* const* memory) {
    return {place(o, 0, memory), place(o, 2, memory), o.word[4], o.word[5], o.word[6]};
}

// contiguous rows
struct Rows {
    const float *from, *other;
    float* to;
    std::int64_t n, width;
    bool logarithmic;
};

inline Rows rows_of(const Operation& o, char* const* memory) {
    return {place(o, 0, memory), place(o, 2, memory), place(o, 4, memory), o.word[6], o.word[7],
            o.word[8] != 0};
}

// Of n rows of `count` parts of `width` numbers each, one part: chosen by an index in int64, as
// inputs have it, or as a whole float. An index below 0 counts from the end if it wraps.
struct Choice {
    float *rows, *parts;  // parts are contiguous
    const char* index;
    std::int64_t n, count, width, row_step, part_step, step;
    bool is_integer, wraps;
};

inline Choice choice_of(const Operation& o, char* const* memory) {
    const std::int64_t index_size = o.word[12] ? sizeof(std::int64_t) : sizeof(float);
    return {place(o, 0, memory), place(o, 2, memory),
            memory[o.word[4]] + o.word[5] * index_size, o.word[6], o.word[7], o.word[8], o.word[9],
            o.word[10], o.word[11], o.word[12] != 0, o.word[13] != 0};
}

// Takes the parts out of the rows, or adds them; false if an index is out of range.
inline bool chosen(bool adds, const Choice& c) {
    for (std::int64_t i = 0; i < c.n; ++i) {
        std::int64_t at = c.is_integer ? reinterpret_cast<const std::int64_t*>(c.index)[i * c.step]
                                       : std::int64_t(
                                             reinterpret_cast<const float*>(c.index)[i * c.step]);
        if (at < 0 && c.wraps) at += c.count;
        if (at < 0 || at >= c.count) return false;
        float* const row = c.rows + i * c.row_step + at * c.part_step;
        float* const part = c.parts + i * c.width;
        for (std::int64_t j = 0; j < c.width; ++j)
            if (adds)
                row[j] += part[j];
            else
                part[j] = row[j];
    }
    return true;
}

// Zero. As the compiler does not know, it takes the greater of two numbers by one instruction.
static const volatile float kNothing = 0.0f;

struct Adam {
    float *parameters, *mean, *square;
    const float* gradient;
    std::int64_t n;
    float rest_1, rest_2, root, epsilon, step_size;  // rest: 1 - beta; root: of 1 / (1 - beta_2^t)
};

}  // namespace kary

#define KARY_INLINE static inline __attribute__((always_inline))
#define KARY_KERNEL static __attribute__((noinline))
#if defined(__clang__)
#define KARY_UNROLL _Pragma("clang loop unroll(full)")
#define KARY_SHUFFLE(lanes, one, two, ...) __builtin_shufflevector(one, two, __VA_ARGS__)
#else
#define KARY_UNROLL _Pragma("GCC unroll 32")
#define KARY_SHUFFLE(lanes, one, two, ...) __builtin_shuffle(one, two, lanes{__VA_ARGS__})
// All that passes a vector wider than the registers is inlined.
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

#define KARY_SET portable
#define KARY_WIDTH 4
#if defined(__aarch64__)  // which has 32 registers
#define KARY_PANEL 4
#else
#define KARY_PANEL 2
#endif
#include "kernels.hpp"
#undef KARY_SET
#undef KARY_WIDTH
#undef KARY_PANEL

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#define KARY_SET avx2
#define KARY_WIDTH 8
#define KARY_PANEL 2
#include "kernels.hpp"
#undef KARY_SET
#undef KARY_WIDTH
#undef KARY_PANEL
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,fma"))), \
                             apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512vl,avx512dq,avx512bw,fma,prefer-vector-width=512")
#endif
#define KARY_SET avx512
#define KARY_WIDTH 16
#define KARY_PANEL 4
#include "kernels.hpp"
#undef KARY_SET
#undef KARY_WIDTH
#undef KARY_PANEL
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

namespace kary {

struct Set {
    const char* name;
    bool (*usable)();
    // each with at most so many threads
    bool (*run)(const Operation*, std::int64_t, char* const*, int);
    void (*adam)(const Adam&, int);
    void (*approach)(float*, const float*, std::int64_t, float, int);
};

// the best first
inline const Set kSets[] = {
#if defined(__x86_64__)
    {"AVX-512",
     [] {
         return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("fma");
     },
     avx512::run, avx512::adam, avx512::approach},
    {"AVX2", [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); },
     avx2::run, avx2::adam, avx2::approach},
#endif
    {"portable", [] { return true; }, portable::run, portable::adam, portable::approach},
};
constexpr int kNumberOfSets = sizeof kSets / sizeof kSets[0];

}  // namespace kary

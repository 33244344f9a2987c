// Powers of many numbers at once: masses are priority ** alpha, weights are ratio ** -beta.
//
// The C library computes powers one by one. The loop here has no branch and no table, so it runs in
// vector registers, as wide as the processor has them. It is made of additions, multiplications,
// divisions and bits, in one order: every processor and every width gives the same numbers, bit for
// bit, as long as no multiplication is fused with an addition, which the compiler's flags forbid
// (setup.py).
//
//     x = m · 2^k with m in [√½, √2)          log2 x = k + log2 m
//     s = (m - 1) / (m + 1)                   log2 m = 2 / ln 2 · atanh s
//     n = the integer next to a · log2 x      x^a = 2^n · 2^f, |f| ≤ ½
//
// The product k · a may need 11 bits before the point, and f would lack them behind it. So the
// exponent is the sum of its first bits, whose product with k is exact, and of a rest.
#pragma once
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace kary {

// A loop is compiled for AVX2 and for any processor, and the loader picks one. Sanitizers cannot be
// there yet when it does.
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__) && !defined(KARY_PORTABLE)
#define KARY_CLONES __attribute__((target_clones("avx2", "default")))
inline const char* instructions() {
    return __builtin_cpu_supports("avx2") ? "AVX2" : "portable";
}
#else
#define KARY_CLONES
inline const char* instructions() { return "portable"; }
#endif

// What floating-point numbers are made of, and the series below: of double for masses, of float for
// importance weights, which are floats.
template <class Real>
struct Format;

template <>
struct Format<double> {
    using Bits = uint64_t;
    using Integer = int64_t;
    static constexpr int kFraction = 52, kBias = 1023;
    static constexpr Bits kSqrtHalf = 0x3fe6a09e667f3bcd, kRest = 0x1fff;
    static constexpr double kToInteger = 0x1.8p52;
    static constexpr double kAtanh[] = {1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9,  1.0 / 11,
                                        1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21};
    static constexpr double kExp[] = {1.0 / 2,       1.0 / 6,        1.0 / 24,        1.0 / 120,
                                      1.0 / 720,     1.0 / 5040,     1.0 / 40320,     1.0 / 362880,
                                      1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600,
                                      1.0 / 6227020800};
};

template <>
struct Format<float> {
    using Bits = uint32_t;
    using Integer = int32_t;
    static constexpr int kFraction = 23, kBias = 127;
    static constexpr Bits kSqrtHalf = 0x3f3504f3, kRest = 0xfff;
    static constexpr float kToInteger = 0x1.8p23f;
    static constexpr float kAtanh[] = {1.f / 3, 1.f / 5, 1.f / 7, 1.f / 9};
    static constexpr float kExp[] = {1.f / 2,   1.f / 6,   1.f / 24,
                                     1.f / 120, 1.f / 720, 1.f / 5040};
};

template <class Real>
inline typename Format<Real>::Bits bits_of(Real x) {
    typename Format<Real>::Bits bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}
template <class Real>
inline Real of_bits(typename Format<Real>::Bits bits) {
    Real x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

// The even and the odd terms each by Horner's rule: two chains of half the length.
template <class Real, int N>
inline Real polynomial(const Real (&coefficient)[N], Real x) {
    static_assert(N % 2 == 0, "as many odd terms as even ones");
    const Real square = x * x;
    Real even = coefficient[N - 2], odd = coefficient[N - 1];
#pragma GCC unroll 16
    for (int i = N - 4; i >= 0; i -= 2) {
        even = even * square + coefficient[i];
        odd = odd * square + coefficient[i + 1];
    }
    return odd * x + even;
}

// An exponent, and the two parts that it is the sum of.
template <class Real>
struct Exponent {
    Real whole, high, low;

    explicit Exponent(double a) : whole(static_cast<Real>(a)) {
        high = of_bits<Real>(bits_of(whole) & ~Format<Real>::kRest);
        low = static_cast<Real>(a - high);
    }
};

// x^a where x and the result are normal numbers, |a| ≤ 1. At most 2 units in the last place off.
template <class Real>
inline Real power(Real x, const Exponent<Real>& a) {
    using F = Format<Real>;
    using Bits = typename F::Bits;
    constexpr Real kLn2 = static_cast<Real>(0x1.62e42fefa39efp-1);
    constexpr Real kTwoOverLn2 = static_cast<Real>(0x1.71547652b82fep1);
    constexpr Bits kOne = Bits{F::kBias} << F::kFraction;
    constexpr Bits kExponentBits = (Bits{2 * F::kBias + 1}) << F::kFraction;
    // a sum with it ends in the integer next to the other number, and has its bits
    constexpr Real kToInteger = F::kToInteger;
    constexpr Real kPowerOfTwo = kToInteger / 3 * 2;

    const Bits bits = bits_of(x), up = bits + (kOne - F::kSqrtHalf);
    const Real m = of_bits<Real>(bits - (up & kExponentBits) + kOne);
    const Real k = of_bits<Real>(up >> F::kFraction | bits_of(kPowerOfTwo)) -
                   (kPowerOfTwo + static_cast<Real>(F::kBias));

    // Taylor's series, up to the last term that is felt: (atanh(s) / s - 1) / s² in s², and
    // (e^g - 1 - g) / g² in g
    const Real s = (m - 1) / (m + 1), square = s * s;
    const Real log2_m = kTwoOverLn2 * s * (1 + square * polynomial(F::kAtanh, square));
    const Real exact = k * a.high, rest = k * a.low + a.whole * log2_m;
    const Real moved = exact + rest + kToInteger, n = moved - kToInteger;
    const Real g = ((exact - n) + rest) * kLn2;
    const Real two_to_n = of_bits<Real>((bits_of(moved) + F::kBias) << F::kFraction);
    return (1 + (g + g * g * polynomial(F::kExp, g))) * two_to_n;
}

// Raises a number above 0 to an exponent of 0 to 1: 0 and 1 are exact.
inline double raise(double x, double a) {
    if (a == 0) return 1;
    if (a == 1) return x;
    // numbers too small to be normal lack leading bits, and so may the result
    return x < DBL_MIN ? std::pow(x, a) : power(x, Exponent<double>(a));
}

// The same of n numbers.
[[maybe_unused]] KARY_CLONES static int64_t raise_normal(const double* x, double a, double* result,
                                                         int64_t n) {
    const Exponent<double> exponent(a);
    int64_t n_small = 0;
    for (int64_t i = 0; i < n; ++i) {
        n_small += x[i] < DBL_MIN;
        result[i] = power(x[i], exponent);
    }
    return n_small;
}
inline void raise(const double* x, double a, double* result, int64_t n) {
    if (0 < a && a < 1 && raise_normal(x, a, result, n) == 0) return;
    for (int64_t i = 0; i < n; ++i) result[i] = raise(x[i], a);
}

// result[i] = (x[i] · factor + summand)^a, |a| ≤ 1. Returns how many of the bases are too large or
// too small for that: their results mean nothing.
[[maybe_unused]] KARY_CLONES static int64_t raise(const double* x, double factor, double summand,
                                                  double a, float* result, int64_t n) {
    const Exponent<float> exponent(a);
    int64_t n_beyond = 0;
    for (int64_t i = 0; i < n; ++i) {
        const double base = x[i] * factor + summand;
        n_beyond += !(base >= 1e-37 && base <= 1e37);
        result[i] = power(static_cast<float>(base), exponent);
    }
    return n_beyond;
}

// The smallest of n numbers, above 0 as they are.
[[maybe_unused]] KARY_CLONES static double smallest_of(const double* x, int64_t n) {
    constexpr int64_t kLanes = 8;
    double least[kLanes];
    for (int64_t j = 0; j < kLanes; ++j) least[j] = x[0];
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        for (int64_t j = 0; j < kLanes; ++j) {
            const double one = x[i + j];
            least[j] = one < least[j] ? one : least[j];
        }
    }
    double smallest = least[0];
    for (int64_t j = 1; j < kLanes; ++j) smallest = least[j] < smallest ? least[j] : smallest;
    for (; i < n; ++i) smallest = x[i] < smallest ? x[i] : smallest;
    return smallest;
}

}  // namespace kary

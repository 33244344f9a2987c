// Importance weights of many rows at once: powers in single precision.
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
// The product k · a may need 7 bits before the point, and f would lack them behind it. So the
// exponent is the sum of 12 bits, whose product with k is exact, and of a rest.
#pragma once
#include <cstdint>
#include <cstring>

namespace kary {

// A loop is compiled for AVX2 and for any processor, and the loader picks one. Sanitizers cannot be
// there yet when it does.
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__) && !defined(KARY_PORTABLE)
#define KARY_CLONES __attribute__((target_clones("avx2", "default")))
inline const char* instructions() {
    return __builtin_cpu_supports("avx2") ? "AVX2" : "those of every processor";
}
#else
#define KARY_CLONES
inline const char* instructions() { return "those of every processor"; }
#endif

inline uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}
inline float of_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

template <int N>
inline float polynomial(const float (&coefficient)[N], float x) {
    float value = coefficient[N - 1];
#pragma GCC unroll 8
    for (int i = N - 2; i >= 0; --i) value = value * x + coefficient[i];
    return value;
}

// An exponent, and the two parts that it is the sum of.
struct Exponent {
    float whole, high, low;

    explicit Exponent(double a) : whole(static_cast<float>(a)) {
        high = of_bits(bits_of(whole) & ~0xfffu);
        low = static_cast<float>(a - high);
    }
};

// What `power` raises: so x and the result are normal numbers.
constexpr double kLeastBase = 1e-37, kMostBase = 1e37;

// x^a for such an x, and |a| ≤ 1. The relative error is below 2e-7.
inline float power(float x, const Exponent& a) {
    // Taylor's series, up to the last term that is felt: (atanh(s) / s - 1) / s² in s², and
    // (e^g - 1 - g) / g² in g
    constexpr float kAtanh[] = {1.f / 3, 1.f / 5, 1.f / 7, 1.f / 9};
    constexpr float kExp[] = {1.f / 2, 1.f / 6, 1.f / 24, 1.f / 120, 1.f / 720, 1.f / 5040};
    constexpr float kLn2 = 0x1.62e42fefa39efp-1f, kTwoOverLn2 = 0x1.71547652b82fep1f;
    constexpr float kToInteger = 0x1.8p23f;  // the sum with it ends in the integer next to a number
    constexpr uint32_t kOne = 0x3f800000, kSqrtHalf = 0x3f3504f3, kExponentBits = 0x7f800000;

    const uint32_t bits = bits_of(x), up = bits + (kOne - kSqrtHalf);
    const float m = of_bits(bits - (up & kExponentBits) + kOne);
    const float k = static_cast<float>(static_cast<int32_t>(up >> 23) - 127);

    const float s = (m - 1) / (m + 1), square = s * s;
    const float log2_m = kTwoOverLn2 * s * (1 + square * polynomial(kAtanh, square));
    const float exact = k * a.high, rest = k * a.low + a.whole * log2_m;
    const float n = (exact + rest + kToInteger) - kToInteger;
    const float g = ((exact - n) + rest) * kLn2;
    const float two_to_n = of_bits(static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23);
    return (1 + (g + g * g * polynomial(kExp, g))) * two_to_n;
}

// result[i] = (x[i] · factor + summand)^a, |a| ≤ 1. Returns how many of the bases are too large or
// too small for that: their results mean nothing.
[[maybe_unused]] KARY_CLONES static int64_t raise(const double* x, double factor, double summand,
                                                  double a, float* result, int64_t n) {
    const Exponent exponent(a);
    int64_t n_beyond = 0;
    for (int64_t i = 0; i < n; ++i) {
        const double base = x[i] * factor + summand;
        n_beyond += !(base >= kLeastBase && base <= kMostBase);
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

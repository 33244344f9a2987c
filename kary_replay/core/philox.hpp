// Philox4x64-10, the counter-based generator of Salmon et al. (2011), "Parallel random numbers: as
// easy as 1, 2, 3".
//
// Its state is a key and a counter, so any number of threads draw from one stream by adding to one
// word, and a stream is saved by saving three words. Cython has no 128-bit product; that is why
// this is a header.
#pragma once
#include <cstdint>

namespace kary {

inline void philox4x64(uint64_t counter, uint64_t key0, uint64_t key1, uint64_t out[4]) {
    uint64_t x0 = counter, x1 = 0, x2 = 0, x3 = 0;
    for (int round = 0; round < 10; ++round) {
        const unsigned __int128 a = static_cast<unsigned __int128>(0xD2E7470EE14C6C93ULL) * x0;
        const unsigned __int128 b = static_cast<unsigned __int128>(0xCA5A826395121157ULL) * x2;
        x0 = static_cast<uint64_t>(b >> 64) ^ x1 ^ key0;
        x1 = static_cast<uint64_t>(b);
        x2 = static_cast<uint64_t>(a >> 64) ^ x3 ^ key1;
        x3 = static_cast<uint64_t>(a);
        key0 += 0x9E3779B97F4A7C15ULL;
        key1 += 0xBB67AE8584CAA73BULL;
    }
    out[0] = x0;
    out[1] = x1;
    out[2] = x2;
    out[3] = x3;
}

// n numbers in [0, 1) from the counters counter, counter + 1, …, four a counter: the top 53 bits of
// each word.
inline void fill_uniform(const uint64_t key[2], uint64_t counter, double* u, int64_t n) {
    uint64_t word[4];
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        philox4x64(counter++, key[0], key[1], word);
        for (int j = 0; j < 4; ++j) u[i + j] = static_cast<double>(word[j] >> 11) * 0x1p-53;
    }
    if (i < n) {
        philox4x64(counter, key[0], key[1], word);
        for (int j = 0; i + j < n; ++j) u[i + j] = static_cast<double>(word[j] >> 11) * 0x1p-53;
    }
}

}  // namespace kary

// How noisy gradients of prioritized batches are beside those of uniform ones, and the uniform
// share that follows.
//
// With importance weights w_i = 1 / (N P(i)), a weighted gradient has the same mean whatever P is.
// Its noise differs. If a row's gradient is as large as its TD error g_i, then with a share s of
// uniform draws, and a row's mass r_i = N mass_i / total times the mean one, batches have
//
//     noise(s) = mean of g_i² / ((1 - s) r_i + s)
//
// over all rows, and uniform replay has noise(1). The TD errors that come back show both: they are
// of rows drawn with the probability P, so a mean over them, weighted by w, is one over all rows,
// for any s. Nobody needs to have drawn with that s.
#pragma once
#include <cmath>

#include "block.hpp"

namespace kary {

constexpr double kMemory = 10'000;   // rows: older ones count exponentially less
constexpr double kEvidence = 1'000;  // rows before the first choice
constexpr double kWorth = 1.1;       // uniform draws may cost a tenth more noise than the least

// The shares to choose from. There are always some draws by priority, for a row that becomes worth
// it must be noticed, and some uniform ones, which bound the weights by 5.
constexpr double share_at(int j) { return (2 + j) / 10.0; }
constexpr double kCautious = share_at(kShares - 1);  // before there is evidence

// Relaxed, here and below: the lock orders everything that is read. What is stored, others read as
// settings, without the lock, where any recent value will do.
inline void forget_noise(Header* header) {
    header->noise = Noise{};
    if (load_relaxed(&header->adapts_share)) store_relaxed(&header->uniform_share, kCautious);
}

// Learns from n TD errors of rows that were drawn with the masses they still have in `leaf`. Where
// the share adapts, it becomes the largest one that is nearly the best: priorities have to pay for
// every draw that they get. The caller holds the lock.
inline void learn_noise(Header* header, const double* leaf, double total, const int64_t* slot,
                        const double* td_error, int64_t n) {
    const double share = load_relaxed(&header->uniform_share);
    const bool adapts = load_relaxed(&header->adapts_share) != 0;
    const double by_mass = static_cast<double>(load_relaxed(&header->n_with_mass)) / total;
    Noise seen{};
    for (int64_t i = 0; i < n; ++i) {
        const double relative = load_relaxed(leaf + slot[i]) * by_mass;
        const double chance = (1 - share) * relative + share;  // N P(i)
        const double square = td_error[i] * td_error[i] / chance;
        seen.uniform += square;
        seen.present += square / chance;
        if (!adapts) continue;
        for (int j = 0; j < kShares; ++j) {
            seen.with_share[j] += square / (relative + share_at(j) * (1 - relative));
        }
    }
    // errors may be so large, and masses so small, that squares are infinite
    if (!(seen.uniform < HUGE_VAL && seen.present < HUGE_VAL)) return;
    Noise& noise = header->noise;
    noise.n_rows += static_cast<double>(n);
    const double part = std::fmin(1, std::fmax(n / kMemory, n / noise.n_rows));
    noise.uniform += part * (seen.uniform / n - noise.uniform);
    noise.present += part * (seen.present / n - noise.present);
    double least = HUGE_VAL;
    for (int j = 0; j < kShares; ++j) {
        noise.with_share[j] += part * (seen.with_share[j] / n - noise.with_share[j]);
        least = std::fmin(least, noise.with_share[j]);
    }
    if (!adapts || noise.n_rows < kEvidence) return;
    int best = kShares - 1;
    while (noise.with_share[best] > kWorth * least) --best;
    store_relaxed(&header->uniform_share, share_at(best));
}

}  // namespace kary

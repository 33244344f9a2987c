// How noisy gradients of prioritized batches are beside those of uniform ones, and whether to
// prioritize.
//
// With importance weights w_i = 1 / (N P(i)), a weighted gradient has the same mean whatever P is.
// Its noise differs. If a row's gradient is as large as its TD error g_i, the noise is the mean of
// g_i² / (N P(i)) over all rows. Uniform replay has mean(g²). The least, mean(|g|)², is that of
// draws in proportion to |g|, which are the best that priorities can lead to. So mean(|g|)² over
// mean(g²) says what there is to gain, whatever the scale: it is small if few rows have most of the
// errors, and 1 if all have the same. The TD errors that come back show all three. They are of rows
// drawn with the probability P, so a mean over them, weighted by w, is one over all rows.
#pragma once
#include <cmath>

#include "block.hpp"

namespace kary {

constexpr double kMemory = 10'000;    // rows: older ones count exponentially less
constexpr double kPrioritized = 0.1;  // the uniform share while priorities pay
constexpr double kPays = 0.5;         // they do if the least noise is below that part of uniform's

// Relaxed, here and below: the lock orders everything that is read. What is stored, others read as
// settings, without the lock, where any recent value will do.
inline void forget_noise(Header* header) {
    header->noise = Noise{};
    if (load_relaxed(&header->adapts_share)) store_relaxed(&header->uniform_share, 1.0);
}

// The least noise over that of uniform replay. Means are over the mean weight, which is 1 but for
// chance: so it is at most 1, whatever the draws were.
inline double least_noise(const Noise& noise) {
    return noise.size * noise.size / (noise.uniform * noise.weight);
}

// Adds the TD error of a row that was drawn `relative` = N · P(i) times as often as by uniform
// replay to sums over an update.
inline void add_error(Noise& seen, double relative, double td_error) {
    const double weight = 1 / relative;
    const double error = td_error * weight;
    seen.weight += weight;
    seen.size += error;
    seen.uniform += error * td_error;
    seen.present += error * error;
}
// Learns from the sums over an update of n rows.
inline void learn_from(Noise& noise, const Noise& seen, double n) {
    // errors may be so large, and masses so small, that squares are infinite
    if (!(seen.uniform + seen.present < HUGE_VAL)) return;
    noise.n_rows += n;
    const double part = std::fmin(1, std::fmax(n / kMemory, n / noise.n_rows));
    noise.weight += part * (seen.weight / n - noise.weight);
    noise.size += part * (seen.size / n - noise.size);
    noise.uniform += part * (seen.uniform / n - noise.uniform);
    noise.present += part * (seen.present / n - noise.present);
}
// The uniform share that adapts: all rows are drawn alike until enough is known, and while there
// is little to gain.
inline double fitting_share(const Noise& noise) {
    return noise.n_rows >= kMemory && least_noise(noise) < kPays ? kPrioritized : 1.0;
}

// Learns from n TD errors of rows that were drawn with the masses they still have in `leaf`. The
// caller holds the lock.
inline void learn_noise(Header* header, const double* leaf, double total, const int64_t* slot,
                        const double* td_error, int64_t n) {
    const double share = load_relaxed(&header->uniform_share);
    const double by_mass = static_cast<double>(load_relaxed(&header->n_with_mass)) / total;
    Noise seen{};
    for (int64_t i = 0; i < n; ++i) {
        const double relative = load_relaxed(leaf + slot[i]) * by_mass;
        add_error(seen, relative + share * (1 - relative), td_error[i]);
    }
    learn_from(header->noise, seen, static_cast<double>(n));
    if (load_relaxed(&header->adapts_share)) {
        store_relaxed(&header->uniform_share, fitting_share(header->noise));
    }
}

}  // namespace kary

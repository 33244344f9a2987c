// Native threads that do one kind of step over and over, with no interpreter in sight; and what a
// cache line costs them.
#pragma once
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace ablation {

using Clock = std::chrono::steady_clock;

// Steps per second of n_threads together. make_worker(number) runs in its thread and returns the
// step, a callable.
template <class MakeWorker>
double race(int n_threads, double seconds, MakeWorker make_worker) {
    std::vector<double> rate(n_threads);
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, nullptr, n_threads);
    auto loop = [&](int number) {
        auto step = make_worker(number);
        step();
        pthread_barrier_wait(&barrier);
        const std::chrono::duration<double> length(seconds);
        const auto start = Clock::now();
        const auto end = start + std::chrono::duration_cast<Clock::duration>(length);
        auto now = start;
        int64_t n = 0;
        while (now < end) {
            step();
            ++n;
            now = Clock::now();
        }
        rate[number] = n / std::chrono::duration<double>(now - start).count();
    };
    std::vector<std::thread> threads;
    for (int t = 0; t < n_threads; ++t) threads.emplace_back(loop, t);
    for (auto& thread : threads) thread.join();
    pthread_barrier_destroy(&barrier);
    double total = 0;
    for (const double one : rate) total += one;
    return total;
}

// Seconds that a cache line takes from one thread to another and back: about 50 ns where their
// cores share a cache, several hundred where they do not. A virtual machine's cores may change
// places while it runs.
inline double line_round_trip(int64_t n) {
    std::atomic<int64_t> ball{0};
    const auto start = Clock::now();
    auto play = [&](int64_t first) {
        for (int64_t i = first; i < 2 * n; i += 2) {
            // [ball] acquire: pairs with the release below
            while (ball.load(std::memory_order_acquire) != i) {
            }
            // [ball] release: pairs with the other thread's acquire above
            ball.store(i + 1, std::memory_order_release);
        }
    };
    std::thread other(play, 1);
    play(0);
    other.join();
    return std::chrono::duration<double>(Clock::now() - start).count() / n;
}

}  // namespace ablation

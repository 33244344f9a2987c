// What a buffer draws, and with which masses and weights, as one number. Compiled for several
// processors, it must print the same: test_same_draws.py.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "philox.hpp"
#include "selectors.hpp"

namespace {

using namespace kary;

constexpr uint64_t kKey[2] = {1, 2};

// FNV-1a (Fowler, Noll and Vo) of all that is drawn.
uint64_t digest = 0xcbf29ce484222325;

template <class T>
void take_in(const std::vector<T>& values) {
    const auto* byte = reinterpret_cast<const unsigned char*>(values.data());
    for (size_t i = 0; i < values.size() * sizeof(T); ++i) {
        digest = (digest ^ byte[i]) * 0x100000001b3;
    }
}

// Numbers of every size, from a stream of their own.
std::vector<double> priorities(int64_t n, uint64_t seed, double log2_spread) {
    std::vector<double> u(n);
    fill_uniform(kKey, seed << 32, u.data(), n);
    // by additions and multiplications alone: the library's logarithms may differ
    for (double& x : u) x = std::ldexp(1 + x, static_cast<int>((x - 0.5) * log2_spread));
    return u;
}

void follow(Selection selection, int64_t capacity, double alpha, double share, double spread) {
    const Layout layout = layout_of(selection, capacity, 16, 4, whole_lines(sizeof(Header)));
    auto* header = static_cast<Header*>(std::aligned_alloc(64, whole_lines(layout.nbytes)));
    std::memset(static_cast<void*>(header), 0, layout.nbytes);
    header->layout = layout;
    header->random_key[0] = kKey[0];
    header->random_key[1] = kKey[1];
    header->alpha = alpha;
    header->uniform_share = share;
    header->max_priority = 1;
    renew_max_mass(header);
    SelectorSpace space;
    Selector* selector = make_selector(header, &space);

    std::vector<int64_t> slot(capacity), scratch(capacity);
    for (int64_t i = 0; i < capacity; ++i) slot[i] = i;
    for (int64_t i = 0; i < capacity; ++i) *generation_of(header, i) = 2;
    header->n_started = header->n_published = capacity;
    const std::vector<double> given = priorities(capacity, 1, spread);
    selector->store_priorities(slot.data(), capacity, given.data());
    selector->admit(slot.data(), capacity, scratch.data());
    if (selector->needs_all()) {  // by ranks: what a sweep does
        std::vector<double> table(selector->n_ranking), rest(2 * capacity);
        std::vector<double> masses(selector->leaf, selector->leaf + capacity);
        selector->derive_masses(alpha, given.data(), masses.data(), capacity, table.data(),
                                rest.data());
        selector->take_over(table.data());
        selector->set_derived(0, capacity, given.data(), masses.data());
        take_in(masses);
    }

    constexpr int64_t n = 250;  // not a multiple of any vector
    std::vector<double> u(n), mass(n), fresh;
    std::vector<float> weight(n);
    std::vector<int64_t> drawn(n);
    std::vector<Handle> handle(n);
    for (uint64_t batch = 0; batch < 200; ++batch) {
        const double extent = selector->extent();
        const bool is_stratified = batch % 2 == 0;
        fill_uniform(kKey, batch * n, u.data(), n);
        for (int64_t i = 0; i < n; ++i) {
            u[i] = is_stratified ? (i + u[i]) * (1.0 / n) * extent : u[i] * extent;
        }
        selector->draw(u.data(), extent, drawn.data(), n, is_stratified ? n : 0);
        take_in(drawn);
        if (selection == kUniform) continue;
        for (int64_t i = 0; i < n; ++i) mass[i] = selector->mass_at(drawn[i]);
        selector->weigh(mass.data(), n, 0.4 + 0.003 * batch, weight.data());
        take_in(mass);
        take_in(weight);
        fresh = priorities(n, batch + 2, spread);
        for (int64_t i = 0; i < n; ++i) handle[i] = {drawn[i], 2};
        const double prepared = selector->prepare(handle.data(), fresh.data(), mass.data(), n);
        selector->update(drawn.data(), fresh.data(), mass.data(), n, prepared);
        take_in(fresh);
    }
    const double* noise = &header->noise.n_rows;
    take_in(std::vector<double>(noise, noise + 5));
    take_in(std::vector<double>{selector->extent()});
    std::free(header);
}

}  // namespace

int main() {
    for (const double spread : {4.0, 60.0}) {
        for (const double share : {0.0, 0.1}) {
            for (const double alpha : {0.0, 0.6, 1.0}) {
                follow(kProportional, 1000, alpha, share, spread);
            }
            follow(kProportional, 100'003, 0.7, share, spread);
        }
    }
    for (const double alpha : {0.0, 0.7, 1.0}) follow(kRanked, 10'000, alpha, 0.0, 60.0);
    follow(kUniform, 1000, 0, 0, 1);
    std::printf("%016llx %s\n", static_cast<unsigned long long>(digest), instructions());
}

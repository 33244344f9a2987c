// Selection in proportion to masses: mass = priority ** alpha (Schaul et al. 2016, section 3.3).
//
// Priorities are stored. Masses, the leaves of a sum tree, are derived from them. So alpha can be
// set to anything and back, and whoever repairs a block after a death derives every mass anew
// instead of finding out which stores the dead process still made.
//
// A share s of the draws may be uniform among the rows with mass, of which there are N:
//
//     P(i) = (1 - s) mass_i / total + s / N
//
// Then no row is drawn more rarely than s times as often as by uniform replay, however old and
// wrong its priority is, and no importance weight exceeds s ** -beta.
#pragma once
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "noise.hpp"
#include "philox.hpp"
#include "power.hpp"
#include "selector.hpp"
#include "sum_tree.hpp"

namespace kary {

class Proportional : public Selector {
  public:
    explicit Proportional(Header* header) : header_(header) {
        const Layout& layout = header->layout;
        lay_out(&tree_, part_of<char>(header, layout.tree_at), layout.capacity, layout.arity);
        leaf = leaves_of(tree_);
        priority = priorities_of(header);
        largest = largest_mass(layout.capacity);
    }

    double extent() const override { return total_of(tree_); }
    void draw(double* point, double extent, int64_t* slot, int64_t n,
              int64_t density) const override {
        const double share = load_relaxed(&header_->uniform_share);
        if (share <= 0) {
            draw_by_mass(point, slot, n, density);
            return;
        }
        for (int64_t i = 0; i < n; i += kSearches) {
            draw_mixed(point + i, extent, slot + i, std::min(kSearches, n - i), density, share);
        }
    }
    void draw_by_mass(double* point, int64_t* slot, int64_t n, int64_t density) const override {
        search(tree_, point, slot, n, density, RowsAhead(header_));
    }
    void draw_alike(double* point, int64_t* slot, int64_t n) const override {
        for (int64_t i = 0; i < n; i += kSearches) {
            draw_mixed(point + i, 1, slot + i, std::min(kSearches, n - i), 0, 1);
        }
    }
    // Without a uniform share no bound is known: (N · P(i)) ** -beta over its largest in the batch.
    // N and the total cancel then, so the masses are enough.
    void weigh(const double* mass, int64_t n, double beta, float* weight) const override {
        const double share = load_relaxed(&header_->uniform_share);
        const double smallest = smallest_of(mass, n);
        // others may have taken all rows out meanwhile
        const double total = share > 0 ? std::fmax(total_of(tree_), smallest) : smallest;
        const double by_mass =
            share > 0 ? (1 - share) * static_cast<double>(load_relaxed(&header_->n_with_mass)) : 1;
        if (raise(mass, by_mass / total, share, -beta, weight, n) == 0) return;
        for (int64_t i = 0; i < n; ++i) {  // by logarithms, for a quotient may be infinite
            const double base = share > 0 ? std::log2(mass[i] / total * by_mass + share)
                                          : std::log2(mass[i]) - std::log2(total);
            weight[i] = static_cast<float>(std::exp2(-beta * base));
        }
    }

    // A slot without a row has no mass, so only draws without replacement come to this.
    bool needs_remainder(bool is_unique) const override { return is_unique; }
    // O(n_drawn · K · log_K(capacity)), and with a uniform share O(capacity)
    bool build_remainder(const Handle* drawn, int64_t n_drawn, int64_t n,
                         Remainder* rest) const override {
        rest->extent = 0;
        constexpr int64_t kInVain = 16;  // draws beyond the rows of the batch
        if (!rest->tree.make(tree_, n + kInVain)) return false;
        for (int64_t i = 0; i < n_drawn; ++i) rest->tree.remove(drawn[i].index);
        rest->extent = rest->tree.total();
        const double share = load_relaxed(&header_->uniform_share);
        rest->alike = 0;
        if (share <= 0) return true;
        const int64_t n_started = load_relaxed(&header_->n_started);
        if (!rest->slots.make(n_started)) return false;
        for (int64_t slot = 0; slot < n_started; ++slot) {
            if (mass_at(slot) > 0 && !rest->drawn.has(slot)) rest->slots.add(slot);
        }
        const double n_rows = static_cast<double>(rest->slots.size() + n_drawn);
        rest->by_mass = (1 - share) / std::fmax(total_of(tree_), DBL_MIN);
        rest->alike = share / std::fmax(n_rows, 1);
        return true;
    }
    int64_t draw_from(Remainder* rest, double u) const override {
        const double alike = rest->alike * static_cast<double>(rest->slots.size());
        const double share = alike / (alike + rest->by_mass * rest->tree.total());
        const bool is_alike = alike > 0 && u < share;
        const int64_t slot =
            is_alike ? rest->slots.take(u / share)
                     : rest->tree.find((u - share) / (1 - share) * rest->tree.total());
        // what the tree gave stays in the list: if it comes from there, the reader draws again
        if (!is_alike || !rest->drawn.has(slot)) rest->tree.remove(slot);
        rest->extent = rest->tree.is_used_up() ? 0 : rest->tree.total();
        return slot;
    }
    void put_back(Remainder*) const override {}  // only draws with replacement put back

    void vacate(const int64_t* slot, int64_t n, int64_t* scratch) override {
        int64_t n_emptied = 0;
        for (int64_t i = 0; i < n; ++i) {
            if (load_relaxed(leaf + slot[i]) <= 0) continue;  // only changed under the lock
            set_leaf(slot[i], 0);
            scratch[n_emptied++] = slot[i];
        }
        if (n_emptied > 0) recompute(tree_, scratch, n_emptied);
    }
    void store_priorities(const int64_t* slot, int64_t n, const double* given) override {
        for (int64_t i = 0; i < n; ++i) {
            const bool is_given = given != nullptr && given[i] >= 0;
            store(slot[i], is_given ? given[i] : header_->max_priority);
        }
    }
    void admit(const int64_t* slot, int64_t n, int64_t* scratch) override {
        for (int64_t i = 0; i < n; ++i) {
            const double given = priority[slot[i]];
            // 0 whatever alpha is; and our own masses, whose call is inline
            set_leaf(slot[i], given == 0 ? 0 : Proportional::new_mass(slot[i], given));
            scratch[i] = slot[i];
        }
        recompute(tree_, scratch, n);
    }
    void retire(int64_t* slot, int64_t n) override {
        for (int64_t i = 0; i < n; ++i) {
            // no transition any more: no later update gives it mass again
            store_relaxed(priority + slot[i], 0.0);  // [priority] see store
            set_leaf(slot[i], 0);
        }
        recompute(tree_, slot, n);
    }

    double prepare(const Handle* handle, const double* priority, double* mass,
                   int64_t n) const override {
        const double alpha = load_relaxed(&header_->alpha);  // `update` looks again, under the lock
        // As many lines as may be under way at once, and meanwhile some powers; all the lines first
        // would take as long as memory does, and the powers come after.
        constexpr int64_t kRows = 16;
        for (int64_t first = 0; first < n; first += kRows) {
            const int64_t n_rows = std::min(kRows, n - first);
            for (int64_t i = first; i < first + n_rows; ++i) ask_for(handle[i].index);
            raise(priority + first, alpha, mass + first, n_rows);
        }
        const double* parents = tree_.level[tree_.n_levels - 2];
        for (int64_t i = 0; i < n; ++i) {
            prefetch_far(parents + (handle[i].index >> tree_.log2_arity));
        }
        return alpha;
    }
    void update(int64_t* slot, const double* given, double* mass, int64_t n,
                double alpha) override {
        if (alpha != header_->alpha) raise(given, header_->alpha, mass, n);
        learn_noise(header_, leaf, total_of(tree_), slot, given, n);
        for (int64_t i = 0; i < n; ++i) {
            store(slot[i], given[i]);
            set_leaf(slot[i], mass[i]);
        }
        recompute(tree_, slot, n);
    }
    // Under alpha = 0 a mass tells no priority: the row keeps its own, or gets the largest.
    void set_masses(const int64_t* slot, const double* mass, int64_t n) override {
        const double alpha = header_->alpha;
        for (int64_t i = 0; i < n; ++i) {
            double kept = priority[slot[i]];
            if (mass[i] == 0) kept = 0;
            else if (alpha == 0) kept = kept > 0 ? kept : header_->max_priority;
            else if (kept <= 0 || raise(kept, alpha) != mass[i])
                kept = std::fmin(std::fmax(std::pow(mass[i], 1 / alpha), 5e-324), largest);
            store(slot[i], kept);
            set_leaf(slot[i], mass[i]);
        }
    }

    void ask(double alpha) override {
        if (alpha == header_->alpha) return;
        // first: who repairs the block after our death finishes what follows
        store_release(&header_->alpha, alpha);
        renew_max_mass(header_);
    }
    void derive_masses(double alpha, const double* priority, double* mass, int64_t n, double*,
                       double*) const override {
        for (int64_t i = 0; i < n; ++i) {
            if (mass[i] > 0) mass[i] = raise(priority[i], alpha);
        }
    }
    // By `leaf` alone, for just the rows that have mass get another: no look at the generations,
    // which are far apart.
    void set_derived(int64_t first, int64_t end, const double* known, const double* mass) override {
        if (first >= end) return;
        for (int64_t slot = first; slot < end; ++slot) {
            if (load_relaxed(leaf + slot) <= 0) continue;  // only changed under the lock
            const double now = priority[slot];
            const bool is_known =
                known != nullptr && now == known[slot - first] && mass[slot - first] > 0;
            set_leaf(slot, is_known ? mass[slot - first] : new_mass(slot, now));
        }
        recompute_run(tree_, first, end - 1);
    }
    void derive() override {
        renew_max_mass(header_);
        for (int64_t slot = 0; slot < header_->n_started; ++slot) {
            const double mass = may_have_mass(slot) ? raise(priority[slot], header_->alpha) : 0;
            if (mass != load_relaxed(leaf + slot)) set_leaf(slot, mass);
        }
        recount();
        // last: what is derived is what was asked for
        store_release(&header_->sweep_done, header_->sweep_asked);
    }
    void forget() override {
        for (int64_t slot = 0; slot < header_->n_started; ++slot) set_leaf(slot, 0);
        recount();
        store_relaxed(&header_->max_priority, 1.0);
        renew_max_mass(header_);
        forget_noise(header_);
        store_relaxed(&header_->sweep_done, header_->sweep_asked);  // by no row
    }

  protected:
    // The mass of a priority above 0 that a slot has just got.
    virtual double new_mass(int64_t /*slot*/, double given) {
        if (given == header_->max_priority) return header_->max_mass;
        return raise(given, header_->alpha);
    }
    // Stores a leaf; the sums above are the caller's.
    void set_leaf(int64_t slot, double mass) {
        const int64_t change = (mass > 0) - (load_relaxed(leaf + slot) > 0);
        if (change != 0) {
            store_relaxed(&header_->n_with_mass, load_relaxed(&header_->n_with_mass) + change);
        }
        // [leaf] release: pairs with the acquires in Selector::mass_at (selector.hpp) and in
        // SumTree.sample (sum_tree.pyx), so whoever sees a new row's mass also sees its generation,
        // which was stored before
        store_release(leaf + slot, mass);
        if (header_->n_copying > 0) count_change(header_, slot);
    }
    // Counts the leaves above 0 anew, and adds up all sums.
    void recount() {
        int64_t n_with_mass = 0;
        for (int64_t slot = 0; slot < header_->n_started; ++slot) {
            n_with_mass += load_relaxed(leaf + slot) > 0;
        }
        store_relaxed(&header_->n_with_mass, n_with_mass);
        rebuild(tree_);
    }
    bool may_have_mass(int64_t slot) const {
        return priority[slot] > 0 && is_published(load_relaxed(generation_of(header_, slot)));
    }
    [[gnu::always_inline]] void ask_for(int64_t slot) const {
        prefetch_far(generation_of(header_, slot));
        prefetch_far(leaf + slot);
        prefetch_far(priority + slot);
    }
    // Stores a priority. That comes before its mass, for repair derives masses from priorities; and
    // the largest one is noted before that, so that it is known whatever becomes of us.
    void store(int64_t slot, double given) {
        if (given > header_->max_priority) {
            store_relaxed(&header_->max_priority, given);
            renew_max_mass(header_);
        }
        // [priority] relaxed: pairs with the copies that sweep.hpp makes without the lock. Under
        // it, a priority that has changed since is seen, so a stale one does no harm.
        store_relaxed(priority + slot, given);
    }

    Header* header_;
    Tree tree_;

  private:
    // Draws at most kSearches slots. The first `share` of the extent belongs to all rows alike, the
    // rest to their masses. Rows of that share are drawn independently, as by uniform replay, also
    // where points are stratified: what counts is then where in its stratum a point is. What
    // rounding makes of that, even NaN, slot_at bounds.
    void draw_mixed(double* point, double extent, int64_t* slot, int64_t n, int64_t density,
                    double share) const {
        constexpr int64_t kByMass = -1;
        const double alike = share * extent;
        const double n_started = static_cast<double>(load_relaxed(&header_->n_started));
        const RowsAhead ask(header_);
        for (int64_t i = 0; i < n; ++i) {
            slot[i] = kByMass;
            if (share < 1 && point[i] >= alike) continue;
            double u = point[i] / alike;
            if (density > 0) {
                const double at = point[i] / extent * static_cast<double>(density);
                const double stratum = std::floor(at);
                const double end = share * static_cast<double>(density);
                u = (at - stratum) / std::fmin(1, end - stratum);
            }
            slot[i] = slot_at(u, n_started);
            prefetch_far(leaf + slot[i]);
            ask(slot[i]);
        }
        int64_t found[kSearches];
        int64_t n_searched = 0;  // their points are moved to the front
        for (int64_t i = 0; i < n; ++i) {
            double prefix = (point[i] - alike) / (1 - share);
            if (slot[i] != kByMass) {
                if (find_alike(point[i], n_started, slot + i)) continue;
                slot[i] = kByMass;  // all rows with mass are gone: whoever draws looks again
                prefix = 0;
                density = 0;
            }
            point[n_searched++] = prefix;
        }
        search(tree_, point, found, n_searched, static_cast<int64_t>((1 - share) * density), ask);
        for (int64_t i = 0, j = 0; i < n; ++i) {
            if (slot[i] == kByMass) slot[i] = found[j++];
        }
    }
    // Draws among all slots until one has mass, and not near the first: a row must not gain from
    // neighbours that have none. Random numbers follow from the point, which is one itself. Where
    // so few slots have mass that thousands of draws hit none, all are counted: O(capacity).
    bool find_alike(double point, double n_started, int64_t* slot) const {
        constexpr int kAttempts = 4096;
        uint64_t counter;
        std::memcpy(&counter, &point, sizeof counter);
        double u = 0;
        for (int attempts = 0; mass_at(*slot) <= 0; ++attempts) {
            fill_uniform(header_->random_key, counter + attempts, &u, 1);
            if (attempts == kAttempts) return find_nth(u, n_started, slot);
            *slot = slot_at(u, n_started);
        }
        return true;
    }
    // Finds the slot before which a share u of those with mass are.
    bool find_nth(double u, double n_started, int64_t* slot) const {
        // relaxed: others change the count meanwhile, and any recent one is as good
        const double n_with_mass = static_cast<double>(load_relaxed(&header_->n_with_mass));
        auto n_before = static_cast<int64_t>(u * n_with_mass);
        bool is_found = false;  // others may take rows out meanwhile: the last one is it then
        for (int64_t i = 0; i < static_cast<int64_t>(n_started) && n_before >= 0; ++i) {
            if (mass_at(i) <= 0) continue;
            *slot = i;
            is_found = true;
            --n_before;
        }
        return is_found;
    }
    // A reset may have set n_started to 0 meanwhile: slot 0 is there, and has no mass then.
    static int64_t slot_at(double u, double n_started) {
        return static_cast<int64_t>(std::fmax(std::fmin(u * n_started, n_started - 1), 0));
    }
};

}  // namespace kary

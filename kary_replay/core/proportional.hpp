// Selection in proportion to masses: mass = priority ** alpha (Schaul et al. 2016, section 3.3).
//
// Priorities are stored. Masses, the leaves of a sum tree, are derived from them. So alpha can be
// set to anything and back, and whoever repairs a block after a death derives every mass anew
// instead of finding out which stores the dead process still made.
#pragma once
#include <cmath>

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
    void draw(double* point, int64_t* slot, int64_t n, int64_t density) const override {
        search(tree_, point, slot, n, density);
    }

    // A slot without a row has no mass, so only draws without replacement come to this.
    bool needs_remainder(bool is_unique) const override { return is_unique; }
    // O(n_drawn · K · log_K(capacity))
    bool build_remainder(const Handle* drawn, int64_t n_drawn, int64_t n,
                         Remainder* rest) const override {
        rest->extent = 0;
        constexpr int64_t kInVain = 16;  // draws beyond the rows of the batch
        if (!rest->tree.make(tree_, n + kInVain)) return false;
        for (int64_t i = 0; i < n_drawn; ++i) rest->tree.remove(drawn[i].index);
        rest->extent = rest->tree.total();
        return true;
    }
    int64_t draw_from(Remainder* rest, double u) const override {
        const int64_t slot = rest->tree.find(u * rest->tree.total());
        rest->tree.remove(slot);
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
            if (given == 0) set_leaf(slot[i], 0);  // whatever alpha is
            else if (given == header_->max_priority) set_leaf(slot[i], header_->max_mass);
            else set_leaf(slot[i], std::pow(given, header_->alpha));
            scratch[i] = slot[i];
        }
        recompute(tree_, scratch, n);
    }
    void retire(int64_t* slot, int64_t n) override {
        for (int64_t i = 0; i < n; ++i) {
            priority[slot[i]] = 0;  // no transition any more: no later update gives it mass again
            set_leaf(slot[i], 0);
        }
        recompute(tree_, slot, n);
    }

    double prepare(const Handle* handle, const double* priority, double* mass,
                   int64_t n) const override {
        const double alpha = load_relaxed(&header_->alpha);  // `update` looks again, under the lock
        for (int64_t i = 0; i < n; ++i) {
            ask_for(handle[i].index);  // and meanwhile computes
            mass[i] = std::pow(priority[i], alpha);
        }
        return alpha;
    }
    void update(int64_t* slot, const double* given, double* mass, int64_t n,
                double alpha) override {
        if (alpha != header_->alpha) {
            for (int64_t i = 0; i < n; ++i) mass[i] = std::pow(given[i], header_->alpha);
        }
        for (int64_t i = 0; i < n; ++i) {
            store(slot[i], given[i]);
            set_leaf(slot[i], mass[i]);
        }
        recompute(tree_, slot, n);
    }
    // Under alpha = 0 a mass tells no priority: the row keeps its own, or gets the largest.
    void take_masses(const int64_t* slot, const double* mass, int64_t n) override {
        const double alpha = header_->alpha;
        for (int64_t i = 0; i < n; ++i) {
            double& kept = priority[slot[i]];
            if (mass[i] == 0) kept = 0;
            else if (alpha == 0) kept = kept > 0 ? kept : header_->max_priority;
            else if (kept <= 0 || std::pow(kept, alpha) != mass[i])
                kept = std::fmin(std::fmax(std::pow(mass[i], 1 / alpha), 5e-324), largest);
        }
    }

    bool set_alpha(double alpha) override {
        if (alpha == header_->alpha) return true;
        // first: who repairs the block after our death finishes what follows
        store_release(&header_->alpha, alpha);
        derive();
        return true;
    }
    void derive() override {
        renew_max_mass(header_);
        for (int64_t slot = 0; slot < header_->n_started; ++slot) {
            const double mass = may_have_mass(slot) ? std::pow(priority[slot], header_->alpha) : 0;
            if (mass != load_relaxed(leaf + slot)) set_leaf(slot, mass);
        }
        rebuild(tree_);
    }
    void forget() override {
        for (int64_t slot = 0; slot < header_->n_started; ++slot) set_leaf(slot, 0);
        rebuild(tree_);
        store_relaxed(&header_->max_priority, 1.0);
        renew_max_mass(header_);
    }

  protected:
    // [leaf] release: pairs with the acquire in Selector::mass_at (selector.hpp), so whoever sees a
    // new row's mass also sees its generation, which was stored before.
    void set_leaf(int64_t slot, double mass) { store_release(leaf + slot, mass); }
    bool may_have_mass(int64_t slot) const {
        return priority[slot] > 0 && is_published(load_relaxed(generation_of(header_, slot)));
    }
    void ask_for(int64_t slot) const {
        prefetch_far(generation_of(header_, slot));
        prefetch_to_write(leaf + slot);
        prefetch_to_write(priority + slot);
    }
    // Stores a priority. That comes before its mass, for repair derives masses from priorities; and
    // the largest one is noted before that, so that it is known whatever becomes of us.
    void store(int64_t slot, double given) {
        if (given > header_->max_priority) {
            store_relaxed(&header_->max_priority, given);
            renew_max_mass(header_);
        }
        priority[slot] = given;
    }

    Header* header_;
    Tree tree_;
};

}  // namespace kary

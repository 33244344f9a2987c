// Selection by ranks: mass = rank ** -alpha, and the largest priority has rank 1 (Schaul et al.
// 2016, section 3.3).
//
// A rank depends on all priorities. So masses are exact when all rows have been ranked. Until they
// are ranked again, a new priority gets the mass of the place that it would have had then, and one
// of several equal priorities the mean of their masses. Priorities at the top, where new rows come
// in, take the ranks 1, 2, … in turn. A table of priorities at chosen ranks tells the place: it has
// every rank up to 64, and beyond that each rank that is 2.5 % above the one before.
#pragma once
#include <algorithm>
#include <cstdlib>

#include "proportional.hpp"

namespace kary {

constexpr int kRanks = 1024;

// Guarded by the lock.
struct Ranking {
    int64_t n_changed;        // priorities set since all rows were ranked
    int64_t n_bounds;         // 0: never ranked
    int64_t n_on_top;         // of the changed ones, those not below the first
    double priority[kRanks];  // of the row at each chosen rank, in descending order
    double rank[kRanks];
    double mass[kRanks];      // rank ** -alpha
    double sum[kRanks];       // of the masses of all ranks up to this one
};

// Which of two slots ranks first: the one of the larger priority, and of equal ones the lower one.
struct RanksBefore {
    const double* priority;
    bool operator()(int64_t a, int64_t b) const {
        return priority[a] != priority[b] ? priority[a] > priority[b] : a < b;
    }
};

class Ranked final : public Proportional {
  public:
    explicit Ranked(Header* header)
        : Proportional(header),
          table_(part_of<Ranking>(header, header->layout.ranking_at)) {
        ranking = reinterpret_cast<double*>(table_);
        n_ranking = whole_lines(sizeof(Ranking)) / sizeof(double);
    }

    void admit(const int64_t* slot, int64_t n, int64_t* scratch) override {
        for (int64_t i = 0; i < n; ++i) {
            const double given = priority[slot[i]];
            set_leaf(slot[i], given == 0 ? 0 : take_place(given));
            scratch[i] = slot[i];
        }
        recompute(tree_, scratch, n);
        rank_if_due(n);
    }
    double prepare(const Handle* handle, const double*, double*, int64_t n) const override {
        for (int64_t i = 0; i < n; ++i) ask_for(handle[i].index);
        return 0;
    }
    // Each row takes one place, however often it comes; the largest priority chooses first.
    void update(int64_t* slot, const double* given, double*, int64_t n, double) override {
        learn_noise(header_, leaf, total_of(tree_), slot, given, n);
        for (int64_t i = 0; i < n; ++i) store(slot[i], given[i]);
        std::sort(slot, slot + n, RanksBefore{priority});
        n = std::unique(slot, slot + n) - slot;
        for (int64_t i = 0; i < n; ++i) set_leaf(slot[i], take_place(priority[slot[i]]));
        recompute(tree_, slot, n);
        rank_if_due(n);
    }
    // A mass does not tell the rank: the row keeps its priority, or gets the largest.
    void set_masses(const int64_t* slot, const double* mass, int64_t n) override {
        for (int64_t i = 0; i < n; ++i) {
            double& kept = priority[slot[i]];
            if (mass[i] == 0) kept = 0;
            else if (kept <= 0) kept = header_->max_priority;
            set_leaf(slot[i], mass[i]);
        }
    }

    bool set_alpha(double alpha) override { return alpha == header_->alpha || rank_all(alpha); }
    bool rank() override { return rank_all(header_->alpha); }
    // Without memory to rank the rows, their masses stay those of the ranks of the last time.
    void derive() override {
        for (int64_t slot = 0; slot < header_->n_started; ++slot) {
            const double before = load_relaxed(leaf + slot);  // only changed under the lock
            if (!may_have_mass(slot)) set_leaf(slot, 0);
            else if (before <= 0) set_leaf(slot, take_place(priority[slot]));
        }
        recount();
        rank();
    }
    void forget() override {
        Proportional::forget();
        table_->n_changed = table_->n_bounds = table_->n_on_top = 0;
    }

  private:
    // The mass of the place that a new priority takes. The next one cannot have that place: so this
    // is only for a priority that really is stored, and once.
    double take_place(double given) {
        const Ranking& table = *table_;
        const double* bound = table.priority;
        const int64_t n = table.n_bounds;
        if (n == 0 || given >= bound[0]) {
            return std::pow(static_cast<double>(++table_->n_on_top), -header_->alpha);
        }
        const auto above = [](double b, double p) { return b > p; };
        const auto below = [](double p, double b) { return b < p; };
        const int64_t j = std::lower_bound(bound, bound + n, given, above) - bound;
        if (j == n) return table.mass[n - 1];
        if (bound[j] == given) {
            const int64_t k = std::upper_bound(bound + j, bound + n, given, below) - bound - 1;
            const double sum = table.sum[k] - table.sum[j] + table.mass[j];
            return sum / (table.rank[k] - table.rank[j] + 1);
        }
        const double part = (bound[j - 1] - given) / (bound[j - 1] - bound[j]);
        return table.mass[j - 1] + part * (table.mass[j] - table.mass[j - 1]);
    }

    // Counts n changed priorities. When as many have changed as there are, all rows are ranked, so
    // it costs each change O(log n). Without memory for it, the next change tries again.
    void rank_if_due(int64_t n) {
        table_->n_changed += n;
        if (table_->n_changed >= header_->n_started) rank();
    }

    // Sets alpha and gives every row with mass that of its rank. Doing it twice does no harm. False
    // means that there is no memory for it, and that nothing has changed.
    bool rank_all(double alpha) {
        const size_t room = std::max<int64_t>(header_->n_started, 1) * sizeof(int64_t);
        auto* slot = static_cast<int64_t*>(std::malloc(room));
        if (slot == nullptr) return false;
        // first: who repairs the block after our death ranks all rows by it
        store_release(&header_->alpha, alpha);
        Ranking& table = *table_;
        table.n_changed = table.n_on_top = table.n_bounds = 0;
        int64_t n = 0;
        double sum = 0;
        for (int64_t i = 0; i < header_->n_started; ++i) {
            if (load_relaxed(leaf + i) > 0) slot[n++] = i;  // rows without mass stay without
        }
        std::sort(slot, slot + n, RanksBefore{priority});
        int64_t next = 1;
        for (int64_t rank = 1; rank <= n; ++rank) {
            const double mass = std::pow(static_cast<double>(rank), -alpha);
            sum += mass;
            set_leaf(slot[rank - 1], mass);
            if ((rank == next || rank == n) && table.n_bounds < kRanks) {
                table.priority[table.n_bounds] = priority[slot[rank - 1]];
                table.rank[table.n_bounds] = static_cast<double>(rank);
                table.sum[table.n_bounds] = sum;
                table.mass[table.n_bounds++] = mass;
                next = rank < 64 ? rank + 1 : rank + rank / 40;
            }
        }
        std::free(slot);
        rebuild(tree_);
        return true;
    }

    Ranking* table_;
};

}  // namespace kary

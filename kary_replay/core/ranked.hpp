// Selection by ranks: mass = rank ** -alpha, and the largest priority has rank 1 (Schaul et al.
// 2016, section 3.3).
//
// A rank depends on all priorities. So masses are exact when all rows have been ranked, which
// sweep.hpp does beside. Until they are ranked again, a new priority gets the mass of the place
// that it would have had then, and one of several equal priorities the mean of their masses.
// Priorities at the top, where new rows come in, take the ranks 1, 2, … in turn. A table of
// priorities at chosen ranks tells the place: it has every rank up to 64, and beyond that each rank
// that is 2.5 % above the one before.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "proportional.hpp"

namespace kary {

constexpr int kRanks = 1024;

// Guarded by the lock.
struct Ranking {
    int64_t n_changed;        // priorities set since all rows were ranked
    int64_t n_bounds;         // 0: never ranked, or who did has died
    int64_t n_on_top;         // of the changed ones, those not below the first
    double priority[kRanks];  // of the row at each chosen rank, in descending order
    double rank[kRanks];
    double mass[kRanks];      // rank ** -alpha
    double sum[kRanks];       // of the masses of all ranks up to this one
    int64_t n_ahead;          // as n_on_top, of rows that a sweep has not come to yet
};

// A row that is being ranked: first the one of the larger priority, and of equal ones the one of
// the lower slot.
struct Contender {
    double priority;
    int64_t slot;
    bool operator<(const Contender& other) const {
        return priority != other.priority ? priority > other.priority : slot < other.slot;
    }
};

// Which of two slots ranks first.
struct RanksBefore {
    const double* priority;
    bool operator()(int64_t a, int64_t b) const {
        return Contender{priority[a], a} < Contender{priority[b], b};
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
            set_leaf(slot[i], given == 0 ? 0 : take_place(slot[i], given));
            scratch[i] = slot[i];
        }
        recompute(tree_, scratch, n);
        table_->n_changed += n;
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
        for (int64_t i = 0; i < n; ++i) {
            set_leaf(slot[i], take_place(slot[i], priority[slot[i]]));
        }
        recompute(tree_, slot, n);
        table_->n_changed += n;
    }
    // A mass does not tell the rank: the row keeps its priority, or gets the largest.
    void set_masses(const int64_t* slot, const double* mass, int64_t n) override {
        for (int64_t i = 0; i < n; ++i) {
            double kept = priority[slot[i]];
            if (mass[i] == 0) kept = 0;
            else if (kept <= 0) kept = header_->max_priority;
            store_relaxed(priority + slot[i], kept);  // [priority] see Proportional::store
            set_leaf(slot[i], mass[i]);
        }
    }

    bool needs_all() const override { return true; }
    // As many priorities have changed as there are: so ranks cost each change O(log n).
    bool is_due() const override { return table_->n_changed >= header_->n_started; }
    void ask(double alpha) override {
        Proportional::ask(alpha);
        table_->n_changed = 0;
        table_->n_ahead = table_->n_on_top;
    }
    void derive_masses(double alpha, const double* priority, double* mass, int64_t n,
                       double* ranking, double* scratch) const override {
        auto* row = reinterpret_cast<Contender*>(scratch);
        int64_t n_rows = 0;
        for (int64_t slot = 0; slot < n; ++slot) {
            if (mass[slot] > 0) row[n_rows++] = {priority[slot], slot};
        }
        std::sort(row, row + n_rows);
        Ranking& table = *reinterpret_cast<Ranking*>(ranking);
        table.n_changed = table.n_bounds = table.n_on_top = table.n_ahead = 0;
        int64_t next = 1;
        double sum = 0;
        for (int64_t rank = 1; rank <= n_rows; ++rank) {
            const double due = 1 / raise(static_cast<double>(rank), alpha);
            sum += due;
            mass[row[rank - 1].slot] = due;
            if ((rank == next || rank == n_rows) && table.n_bounds < kRanks) {
                table.priority[table.n_bounds] = row[rank - 1].priority;
                table.rank[table.n_bounds] = static_cast<double>(rank);
                table.sum[table.n_bounds] = sum;
                table.mass[table.n_bounds++] = due;
                next = rank < 64 ? rank + 1 : rank + rank / 40;
            }
        }
    }
    // Who dies in the middle leaves a table without bounds, by which new priorities take places on
    // top until the next sweep: masses out of half a table might be 0, or negative. The relaxed
    // stores make n_bounds one word at every instruction; whoever reads it has the lock.
    void take_over(const double* ranking) override {
        const auto& next = *reinterpret_cast<const Ranking*>(ranking);
        const auto n = static_cast<size_t>(next.n_bounds);
        store_relaxed(&table_->n_bounds, int64_t{0});
        std::atomic_signal_fence(std::memory_order_seq_cst);  // a death keeps the program's order
        table_->n_on_top = table_->n_ahead = 0;
        std::copy_n(next.priority, n, table_->priority);
        std::copy_n(next.rank, n, table_->rank);
        std::copy_n(next.mass, n, table_->mass);
        std::copy_n(next.sum, n, table_->sum);
        std::atomic_signal_fence(std::memory_order_seq_cst);
        store_relaxed(&table_->n_bounds, next.n_bounds);  // last
    }
    // A row without mass that should have one takes a place, and the others keep theirs. What is
    // asked for here, whoever comes next does, not under this hold of the lock.
    void derive() override {
        store_relaxed(&header_->sweep_asked, header_->sweep_asked + 1);
        header_->n_swept = 0;
        table_->n_ahead = table_->n_on_top;
        for (int64_t slot = 0; slot < header_->n_started; ++slot) {
            const double before = load_relaxed(leaf + slot);  // only changed under the lock
            if (!may_have_mass(slot)) set_leaf(slot, 0);
            else if (before <= 0) set_leaf(slot, take_place(slot, priority[slot]));
        }
        recount();
    }
    void forget() override {
        Proportional::forget();
        table_->n_changed = table_->n_bounds = table_->n_on_top = table_->n_ahead = 0;
    }

  private:
    double new_mass(int64_t slot, double given) override { return take_place(slot, given); }

    // The mass of the place that a new priority takes. The next one cannot have that place: so this
    // is only for a priority that really is stored, and once. A row that a sweep has yet to come to
    // takes one for the meantime: the sweep gives it another.
    double take_place(int64_t slot, double given) {
        const Ranking& table = *table_;
        const double* bound = table.priority;
        const int64_t n = table.n_bounds;
        if (n == 0 || given >= bound[0]) {
            const bool is_ahead = !is_settled(header_) && slot >= header_->n_swept;
            const int64_t place = is_ahead ? ++table_->n_ahead : ++table_->n_on_top;
            return 1 / raise(static_cast<double>(place), header_->alpha);
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

    Ranking* table_;
};

}  // namespace kary

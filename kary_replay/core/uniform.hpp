// Uniform selection: every slot that holds a row is drawn alike.
//
// A draw picks one of the slots in use and keeps nothing. The slot may be vacant, and then the
// reader draws again; where most are vacant, a batch draws from a list of those that are not.
#pragma once
#include <algorithm>

#include "selector.hpp"

namespace kary {

class Uniform final : public Selector {
  public:
    explicit Uniform(Header* header) : header_(header) {}

    double extent() const override {
        if (load_relaxed(&header_->n_published) <= 0) return 0;
        return static_cast<double>(load_relaxed(&header_->n_started));
    }
    void draw(double* point, double, int64_t* slot, int64_t n, int64_t) const override {
        const int64_t last = header_->layout.capacity - 1;
        const RowsAhead ask(header_);
        for (int64_t i = 0; i < n; ++i) {
            slot[i] = std::min(static_cast<int64_t>(point[i]), last);
            ask(slot[i]);
        }
    }

    bool needs_remainder(bool) const override { return true; }
    // O(capacity)
    bool build_remainder(const Handle*, int64_t, int64_t, Remainder* rest) const override {
        const int64_t n_started = load_relaxed(&header_->n_started);
        rest->extent = 0;
        if (!rest->slots.make(n_started)) return false;
        for (int64_t slot = 0; slot < n_started; ++slot) {
            // relaxed: Reader.read_rows (reader.pyx) looks again
            if (!is_published(load_relaxed(generation_of(header_, slot)))) continue;
            if (!rest->is_unique || !rest->drawn.has(slot)) rest->slots.add(slot);
        }
        rest->extent = static_cast<double>(rest->slots.size());
        return true;
    }
    int64_t draw_from(Remainder* rest, double u) const override {
        const int64_t slot = rest->slots.take(u);
        rest->extent = static_cast<double>(rest->slots.size());
        return slot;
    }
    void put_back(Remainder* rest) const override {
        rest->slots.put_back();
        rest->extent = static_cast<double>(rest->slots.size());
    }

  private:
    Header* header_;
};

}  // namespace kary

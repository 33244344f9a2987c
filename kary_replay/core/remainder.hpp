// What a batch can still draw from, where drawing again and again would take for ever.
//
// A draw is repeated if it hits a slot without a row, or a row that the batch has already and must
// not have twice. That is enough while such slots are few. Where they are many, or hold nearly all
// the mass, they are left out: uniform selection draws from a list of the slots that are left, and
// selection by masses from a tree that lacks the leaves of the others.
//
// Nothing is subtracted in that tree, for what is left of 1e300 less 1e300 is noise. The groups of
// siblings on the way to a leaf are copied, the leaf's mass there becomes 0, and the sums above are
// added up anew, as in a tree that never had it. It costs O(K · log_K(n)) a leaf, and nobody else
// sees it.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "sum_tree.hpp"

namespace kary {

// A set of at most n keys of at least 0. No memory of its own until `make`.
class KeySet {
  public:
    ~KeySet() { std::free(place_); }

    // Makes room for n keys, none of them in it yet. False if there is no memory.
    bool make(int64_t n) {
        int64_t n_places = 1;
        while (n_places < 2 * n) n_places *= 2;
        std::free(place_);
        place_ = static_cast<int64_t*>(std::calloc(n_places, sizeof(int64_t)));
        mask_ = static_cast<uint64_t>(n_places) - 1;
        return place_ != nullptr;
    }
    int64_t n_places() const { return static_cast<int64_t>(mask_) + 1; }

    // Where a key is, 0 … n_places - 1, or -1 if it is not there.
    int64_t find(int64_t key) const {
        const int64_t at = place_for(key);
        return place_[at] == 0 ? -1 : at;
    }
    bool has(int64_t key) const { return find(key) >= 0; }

    // Puts a key in and tells where it is, and whether it was not there before.
    struct Added {
        int64_t at;
        bool is_new;
    };
    Added add(int64_t key) {
        const int64_t at = place_for(key);
        const bool is_new = place_[at] == 0;
        place_[at] = key + 1;
        return {at, is_new};
    }

  private:
    int64_t place_for(int64_t key) const {
        uint64_t at = (static_cast<uint64_t>(key) * 0x9E3779B97F4A7C15ULL >> 20) & mask_;
        while (place_[at] != 0 && place_[at] != key + 1) at = (at + 1) & mask_;
        return static_cast<int64_t>(at);
    }

    int64_t* place_ = nullptr;  // keys + 1; 0: free
    uint64_t mask_ = 0;
};

// A list of slots, from which slots are taken at random.
class SlotList {
  public:
    ~SlotList() { std::free(slot_); }

    // Makes room for n slots, none of them in it yet. False if there is no memory.
    bool make(int64_t n) {
        std::free(slot_);
        size_ = 0;
        slot_ = static_cast<int64_t*>(std::malloc(std::max<int64_t>(n, 1) * sizeof(int64_t)));
        return slot_ != nullptr;
    }
    int64_t size() const { return size_; }
    void add(int64_t slot) { slot_[size_++] = slot; }

    // Takes out one of the slots, by u in [0, 1).
    int64_t take(double u) {
        const int64_t at = std::min(static_cast<int64_t>(u * size_), size_ - 1);
        std::swap(slot_[at], slot_[--size_]);  // behind the others, where put_back finds it
        return slot_[size_];
    }
    void put_back() { ++size_; }

  private:
    int64_t* slot_ = nullptr;
    int64_t size_ = 0;
};

// A tree without some of its leaves.
class TreeWithout {
  public:
    ~TreeWithout() { std::free(copies_); }

    // Takes the whole tree as it is now; at most n leaves can be removed. False: no memory.
    bool make(const Tree& tree, int64_t n) {
        tree_ = tree;
        n_left_ = n;
        arity_ = int64_t{1} << tree.log2_arity;
        // [node] relaxed, as in every search; so for all masses copied below
        root_ = load_relaxed(tree.level[0]);
        int64_t n_groups = 0;
        for (int l = 1; l < tree.n_levels; ++l) {
            n_groups += std::min((tree.width[l] + arity_ - 1) / arity_, n);
        }
        std::free(copies_);
        copies_ = nullptr;
        if (!groups_.make(n_groups)) return false;
        copies_ = static_cast<double*>(std::malloc(groups_.n_places() * arity_ * sizeof(double)));
        return copies_ != nullptr;
    }

    double total() const { return root_; }
    bool is_used_up() const { return n_left_ <= 0; }

    void remove(int64_t leaf) {
        --n_left_;
        double mass = 0;
        int64_t node = leaf;
        for (int l = tree_.n_levels - 1; l > 0; --l) {
            const int64_t group = node / arity_;
            const KeySet::Added added = groups_.add(key(l, group));
            double* copy = copies_ + added.at * arity_;
            if (added.is_new) {
                const double* siblings = tree_.level[l] + group * arity_;
                for (int64_t j = 0; j < arity_; ++j) copy[j] = load_relaxed(siblings + j);
            }
            copy[node % arity_] = mass;
            mass = group_sum(tree_, copy);
            node = group;
        }
        root_ = mass;
    }

    // The leaf that holds a prefix below the total. Rounding may lead to an empty or a removed one.
    int64_t find(double prefix) const {
        int64_t node = 0;
        for (int l = 1; l < tree_.n_levels; ++l) {
            const int64_t at = groups_.find(key(l, node));
            const double* group = at < 0 ? tree_.level[l] + node * arity_ : copies_ + at * arity_;
            node = node * arity_ + find_child(tree_, group, &prefix);
            stay_inside(tree_.width[l] - 1, &prefix, &node);
        }
        return node;
    }

  private:
    static int64_t key(int level, int64_t group) { return group * kMaxLevels + level; }

    Tree tree_{};
    int64_t arity_ = 0;
    int64_t n_left_ = 0;  // leaves that may still be removed: so many groups there is room for
    double root_ = 0;
    KeySet groups_;             // by `key`
    double* copies_ = nullptr;  // of a group's masses, at its place in groups_
};

// Of one batch. A selector looks at what is left and draws from it.
struct Remainder {
    bool is_unique = false;
    KeySet drawn;       // the slots in the batch, if none may be in it twice
    double extent = 0;  // of what is left; 0: it is to be looked at (again)
    SlotList slots;     // what is left in uniform selection
    TreeWithout tree;   // what is left in selection by masses
    double by_mass = 1;  // of a draw by masses: its probability for each unit of mass that is left
    double alike = 0;    // of a uniform one beside it: for each slot that is left
};

}  // namespace kary

// What decides which slots are drawn, and how often: the interface of all kinds of selection.
//
// The buffer says which slots hold rows and which priorities these have. The selector draws slots,
// and keeps in the block whatever its draws depend on. Every kind is a class in a file of its own:
// uniform.hpp, proportional.hpp, ranked.hpp. selectors.hpp makes the one that a header asks for, so
// any process can make the selector of a block that another one left.
//
// Calls are made for batches; what is needed for each row is inline here. A selector has pointers
// into its process's mapping of the block, and no state of its own.
#pragma once
#include <cfloat>

#include "block.hpp"
#include "remainder.hpp"

namespace kary {

class Selector {
  public:
    // The numbers that a selection keeps, for snapshots and checks; null where it keeps none.
    double* leaf = nullptr;       // the masses, one a slot
    double* priority = nullptr;   // see priorities_of
    double* ranking = nullptr;    // the table of ranks, n_ranking numbers
    int64_t n_ranking = 0;
    double largest = DBL_MAX;     // the largest priority, and mass, that there may be

    // The mass with which a slot is drawn at this moment; 1 where all are drawn alike.
    double mass_at(int64_t slot) const {
        // [leaf] acquire: pairs with the releases in Proportional::set_leaf (proportional.hpp) and
        // in SumTree.set (sum_tree.pyx)
        return leaf == nullptr ? 1.0 : load_acquire(leaf + slot);
    }
    // Whether the row of a slot may be drawn at all; for holders of the lock.
    bool is_transition(int64_t slot) const { return priority == nullptr || priority[slot] > 0; }

    // ------------------------------------------------------------------ draws, which take no lock

    // What is divided among the draws; 0 if nothing can be drawn. Any recent value.
    virtual double extent() const = 0;
    // Finds the slots at n points in [0, extent), which are used up, and asks for their rows. A
    // slot found may hold no row: the reader looks. `density`: if the points ascend, how many
    // divide the whole extent, else 0.
    virtual void draw(double* point, double extent, int64_t* slot, int64_t n,
                      int64_t density) const = 0;
    // The same by masses alone, whatever share of the draws is uniform: points in [0, total mass).
    virtual void draw_by_mass(double*, int64_t* /*slot*/, int64_t, int64_t /*density*/) const {}
    // Draws n slots among all that have mass, for points in [0, 1) that are independent of each
    // other.
    virtual void draw_alike(double* /*point*/, int64_t* /*slot*/, int64_t) const {}
    // Writes the importance weights of n rows that were drawn with these masses; `beta` is their
    // exponent.
    virtual void weigh(const double*, int64_t, double /*beta*/, float* /*weight*/) const {}

    // Whether many draws in vain mean that the batch should draw from what is left instead.
    virtual bool needs_remainder(bool is_unique) const = 0;
    // Finds what is left beside the first n_drawn of a batch of n rows. False: no memory for it.
    virtual bool build_remainder(const Handle* drawn, int64_t n_drawn, int64_t n,
                                 Remainder* rest) const = 0;
    // Draws a slot from what is left, with u in [0, 1), and takes it out.
    virtual int64_t draw_from(Remainder* rest, double u) const = 0;
    // Puts back what was taken out last: it may come again.
    virtual void put_back(Remainder* rest) const = 0;

    // ------------------------------- rows come and go; the caller holds the lock but for `prepare`

    // Takes the masses of n slots that are about to be overwritten.
    virtual void vacate(const int64_t*, int64_t, int64_t* /*scratch*/) {}
    // Stores the priorities of n rows before they are published. A negative one, or null for all,
    // stands for the largest seen.
    virtual void store_priorities(const int64_t*, int64_t, const double* /*priority*/) {}
    // Gives n rows that have just been published the masses of their priorities.
    virtual void admit(const int64_t*, int64_t, int64_t* /*scratch*/) {}
    // Takes n rows out for good: they are no transitions any more. Uses up `slot`.
    virtual void retire(int64_t*, int64_t) {}

    // Computes without the lock what `update` needs of n new priorities, and asks for the memory
    // that it will touch. Returns the alpha that `mass` belongs to.
    virtual double prepare(const Handle*, const double*, double* /*mass*/, int64_t) const {
        return 0;
    }
    // Sets n priorities above 0, the last one where a slot comes twice. Uses up `slot`.
    virtual void update(int64_t*, const double*, double* /*mass*/, int64_t, double /*alpha*/) {}
    // Sets n masses, for somebody who sets leaves of the tree, and stores the priorities that they
    // stand for. The sums above are the caller's.
    virtual void set_masses(const int64_t*, const double* /*mass*/, int64_t) {}

    // ---------------------------------------- new masses for all rows, in pieces; see sweep.hpp

    // Whether a row's mass depends on the priorities of all.
    virtual bool needs_all() const { return false; }
    // Whether so many priorities have changed that all rows should get new masses.
    virtual bool is_due() const { return false; }
    // Sets the exponent of new masses. The caller holds the lock.
    virtual void ask(double /*alpha*/) {}
    // Computes the masses of n rows, or of all where they depend on each other, from copies: no
    // lock. `mass` tells by a number above 0 which slots have a row, and gets the masses; `ranking`
    // becomes a table of ranks; `scratch` has room for 2 n numbers.
    virtual void derive_masses(double /*alpha*/, const double* /*priority*/, double* /*mass*/,
                               int64_t, double* /*ranking*/, double* /*scratch*/) const {}
    // Takes a table of ranks that derive_masses made. The caller holds the lock.
    virtual void take_over(const double* /*ranking*/) {}
    // Sets the masses that were computed for these priorities, of the slots first … end - 1; a row
    // that has another priority by now gets that one's. The caller holds the lock.
    virtual void set_derived(int64_t /*first*/, int64_t /*end*/, const double* /*priority*/,
                             const double* /*mass*/) {}

    // --------------------------------------------------- all rows at once, by a holder of the lock

    // Derives everything from the priorities, alpha and the generations, after a holder of the lock
    // died; where masses go by ranks, all but those, for which it asks. Doing it twice does no
    // harm.
    virtual void derive() {}
    // Forgets all rows. Doing it twice does no harm.
    virtual void forget() {}

  protected:
    ~Selector() = default;  // nobody owns one by this class
};

}  // namespace kary

// The head of a block of memory: its layout, the lock, the counters and the random stream.
//
// A struct with cache-line alignment, which Cython cannot say. Nothing in it is a pointer, so a
// block means the same at whatever address, and in whatever process, it is mapped.
#pragma once
#include <pthread.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "atomic.hpp"
#include "power.hpp"

namespace kary {

// The last byte counts the changes of what follows.
constexpr uint64_t kMagic = 0x7961'6c70'6572'6b09;

// How a block's slots are drawn: one kind of selector each (selectors.hpp).
enum Selection : int64_t { kNoSelection, kUniform, kProportional, kRanked };

// Where the parts of a block are, in bytes from the header; 0 for a part that it lacks. Equal
// layouts mean equal blocks: selectors.hpp computes one, and whoever attaches compares it.
struct Layout {
    int64_t selection;  // kNoSelection: the block has no slots, but a tree alone
    int64_t capacity;   // slots
    int64_t row_nbytes;
    int64_t arity;
    int64_t tree_at;
    int64_t priorities_at;  // one priority for each slot
    int64_t counts_at;      // see copies.hpp
    int64_t ranking_at;     // see ranked.hpp
    int64_t rows_at;
    int64_t nbytes;         // of the whole block
};

// A process that uses the block, guarded by the lock. participants.hpp says how its death is
// noticed.
struct Participant {
    int64_t is_present;  // 0: a free place
    int64_t n_writing;   // slots it has reserved and not yet published
    int64_t n_paused;    // how many of its threads keep writers waiting
    int64_t n_sweeping;  // how many of its threads are giving all rows new masses
    int64_t n_copying;   // how many of its threads copy all masses
    // Where the slots are that it is writing: the first of so many in ring order, those of others
    // in between included. Both are stored before the generations of those slots say whose they
    // are.
    int64_t first_written;
    int64_t n_passed;
    int64_t passed_before;  // the header's n_passed when the first one was reserved
};

// What TD errors have shown of the noise of batches; noise.hpp says how.
struct Noise {
    double n_rows;   // that it was learned from
    double weight;   // of a row
    double size;     // of a TD error: the square is the least noise
    double uniform;  // noise of uniform replay
    double present;  // noise of the draws that there were
};

struct Header {
    // What the block is; never changes.
    alignas(64) uint64_t magic;
    uint64_t token[2];       // drawn at random when it was made
    Layout layout;
    int64_t participants_at;
    int64_t n_participants;
    uint64_t pid_namespace;  // of its maker: inode of /proc/self/ns/pid

    // Guards every write to the tree, every change of a generation, and the fields below it.
    alignas(64) pthread_mutex_t lock;

    // Written under the lock. What is marked * is also read without it, as a relaxed atomic, where
    // any recent value will do.
    alignas(64) int64_t position;  // the slot to reserve next
    int64_t n_published;           // * rows that can be sampled
    int64_t n_writing;             // * slots reserved and not yet published
    int64_t n_started;             // * slots ever reserved since the last reset: 0 … n_started - 1
    int64_t n_touched;             // * the same, resets notwithstanding: generations that are not 0
    int64_t n_paused;              // * > 0: somebody waits for writers to finish; nobody reserves
    int64_t n_added;               // * rows ever published
    int64_t n_with_mass;           // * leaves of the tree that are above 0
    double alpha;                  // * mass = priority ** alpha
    double max_priority;           // * largest priority seen
    double max_mass;               // of max_priority
    int64_t buried_at;             // * ns: when somebody last looked for dead participants
    int64_t n_repaired;            // * how many holders of the lock died
    int64_t is_resetting;          // a reset is under way: if its holder dies, the next finishes it
    int64_t n_passed;              // ring steps of position, ever; a reset counts as a whole lap
    int64_t n_sweeping;            // threads that are giving all rows new masses: see sweep.hpp
    int64_t n_swept;               // slots that have the newest ones, while a sweep is under way
    int64_t n_copying;             // threads that copy all masses: see copies.hpp
    Noise noise;                   // of the batches that TD errors came back from

    // Settings that any thread reads and writes, as relaxed atomics.
    alignas(64) double beta;
    double priority_epsilon;
    double uniform_share;  // of the draws; see proportional.hpp
    int64_t adapts_share;  // 1: TD errors choose the uniform share; see noise.hpp

    // Written under the lock, and seldom. Sweeps ever asked for, and how many of these are done, by
    // themselves or by a later one.
    int64_t sweep_asked;  // *
    int64_t sweep_done;   // *

    // Any thread adds to the counters; the key never changes.
    alignas(64) uint64_t random_key[2];
    uint64_t random_counter;
    uint64_t n_sampled;  // rows ever drawn
};

// A drawn row: its slot, and which use of that slot it was.
struct Handle {
    int64_t index;
    uint64_t generation;
};

// A generation counts the uses of a slot in its low 48 bits. The count is 0 before the first use,
// even while the slot holds a published row, and odd while it holds none. With an odd count the
// high bits name the owner: the number + 1 of the participant that is writing it, or kNobody.
constexpr int kOwnerShift = 48;
constexpr uint64_t kCount = (uint64_t{1} << kOwnerShift) - 1;
constexpr uint64_t kNobody = 0xffff;
constexpr int64_t kMaxParticipants = 512;

inline bool is_vacant(uint64_t generation) {
    return (generation & 1) && generation >> kOwnerShift == kNobody;
}
inline uint64_t written_by(uint64_t generation, int64_t participant) {
    const uint64_t count = generation & kCount;
    return (count + (count & 1 ? 2 : 1)) | static_cast<uint64_t>(participant + 1) << kOwnerShift;
}
inline uint64_t published(uint64_t generation) { return (generation & kCount) + 1; }
// A later generation that holds no row and is nobody's.
inline uint64_t vacated(uint64_t generation) {
    const uint64_t count = generation & kCount;
    return (count | 1) | kNobody << kOwnerShift;
}

// Whether a slot holds a row, whatever its priority.
inline bool is_published(uint64_t generation) { return generation != 0 && (generation & 1) == 0; }

// Rounds up to whole cache lines.
inline int64_t whole_lines(int64_t nbytes) { return (nbytes + 63) / 64 * 64; }

// A part of the block, by its offset; null where the block lacks it.
template <class T>
inline T* part_of(Header* header, int64_t offset) {
    return offset == 0 ? nullptr : reinterpret_cast<T*>(reinterpret_cast<char*>(header) + offset);
}
inline uint64_t* generation_of(Header* header, int64_t slot) {
    return part_of<uint64_t>(header, header->layout.rows_at + slot * header->layout.row_nbytes);
}

// Asks for the first lines of rows that are about to be read; the hardware follows a longer row by
// itself.
class RowsAhead {
  public:
    explicit RowsAhead(Header* header)
        : rows_(reinterpret_cast<const char*>(generation_of(header, 0))),
          row_nbytes_(header->layout.row_nbytes),
          asked_(std::min<int64_t>(row_nbytes_, 512)) {}

    [[gnu::always_inline]] void operator()(int64_t slot) const {
        const char* row = rows_ + slot * row_nbytes_;
        for (int64_t at = 0; at < asked_; at += 64) prefetch_far(row + at);
        prefetch_far(row + asked_ - 1);
    }

  private:
    const char* rows_;
    int64_t row_nbytes_, asked_;
};
[[gnu::always_inline]] inline void ask_for_rows(Header* header, const int64_t* slot, int64_t n) {
    const RowsAhead ask(header);
    for (int64_t i = 0; i < n; ++i) ask(slot[i]);
}
inline Participant* participants_of(Header* header) {
    return part_of<Participant>(header, header->participants_at);
}

// The priorities, one a slot, guarded by the lock; null where all slots are drawn alike. A row of
// priority 0 is no transition and is never drawn, for it only has a frame that others refer to, or
// its own frames are gone. What a slot without a row has there means nothing.
inline double* priorities_of(Header* header) {
    return part_of<double>(header, header->layout.priorities_at);
}

// How often masses were stored in each group of so many slots, while somebody copied; see
// copies.hpp. Null where slots have no masses.
constexpr int64_t kGroup = 64;
inline uint32_t* counts_of(Header* header) {
    return part_of<uint32_t>(header, header->layout.counts_at);
}
// Counts a change at the group of a slot that has a mass. The caller holds the lock, so nobody else
// counts.
inline void count_change(Header* header, int64_t slot) {
    uint32_t* count = counts_of(header) + slot / kGroup;
    // [count] release: pairs with the acquire in copy_groups (copies.hpp), so whoever sees the
    // count sees the change
    store_release(count, load_relaxed(count) + 1);
}
// Whether all rows have the masses that were last asked for; see sweep.hpp.
inline bool is_settled(const Header* header) {
    // relaxed: whoever must be sure has the lock
    return load_relaxed(&header->sweep_asked) == load_relaxed(&header->sweep_done);
}
// For holders of the lock, when alpha or the largest priority has changed.
inline void renew_max_mass(Header* header) {
    header->max_mass = raise(header->max_priority, header->alpha);
}

}  // namespace kary

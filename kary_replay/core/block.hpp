// The head of a block of memory: the lock, the counters and the random stream that the block's
// parts share.
//
// A struct with cache-line alignment, which Cython cannot say. Nothing in it is a pointer, so that
// a block means the same at every address, and in every process, it is mapped to.
#pragma once
#include <pthread.h>

#include <cstdint>

#include "atomic.hpp"

namespace kary {

// the last byte counts the changes of this layout
constexpr uint64_t kMagic = 0x7961'6c70'6572'6b02;

// A process that uses the block. All of it is guarded by the lock; participants.hpp says how its
// death is noticed.
struct Participant {
    int64_t is_present;  // 0: a free place
    int64_t n_writing;   // slots it has reserved and not yet published
    int64_t n_paused;    // how many of its threads keep writers waiting
};

struct Header {
    // What the block is; never changes.
    alignas(64) uint64_t magic;
    uint64_t token[2];       // drawn at random when it was made
    int64_t capacity;        // slots; 0 if the block has none, but a tree alone
    int64_t row_nbytes;
    int64_t rows_at;         // offsets from the header
    int64_t tree_at;         // 0: no tree
    int64_t priorities_at;   // one for each leaf; 0 without a tree
    int64_t ranking_at;      // 0: masses are in proportion to priorities; see rank.hpp
    int64_t participants_at;
    int64_t n_participants;
    uint64_t pid_namespace;  // of its maker: inode of /proc/self/ns/pid
    int32_t arity;

    // Guards every write to the tree, every change of a generation, and the fields below it.
    alignas(64) pthread_mutex_t lock;

    // Written under the lock; the ones marked * are also read without it, as relaxed atomics, where
    // any recent value will do.
    alignas(64) int64_t position;  // the slot to reserve next
    int64_t n_published;           // * rows that can be sampled
    int64_t n_writing;             // * slots reserved and not yet published
    int64_t n_started;             // * slots ever reserved since the last reset: 0 … n_started - 1
    // * slots ever reserved, resets notwithstanding: the rows whose generation is not 0
    int64_t n_touched;
    // * > 0: no new reservations (a snapshot or reset waits for the writers to finish)
    int64_t n_paused;
    int64_t n_added;               // * rows ever published
    double alpha;                  // * mass = priority ** alpha
    double max_priority;           // * largest priority seen
    double max_mass;               // of max_priority
    int64_t buried_at;             // ns: when somebody last looked for dead participants
    int64_t n_repaired;            // * how many holders of the lock died
    // a reset is under way: whoever finds the lock of a dead holder finishes it
    int64_t is_resetting;

    // Settings that any thread reads and writes, as relaxed atomics.
    alignas(64) double beta;
    double priority_epsilon;

    // Any thread adds to the counters; the key never changes.
    alignas(64) uint64_t random_key[2];
    uint64_t random_counter;
    uint64_t n_sampled;  // rows ever drawn
};

// A generation: the low 48 bits count the uses of a slot, 0 never used, even: holds a published
// row, odd: holds none. With an odd count the high bits tell whose it is: a participant's number +
// 1, which is writing it, or kNobody.
constexpr int kOwnerShift = 48;
constexpr uint64_t kCount = (uint64_t{1} << kOwnerShift) - 1;
constexpr uint64_t kNobody = 0xffff;
constexpr int64_t kMaxParticipants = 512;

inline bool is_vacant(uint64_t generation) { return (generation & 1) && generation >> kOwnerShift == kNobody; }
inline uint64_t written_by(uint64_t generation, int64_t participant) {
    const uint64_t count = generation & kCount;
    return (count + (count & 1 ? 2 : 1)) | static_cast<uint64_t>(participant + 1) << kOwnerShift;
}
inline uint64_t published(uint64_t generation) { return (generation & kCount) + 1; }
// From whatever it is to a later one that holds no row: nobody's.
inline uint64_t vacated(uint64_t generation) {
    const uint64_t count = generation & kCount;
    return (count | 1) | kNobody << kOwnerShift;
}

// Whether a slot holds a row, whatever its priority.
inline bool is_published(uint64_t generation) { return generation != 0 && (generation & 1) == 0; }

inline uint64_t* generation_of(Header* header, int64_t slot) {
    return reinterpret_cast<uint64_t*>(reinterpret_cast<char*>(header) + header->rows_at + slot * header->row_nbytes);
}
inline Participant* participants_of(Header* header) {
    return reinterpret_cast<Participant*>(reinterpret_cast<char*>(header) + header->participants_at);
}

}  // namespace kary

// A replay buffer reduced to its locking: the same tree, rows and copies under four disciplines.
//
//   coarse           one lock around every operation, the copying of rows included
//   split            the lock covers the tree and the writing of rows; a sampler copies its rows
//                    outside it
//   lazy             as split, and writers, too, copy their rows outside the lock: reserve, copy,
//                    publish (lazy writing)
//   lazy, lock-free  as lazy, and the descent takes no lock: only who changes the tree takes it
//
// Only `coarse` may copy rows without looking at generations; the other three use the seqlock of
// kary_replay: words stored with release and loaded with acquire between two looks at the slot's
// generation. Threads are native and there is no interpreter in sight, so this shows the locks and
// nothing else.
#pragma once
#include <cstring>

#include "race.hpp"
#include "tree_kernels.hpp"

namespace ablation {

enum Discipline { COARSE = 0, SPLIT = 1, LAZY = 2, LAZY_LOCK_FREE = 3 };

constexpr int K_LOCKS = 4;
constexpr int N_WORDS = 21;  // 165 bytes of payload in whole words
constexpr int CHUNK = 128, AHEAD = 12;

struct Row {
    uint64_t generation;  // even: published, odd: being written; changed under the lock
    uint64_t word[N_WORDS];
};

struct Random {  // xorshift64*, one per thread: not what is measured
    uint64_t state;
    double operator()() {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return static_cast<double>((state * 0x2545F4914F6CDD1DULL) >> 11) * 0x1p-53;
    }
};

class Lock {
public:
    Lock() { pthread_mutex_init(&lock_, nullptr); }
    ~Lock() { pthread_mutex_destroy(&lock_); }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

    // Spins for about as long as a batch update takes, then sleeps: the same lock for every
    // discipline.
    void acquire() {
        for (int i = 0; i < 100; ++i) {
            if (pthread_mutex_trylock(&lock_) == 0) return;
#if defined(__x86_64__) || defined(__i386__)
            __builtin_ia32_pause();
#endif
        }
        pthread_mutex_lock(&lock_);
    }
    void release() { pthread_mutex_unlock(&lock_); }

private:
    pthread_mutex_t lock_;
};

class Buffer {
public:
    Buffer(int64_t capacity, const double* mass)
        : capacity_(capacity),
          tree_(capacity, 2, true),
          rows_(reinterpret_cast<Row*>(allocate(capacity * sizeof(Row)))) {
        for (int64_t i = 0; i < capacity; ++i) {
            tree_.leaves()[i] = mass[i];
            rows_[i].generation = 2;
            for (uint64_t& word : rows_[i].word) word = static_cast<uint64_t>(i);
        }
        rebuild<K_LOCKS>(tree_);
    }
    ~Buffer() { std::free(rows_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    // Operations per second of n_threads that each add `n_add` rows, sample and update `batch`
    // rows, over and over. Any of the three may be 0 rows. *torn counts sampled rows whose words
    // disagree: it must stay 0.
    double rate(int discipline, int n_threads, int64_t n_add, int64_t n_sample, int64_t n_update,
                double seconds, int64_t* torn) {
        const int64_t batch = n_sample > n_update ? n_sample : n_update;
        std::atomic<int64_t> n_torn{0};
        const double total = race(n_threads, seconds, [&](int number) {
            return [&, worker = Worker(*this, discipline, number, batch, n_add)]() mutable {
                worker.step(n_add, n_sample, n_update);
                if (worker.torn) n_torn += worker.torn;
            };
        });
        *torn = n_torn;
        return total;
    }

private:
    struct Worker {
        Buffer& buffer;
        const int discipline;
        Random random;
        std::vector<double> prefix, mass;
        std::vector<int64_t> node, scratch, slot;
        std::vector<uint64_t> generation;
        std::vector<Row> out;
        uint64_t number;
        int64_t torn = 0;

        Worker(Buffer& b, int d, int thread, int64_t batch, int64_t n_add)
            : buffer(b),
              discipline(d),
              random{0x9E3779B97F4A7C15ULL * (thread + 1)},
              prefix(batch),
              mass(batch),
              node(batch),
              scratch(batch + n_add),
              slot(n_add),
              generation(batch),
              out(batch),
              number(uint64_t(thread) << 40) {}

        void step(int64_t n_add, int64_t n_sample, int64_t n_update) {
            if (n_add > 0) add(n_add);
            if (n_sample > 0) sample(n_sample);
            if (n_update > 0) update(n_update);
        }

        void add(int64_t n) {
            const bool lazy = discipline >= LAZY;
            double* leaf = buffer.tree_.leaves();
            buffer.lock_.acquire();
            int64_t taken = 0;
            while (taken < n) {
                const int64_t at = buffer.position_;
                buffer.position_ = at + 1 == buffer.capacity_ ? 0 : at + 1;
                // a slow writer's: it keeps its slot
                if (buffer.rows_[at].generation & 1) continue;
                // [reserve] relaxed: the release of each word of the row orders it before them
                if (discipline != COARSE) set_generation(at, __ATOMIC_RELAXED);
                slot[taken++] = at;
            }
            if (lazy) {  // not drawable while it is being written
                for (int64_t i = 0; i < n; ++i) store(leaf + slot[i], 0.0);
                set_ancestors(n);
                buffer.lock_.release();
            }
            for (int64_t i = 0; i < n; ++i) {
                ++number;
                // [word] release: pairs with the acquire in copy; carries the odd generation with
                // it
                for (uint64_t& word : buffer.rows_[slot[i]].word) {
                    __atomic_store_n(&word, number, __ATOMIC_RELEASE);
                }
            }
            if (lazy) buffer.lock_.acquire();
            for (int64_t i = 0; i < n; ++i) {
                // [publish] pairs with the acquire in copy
                if (discipline != COARSE) set_generation(slot[i], __ATOMIC_RELEASE);
                store(leaf + slot[i], 1.0);
            }
            set_ancestors(n);
            buffer.lock_.release();
        }

        void set_generation(int64_t at, int order) {
            uint64_t* generation_at = &buffer.rows_[at].generation;
            if (order == __ATOMIC_RELAXED) {
                __atomic_store_n(generation_at, *generation_at + 1, __ATOMIC_RELAXED);
            }
            else __atomic_store_n(generation_at, *generation_at + 1, __ATOMIC_RELEASE);
        }

        void set_ancestors(int64_t n) {
            std::memcpy(scratch.data(), slot.data(), n * sizeof(int64_t));
            recompute<K_LOCKS>(buffer.tree_, scratch.data(), n);
        }

        void sample(int64_t n) {
            if (discipline != LAZY_LOCK_FREE) buffer.lock_.acquire();
            const double total = load(buffer.tree_.level[0]);
            for (int64_t i = 0; i < n; ++i) prefix[i] = (i + random()) * (total / n);
            for (int64_t i = 0; i < n; i += CHUNK) {
                const int64_t n_here = n - i < CHUNK ? n - i : CHUNK;
                descend<K_LOCKS, BY_LEVEL_PREFETCH, true>(buffer.tree_, &prefix[i], &node[i],
                                                          n_here);
            }
            if (discipline == SPLIT || discipline == LAZY) buffer.lock_.release();
            for (int64_t i = 0; i < n; ++i) {
                if (i + AHEAD < n) prefetch_row(node[i + AHEAD]);
                while (!copy(i)) {  // being written, or newly emptied: draw another
                    if (discipline == SPLIT || discipline == LAZY) buffer.lock_.acquire();
                    double p = random() * load(buffer.tree_.level[0]);
                    descend<K_LOCKS, ONE_AT_A_TIME, true>(buffer.tree_, &p, &node[i], 1);
                    if (discipline == SPLIT || discipline == LAZY) buffer.lock_.release();
                }
            }
            if (discipline == COARSE) buffer.lock_.release();
        }

        bool copy(int64_t i) {
            const Row& row = buffer.rows_[node[i]];
            // [publish] acquire: pairs with the release in add; an even generation brings the whole
            // row
            const uint64_t seen = __atomic_load_n(&row.generation, __ATOMIC_ACQUIRE);
            if (seen & 1) return false;
            // [word] acquire: pairs with the release in add; a newer word makes the second look see
            // a newer generation
            for (int w = 0; w < N_WORDS; ++w) {
                out[i].word[w] = __atomic_load_n(&row.word[w], __ATOMIC_ACQUIRE);
            }
            // [generation] relaxed: the acquire of the words orders this second look after them
            const uint64_t now = __atomic_load_n(&row.generation, __ATOMIC_RELAXED);
            if (discipline != COARSE && now != seen) return false;
            mass[i] = load(buffer.tree_.leaves() + node[i]);
            generation[i] = seen;
            torn += out[i].word[0] != out[i].word[N_WORDS - 1];
            return mass[i] > 0;
        }

        void prefetch_row(int64_t at) {
            const char* row = reinterpret_cast<const char*>(&buffer.rows_[at]);
            for (size_t byte = 0; byte < sizeof(Row); byte += 64) {
                __builtin_prefetch(row + byte, 0, 3);
            }
        }

        void update(int64_t n) {
            for (int64_t i = 0; i < n; ++i) mass[i] = 0.05 + random();
            buffer.lock_.acquire();
            int64_t applied = 0;
            for (int64_t i = 0; i < n; ++i) {
                // Generations change under the lock only, so this one cannot move on before the
                // mass is in.
                if (buffer.rows_[node[i]].generation != generation[i]) continue;
                store(buffer.tree_.leaves() + node[i], mass[i]);
                scratch[applied++] = node[i];
            }
            recompute<K_LOCKS>(buffer.tree_, scratch.data(), applied);
            buffer.lock_.release();
        }
    };

    int64_t capacity_;
    int64_t position_ = 0;  // the next slot to write; under the lock
    Tree tree_;
    Row* rows_;
    Lock lock_;
};

}  // namespace ablation

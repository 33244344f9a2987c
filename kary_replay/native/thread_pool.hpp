// Threads that share the work of one operation after another.
//
// By POSIX's own threads: those of the C++ library would need a newer one than all else here does.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <cstdint>
#include <new>

namespace kary {

// Work comes in numbered parts. Whoever is free takes the next one, so that a helper that gets no
// core takes none: at worst the thread that asks does all of them. Which thread does a part is left
// to chance, so what a part does must not depend on it.
class ThreadPool {
  public:
    // Calls part(i, thread) for each i below n, on `threads` threads at most, this one among them.
    // Each has a number of its own below `threads` and n. If another thread is asking meanwhile,
    // this one does all by itself. A part asks for no others.
    template <class Part>
    void for_each(std::int64_t n, int threads, const Part& part) {
        if (threads < 2 || n < 2 || pthread_mutex_trylock(&asking_) != 0) {
            for (std::int64_t i = 0; i < n; ++i) part(i, 0);
            return;
        }
        begin(
            [](const void* any, std::int64_t i, int thread) {
                (*static_cast<const Part*>(any))(i, thread);
            },
            &part, n, int(std::min<std::int64_t>(threads, n)) - 1);
        take_parts(0);
        end();
        pthread_mutex_unlock(&asking_);
    }

  private:
    using Call = void (*)(const void* part, std::int64_t i, int thread);

    void begin(Call call, const void* part, std::int64_t n, int helpers) {
        pthread_mutex_lock(&mutex_);
        while (n_helpers_ < helpers && start_helper()) ++n_helpers_;
        call_ = call, part_ = part, n_ = n, next_ = 0;
        std::fegetenv(&rounding_);
        seats_ = helpers, last_ = 0;
        pthread_mutex_unlock(&mutex_);
        for (int i = 0; i < helpers; ++i) pthread_cond_signal(&begun_);
    }

    void end() {
        pthread_mutex_lock(&mutex_);
        seats_ = 0;  // who wakes up only now comes too late
        while (active_ > 0) pthread_cond_wait(&ended_, &mutex_);
        pthread_mutex_unlock(&mutex_);
    }

    void take_parts(int thread) {
        // Only the count is shared here: what parts need and leave passes by mutex_.
        for (std::int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < n_;)
            call_(part_, i, thread);
    }

    // False: there can be no more threads, and the others do the work.
    bool start_helper() {
        // Signals are for the threads that there were before, but for those of its own faults.
        sigset_t most, former;
        sigfillset(&most);
        for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP})
            sigdelset(&most, fault);
        pthread_sigmask(SIG_SETMASK, &most, &former);
        pthread_t thread;
        const bool started = pthread_create(
            &thread, nullptr,
            [](void* pool) -> void* { static_cast<ThreadPool*>(pool)->help(); return nullptr; },
            this) == 0;
        if (started) pthread_detach(thread);
        pthread_sigmask(SIG_SETMASK, &former, nullptr);
        return started;
    }

    void help() {
        pthread_mutex_lock(&mutex_);
        for (;;) {
            while (seats_ == 0) pthread_cond_wait(&begun_, &mutex_);
            const int thread = ++last_;
            --seats_, ++active_;
            std::fesetenv(&rounding_);  // and what becomes of the smallest numbers
            pthread_mutex_unlock(&mutex_);
            take_parts(thread);
            pthread_mutex_lock(&mutex_);
            seats_ = 0;  // no parts are left
            if (--active_ == 0) pthread_cond_signal(&ended_);
        }
    }

    pthread_mutex_t asking_ = PTHREAD_MUTEX_INITIALIZER;  // who has it may share work
    pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;   // of what follows
    pthread_cond_t begun_ = PTHREAD_COND_INITIALIZER, ended_ = PTHREAD_COND_INITIALIZER;
    Call call_ = nullptr;
    const void* part_ = nullptr;
    std::int64_t n_ = 0;
    std::atomic<std::int64_t> next_{0};
    std::fenv_t rounding_;  // of the thread that asks
    int n_helpers_ = 0;
    int seats_ = 0;   // helpers that may still join
    int last_ = 0;    // number of the last one that did
    int active_ = 0;  // helpers at work
};

// The pool of this process. It is never destroyed, for its helpers never end; a child of a fork has
// none of them, and begins anew.
alignas(ThreadPool) inline unsigned char pool_memory[sizeof(ThreadPool)];
inline ThreadPool& thread_pool = []() -> ThreadPool& {
    pthread_atfork(nullptr, nullptr, [] { new (pool_memory) ThreadPool; });
    return *new (pool_memory) ThreadPool;
}();

}  // namespace kary

// Processes that share a block: who they are, whether they live, and what becomes of the slots of those who died.
#pragma once
#include <fcntl.h>
#include <signal.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "block.hpp"

namespace kary {

// When a process started, in clock ticks since boot; 0 if there is no such process, or only what it left for its parent
// to collect; 1 if the system does not tell.
inline uint64_t start_time_of(int64_t pid) {
    char path[32], text[1024];
    std::snprintf(path, sizeof path, "/proc/%lld/stat", static_cast<long long>(pid));
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return kill(static_cast<pid_t>(pid), 0) == 0 || errno != ESRCH ? 1 : 0;
    const ssize_t n = read(file, text, sizeof text - 1);
    close(file);
    if (n <= 0) return kill(static_cast<pid_t>(pid), 0) == 0 || errno != ESRCH ? 1 : 0;
    text[n] = 0;
    const char* at = std::strrchr(text, ')');  // the name in front of it may contain anything
    if (at == nullptr || at[1] == 0) return 1;
    const char state = at[2];
    at += 2;
    long long n_threads = 1;
    for (int field = 3; field < 22; ++field) {
        at = std::strchr(at, ' ');
        if (at == nullptr) return 1;
        ++at;
        if (field + 1 == 20) n_threads = std::strtoll(at, nullptr, 10);
    }
    // The first thread of a process may end before the others do.
    if ((state == 'Z' || state == 'X') && n_threads <= 1) return 0;
    return std::strtoull(at, nullptr, 10);
}

inline bool is_alive(const Participant& participant) {
    const uint64_t start_time = start_time_of(participant.pid);
    return start_time == 1 || participant.start_time == 1 ? start_time != 0 : start_time == participant.start_time;
}

// Makes the slots that a participant was writing free for others, and its number too. The caller holds the lock; nobody
// writes for that participant any more.
inline void remove_participant(Header* header, int64_t id) {
    Participant& gone = participants_of(header)[id];
    if (gone.n_writing > 0) {
        const uint64_t owner = static_cast<uint64_t>(id) + 1;
        for (int64_t i = 0; i < header->n_touched; ++i) {
            const uint64_t generation = load_relaxed(generation_of(header, i));
            if ((generation & 1) == 0 || generation >> kOwnerShift != owner) continue;
            store_relaxed(generation_of(header, i), vacated(generation));  // relaxed: an odd one tells a reader all it needs
            store_relaxed(&header->n_writing, header->n_writing - 1);
            --gone.n_writing;
        }
    }
    store_relaxed(&header->n_paused, header->n_paused - gone.n_paused);
    gone = Participant{};
}

// Removes the dead. The caller holds the lock, and cannot go on before somebody else does; or wants to be sure.
inline void bury(Header* header, bool at_once) {
    if (header->n_participants == 1) return;
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    const int64_t now = time.tv_sec * 1'000'000'000ll + time.tv_nsec;
    if (!at_once && now - header->buried_at < 5'000'000 && now >= header->buried_at) return;
    header->buried_at = now;
    for (int64_t id = 0; id < header->n_participants; ++id) {
        const Participant& participant = participants_of(header)[id];
        if (participant.pid != 0 && !is_alive(participant)) remove_participant(header, id);
    }
}

// Enters this process and returns its number, or -1 if there are too many. The caller holds the lock.
inline int64_t add_participant(Header* header) {
    bury(header, true);
    Participant* all = participants_of(header);
    for (int64_t id = 0; id < header->n_participants; ++id) {
        if (all[id].pid != 0) continue;
        all[id] = Participant{0, start_time_of(getpid()), 0, 0};
        store_release(&all[id].pid, int64_t{getpid()});  // last: a free place stays free if we die before it
        return id;
    }
    return -1;
}

}  // namespace kary

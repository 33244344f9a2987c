// Processes that share a block: whether they live, and what becomes of the slots of those who died.
//
// Each participant holds a lock on one byte of the file that the block lies in: the byte of its
// number. It is a lock of an open file description (F_OFD_SETLK), which the kernel releases when
// the description's last descriptor is closed, however its process ended. Asking the kernel for it
// is one system call and does not depend on what a process can see: not on process numbers, which
// are reused and differ between namespaces, nor on start times, which depend on the clock's
// namespace, nor on /proc. A robust mutex for each participant would not do, for it dies with the
// thread that took it, not with the process.
//
// To the kernel, a mapping holds the description that it was made through. Forked children inherit
// the mapping of the block, so a lock on that description would keep their dead parent alive. The
// lock is therefore on a description of its own. Children inherit its descriptor, and open the file
// anew in its place before anything else (forks.hpp). One page is mapped through that description,
// too, and is not inherited (MADV_DONTFORK). So we count as alive even if somebody closes the
// descriptor behind our back, as programs do that become daemons.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "lock.hpp"

namespace kary {

// One attachment of this process to a block.
struct Attachment {
    Header* header;
    int file;      // of the block; -1: memory of this process alone
    dev_t device;  // of that file, for another file may have got the descriptor's number
    ino_t inode;
    void* page;    // the file's first, mapped through that descriptor; no child inherits it
    int64_t me;    // our number among the participants; -1: a forked child that has not entered yet
    Attachment* next;
    Attachment* previous;
};

// Whether the descriptor is still that of the block's file.
inline bool has_file(const Attachment* attachment) {
    struct stat about {};
    if (attachment->file < 0 || fstat(attachment->file, &about) != 0) return false;
    return about.st_dev == attachment->device && about.st_ino == attachment->inode;
}

#ifdef F_OFD_SETLK
constexpr size_t kPage = 4096;

// Keeps the open file description, and its locks, for as long as this process lives or says so.
inline bool keep_description(Attachment* attachment) {
    void* page = mmap(nullptr, kPage, PROT_READ, MAP_SHARED, attachment->file, 0);
    if (page == MAP_FAILED) return false;
    if (madvise(page, kPage, MADV_DONTFORK) != 0) return munmap(page, kPage), false;
    attachment->page = page;
    return true;
}

inline void let_description_go(Attachment* attachment) {
    if (attachment->page != nullptr) munmap(attachment->page, kPage);
    attachment->page = nullptr;
}

inline struct flock byte_of(int64_t id) {
    struct flock byte {};
    byte.l_type = F_WRLCK;
    byte.l_whence = SEEK_SET;
    byte.l_start = id;
    byte.l_len = 1;
    return byte;
}

// Takes the lock that says that participant `id` lives. False if somebody has it, or with another
// errno than EAGAIN.
inline bool hold_place(const Attachment* attachment, int64_t id) {
    struct flock byte = byte_of(id);
    return fcntl(attachment->file, F_OFD_SETLK, &byte) == 0;
}

inline void let_place_go(const Attachment* attachment, int64_t id) {
    struct flock byte = byte_of(id);
    byte.l_type = F_UNLCK;
    fcntl(attachment->file, F_OFD_SETLK, &byte);
}

// Where the kernel does not answer, a participant counts as alive: nobody who lives is ever buried.
inline bool is_alive(const Attachment* attachment, int64_t id) {
    if (id == attachment->me) return true;
    struct flock byte = byte_of(id);
    return fcntl(attachment->file, F_OFD_GETLK, &byte) != 0 || byte.l_type != F_UNLCK;
}
#else  // macOS, where no block is shared
inline bool keep_description(Attachment*) { return errno = ENOTSUP, false; }
inline void let_description_go(Attachment*) {}
inline bool hold_place(const Attachment*, int64_t) { return errno = ENOTSUP, false; }
inline void let_place_go(const Attachment*, int64_t) {}
inline bool is_alive(const Attachment*, int64_t) { return true; }
#endif

// The inode of this process's namespace of process numbers, or 0 if the system does not tell.
inline uint64_t pid_namespace() {
    struct stat about {};
    return stat("/proc/self/ns/pid", &about) == 0 ? static_cast<uint64_t>(about.st_ino) : 0;
}

// Slots that are looked at in one hold of the lock, for those that a dead participant was writing.
constexpr int64_t kSearched = 1024;

// Makes the slots that a participant was writing free for others, and its number too. The caller
// holds the lock; nobody writes for that participant any more. Its slots are among n_passed in ring
// order: a piece of 64 KiB, or more where several of its threads were writing. False: they are too
// many for one hold, and the next call goes on where this one stopped, whoever makes it.
inline bool remove_participant(Header* header, int64_t id) {
    Participant& gone = participants_of(header)[id];
    const uint64_t owner = static_cast<uint64_t>(id) + 1;
    double* priorities = priorities_of(header);
    const int64_t n = std::min(gone.n_passed, kSearched);
    int64_t slot = gone.first_written;
    for (int64_t i = 0; i < n && gone.n_writing > 0; ++i) {
        const uint64_t generation = load_relaxed(generation_of(header, slot));
        if ((generation & 1) != 0 && generation >> kOwnerShift == owner) {
            if (priorities != nullptr) store_relaxed(priorities + slot, 0.0);
            // relaxed: an odd one tells a reader all it needs
            store_relaxed(generation_of(header, slot), vacated(generation));
            store_relaxed(&header->n_writing, header->n_writing - 1);
            --gone.n_writing;
        }
        if (++slot == header->layout.capacity) slot = 0;
    }
    // After the generations: should we die before it, the next one looks at these slots again. In
    // between, it would look at more than there are, which does no harm.
    store_release(&gone.first_written, slot);
    store_release(&gone.n_passed, gone.n_passed - n);
    if (gone.n_writing > 0 && gone.n_passed > 0) return false;
    store_relaxed(&header->n_paused, header->n_paused - gone.n_paused);
    header->n_sweeping -= gone.n_sweeping;
    header->n_copying -= gone.n_copying;
    gone.n_paused = gone.n_writing = gone.n_sweeping = gone.n_copying = 0;
    // last: should we die before it, the next one removes the rest
    store_release(&gone.is_present, int64_t{0});
    return true;
}

// Whether the others have not been looked at for 5 ms. A relaxed load, for those without the lock.
inline bool is_time_to_bury(const Header* header, int64_t* now = nullptr) {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    const int64_t at = time.tv_sec * 1'000'000'000ll + time.tv_nsec;
    if (now != nullptr) *now = at;
    const int64_t before = load_relaxed(&header->buried_at);
    return at - before >= 5'000'000 || at < before;
}

// Removes the dead that others wait for, or count for, or, with `all`, all of them. The caller
// holds the lock. False: some of it is left to the next call, which may come at once.
inline bool bury(const Attachment* attachment, bool all) {
    Header* header = attachment->header;
    if (header->n_participants == 1) return true;
    int64_t now;
    if (!is_time_to_bury(header, &now) && !all) return true;
    if (!has_file(attachment)) return true;  // another's file has no answer: let the others look
    bool is_done = true;
    for (int64_t id = 0; id < header->n_participants && is_done; ++id) {
        const Participant& one = participants_of(header)[id];
        const bool is_awaited = one.n_writing > 0 || one.n_paused > 0 || one.n_sweeping > 0 ||
                                one.n_copying > 0;
        if (!one.is_present || !(all || is_awaited)) continue;
        if (!is_alive(attachment, id)) is_done = remove_participant(header, id);
    }
    store_relaxed(&header->buried_at, is_done ? now : 0);
    return is_done;
}

// Enters an attachment among the participants. The caller holds the lock. False, with errno, if
// there is no place (EAGAIN), if there may be one after the next call (EINTR), or if the system has
// no such locks.
inline bool enter(Attachment* attachment) {
    Header* header = attachment->header;
    if (attachment->me >= 0) return true;  // another thread was faster
    if (header->n_participants == 1) {
        attachment->me = 0;
        return true;
    }
    if (!has_file(attachment)) return errno = EBADF, false;
    if (attachment->page == nullptr && !keep_description(attachment)) return false;
    Participant* all = participants_of(header);
    for (int turn = 0; turn < 2; ++turn) {
        for (int64_t id = 0; id < header->n_participants; ++id) {
            if (all[id].is_present) continue;
            if (!hold_place(attachment, id)) {
                if (errno != EAGAIN && errno != EACCES) return false;
                continue;  // of one that is just closing its file
            }
            all[id] = Participant{};
            // last: a free place stays free if we die before it
            store_release(&all[id].is_present, int64_t{1});
            // relaxed: other threads of ours only ask whether it is below 0, and take the lock
            // before they use it
            store_relaxed(&attachment->me, id);
            return true;
        }
        if (turn == 0 && !bury(attachment, true)) return errno = EINTR, false;
    }
    errno = EAGAIN;
    return false;
}

// Ends what `enter` began. The caller holds the lock.
inline void leave(Attachment* attachment) {
    if (attachment->me < 0) return;
    while (!remove_participant(attachment->header, attachment->me)) {}
    if (attachment->header->n_participants > 1) {
        if (has_file(attachment)) let_place_go(attachment, attachment->me);
        let_description_go(attachment);
    }
    attachment->me = -1;
}

// Takes the lock at a moment when nobody is writing a row.
inline void pause(Attachment* attachment) {
    Header* header = attachment->header;
    acquire(header);
    participants_of(header)[attachment->me].n_paused += 1;
    store_relaxed(&header->n_paused, header->n_paused + 1);
    while (header->n_writing > 0) {
        bury(attachment, false);
        if (header->n_writing == 0) break;
        release(header);
        give_way();
        acquire(header);
    }
}

// Ends what pause began.
inline void resume(Attachment* attachment) {
    Header* header = attachment->header;
    participants_of(header)[attachment->me].n_paused -= 1;
    store_relaxed(&header->n_paused, header->n_paused - 1);
    release(header);
}

}  // namespace kary

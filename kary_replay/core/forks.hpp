// What a forked child does with its parent's attachments to shared blocks.
//
// It does so at every fork that the C library knows of, not only at Python's own. block.pyx alone
// includes this file, so there is one list of attachments.
#pragma once
#include <pthread.h>

#include "participants.hpp"

namespace kary {

static pthread_mutex_t attachments_lock = PTHREAD_MUTEX_INITIALIZER;
static Attachment* attachments = nullptr;  // guarded by attachments_lock

static void before_fork() { pthread_mutex_lock(&attachments_lock); }
static void after_fork_in_parent() { pthread_mutex_unlock(&attachments_lock); }

// Opens the file of an attachment anew under the same descriptor, for an open file description of
// our own. It makes only calls that are allowed between fork and exec with several threads.
static bool reopen(const Attachment* attachment) {
    if (!has_file(attachment)) return false;  // somebody closed it: the number is another file's
    const int file = attachment->file;
    char path[32] = "/proc/self/fd/";
    int end = 14, n_digits = 1;
    for (int rest = file; rest >= 10; rest /= 10) ++n_digits;
    for (int rest = file, at = end + n_digits - 1; at >= end; rest /= 10) {
        path[at--] = static_cast<char>('0' + rest % 10);
    }
    const int opened = open(path, O_RDWR | O_CLOEXEC);
    if (opened < 0) return false;
#ifdef __linux__
    const bool is_done = dup3(opened, file, O_CLOEXEC) >= 0;
#else
    const bool is_done = dup2(opened, file) >= 0 && fcntl(file, F_SETFD, FD_CLOEXEC) >= 0;
#endif
    close(opened);
    return is_done;
}

static void after_fork_in_child() {
    for (Attachment* one = attachments; one != nullptr; one = one->next) {
        one->me = -1;  // that was our parent's number: we enter when we first use the block
        one->page = nullptr;
        if (!reopen(one)) {
            if (has_file(one)) close(one->file);  // or it would keep our parent alive
            one->file = -1;
        }
    }
    pthread_mutex_unlock(&attachments_lock);  // taken by the thread that forked, which is this one
}

static bool watch_forks() {
    return pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) == 0;
}

// Adds an attachment, whose file is open, to those that forks look after. It gets a description of
// its own: not that of the mapping, and none that a child has which another thread forks meanwhile.
// False, with errno, if the file cannot be opened anew.
static bool note_attachment(Attachment* attachment) {
    pthread_mutex_lock(&attachments_lock);
    struct stat about {};
    bool is_noted = fstat(attachment->file, &about) == 0;
    attachment->device = about.st_dev;
    attachment->inode = about.st_ino;
    is_noted = is_noted && reopen(attachment);
    if (is_noted) {
        attachment->previous = nullptr;
        attachment->next = attachments;
        if (attachments != nullptr) attachments->previous = attachment;
        attachments = attachment;
    }
    pthread_mutex_unlock(&attachments_lock);
    return is_noted;
}

static void forget_attachment(Attachment* attachment) {
    pthread_mutex_lock(&attachments_lock);
    if (attachment->previous != nullptr) attachment->previous->next = attachment->next;
    if (attachment->next != nullptr) attachment->next->previous = attachment->previous;
    if (attachments == attachment) attachments = attachment->next;
    pthread_mutex_unlock(&attachments_lock);
}

}  // namespace kary

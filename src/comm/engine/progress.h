// SPDX-License-Identifier: BSD-3-Clause
// Libraries besides MPI that must be called to make progress: links sign in
// here when they open. They cost nothing until one has done so. Engine lock
// held, except where noted.
#ifndef WM_COMM_ENGINE_PROGRESS_H
#define WM_COMM_ENGINE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

// Functions of one library; NULL: it has none.
typedef struct {
    // Makes progress; called in each round of the engine, and, while there is
    // nothing to do, as often as `idle_fd` asks for.
    void (*progress)(void);
    // Called before the progress thread sleeps. Returns a descriptor that is
    // readable when progress() must be called; -1: there is none, and the
    // thread looks again after a millisecond.
    int (*idle_fd)(void);
    // Called once in MPI_Finalize, when all operations have ended.
    void (*close)(void);
} wm_source_t;

// Adds a library, which stays until wm_progress_end().
void
wm_progress_add(const wm_source_t *source);

void
wm_progress_end(void);

// Returns true if a library was added. Any thread, without the lock.
bool
wm_progress_is_asked(void);

// Calls progress() of all.
void
wm_progress_poll(void);

// For the progress thread: prepares to sleep. Then, without the lock, sleeps
// for at most `us` microseconds (0: no limit), until a library has work, or
// until wm_progress_wake().
void
wm_progress_arm(void);

void
wm_progress_sleep(int64_t us);

// Wakes the thread, also if it is about to sleep. Any thread.
void
wm_progress_wake(void);

#endif

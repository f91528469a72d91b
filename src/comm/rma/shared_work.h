// SPDX-License-Identifier: BSD-3-Clause
// Work on streams of which an owner must know the end: an event for each
// stream that has some. One thread at a time, under a lock of the owner's.
// Private to this module.
#ifndef WM_COMM_RMA_SHARED_WORK_H
#define WM_COMM_RMA_SHARED_WORK_H

#include <stdbool.h>

#include "cuda/event.h"

// A call on a stream, for the report of a long wait.
typedef struct {
    const char *name;
    int slot; // -1: none
    uint64_t value;
} wm_shared_call_t;

typedef struct {
    CUstream stream;
    uint64_t id; // wm_stream_id
    CUevent event;
    wm_shared_call_t last; // the last call
    uint32_t calls, seen;  // so far; at the last look
    int64_t since; // the time of the look that saw them first; -1: reported
} wm_shared_entry_t;

// Zero at first.
typedef struct {
    wm_shared_entry_t *entries;
    int count, room;
} wm_shared_work_t;

// Remembers the work that a stream was given so far. Not in a capture.
WM_MUST_CHECK int
wm_shared_work_note(wm_shared_work_t *work, int device,
                    const wm_shared_call_t *call, CUstream stream,
                    wm_error_t *err);

// Returns true if all of it has ended, or the context is lost.
bool
wm_shared_work_has_ended(const wm_shared_work_t *work, int device);

// Reports, once, a stream that has waited for `limit` microseconds.
void
wm_shared_work_look(wm_shared_work_t *work, int device, int64_t now,
                    int64_t limit);

void
wm_shared_work_free(wm_shared_work_t *work, int device);

#endif

// SPDX-License-Identifier: BSD-3-Clause
// Access to memory that we are about to read or write: the work that may still
// use the memory (the producer, and the stream that the caller named), events
// that mark the state of this work when we were called, and the stream of our
// own work, which is ordered behind it. An access has one owner at a time. The
// GIL is not needed.
#ifndef WM_ARRAY_ACCESS_H
#define WM_ARRAY_ACCESS_H

#include "array/order.h"

// A mark of the work that a stream had been given at one moment.
typedef struct {
    CUevent event; // NULL: none
    int device;
    uint64_t stream; // wm_stream_id of the stream it was recorded on
    uint64_t number; // later events have higher numbers
} wm_note_t;

typedef struct {
    wm_producer_t producer;
    bool to_write;        // true: we write the memory; false: we read it
    int device;           // the device that our stream works on
    CUstream stream;      // the pool's if `pooled`, else another's
    bool opened, pooled;  // ordered behind all others; to be released
    bool idle;            // no work of ours is pending on it
    bool after_nothing;   // no other work comes first
    int user_device;      // device of user_stream; -1: none
    CUstream user_stream; // the stream that the caller named
    bool counted;         // user_stream is counted as named
    wm_note_t after[2];   // marks on the producer and on user_stream
} wm_access_t;

// Initialises an access; opens no stream. `device` is the device of the
// memory.
void
wm_access_begin(wm_access_t *access, const wm_producer_t *producer,
                bool to_write, int device);

// Names the caller's stream. It is counted as named until wm_access_close,
// because it may be waiting for us.
void
wm_access_name_stream(wm_access_t *access, int device, CUstream stream);

// Returns true if any named stream is counted.
bool
wm_access_any_named(void);

// Records events on the producer's stream and on the named stream, so that our
// work waits only for what they hold at this moment. Called on the thread that
// begins the operation: on another thread, the per-thread default stream is a
// different one. If an event cannot be recorded, our stream waits for the
// whole stream when it is opened.
void
wm_access_record(wm_access_t *access);

// Returns true if the producer's work was marked and is not known to have
// ended.
bool
wm_access_is_noted(const wm_access_t *access);

// Returns true if the mark of `access` on its producer comes after the mark of
// `other`, on the same stream: if the first has ended, so has the other.
bool
wm_access_covers(const wm_access_t *access, const wm_access_t *other);

// Asks the driver once. If the marked work of the producer has ended, drops
// the mark and returns true.
bool
wm_access_ask_note(wm_access_t *access);

// Drops the mark: the producer's work has ended, and nobody uses the memory.
void
wm_access_note_ended(wm_access_t *access);

// Returns true if nobody is known to use the memory. Makes no driver call.
bool
wm_access_is_free(const wm_access_t *access);

// The earlier users have reported that they are done: we wait for none of
// them. A borrowed stream is closed, as it may be destroyed or blocked.
void
wm_access_after_nothing(wm_access_t *access);

// Closes the stream if it is borrowed.
void
wm_access_forget_borrowed(wm_access_t *access);

// Returns true if our work can go onto the producer's own stream. This needs
// no event and no query, and keeps the stream's priority. Writes never go onto
// a default stream: a wait for the legacy one takes 1.5 times as long, and the
// per-thread one is a different stream on each thread.
bool
wm_access_may_borrow(const wm_access_t *access);

// Puts our work onto a stream of ours that another object owns. Called after
// wm_access_after_nothing. A stream of the program is named instead, and
// opened by wm_access_open_named.
void
wm_access_use(wm_access_t *access, CUstream stream);

// Opens a stream that is ordered behind all users of the memory: the
// producer's own (wm_access_borrow), or one of the pool (wm_access_open; does
// nothing if a stream is open).
void
wm_access_borrow(wm_access_t *access);
WM_MUST_CHECK int
wm_access_open(wm_access_t *access, wm_error_t *err);

// Orders the named stream behind the producer, and opens the named stream.
WM_MUST_CHECK int
wm_access_open_named(wm_access_t *access, wm_error_t *err);

// Returns true if the open stream is the named one.
bool
wm_access_is_named(const wm_access_t *access);

// Makes another stream wait for the producer: for its mark, if there is one,
// else for all of its work.
WM_MUST_CHECK int
wm_access_before(const wm_access_t *access, int device, CUstream stream,
                 wm_error_t *err);

// Asks up to `tries` times whether our stream has ended. Returns 1 if it has,
// 0 if it has not yet.
WM_MUST_CHECK int
wm_access_look(wm_access_t *access, int tries, wm_error_t *err);

// Moves our work, of which none is pending, to a stream of another device.
// No-op if the access is on this device. The stream must be opened again.
void
wm_access_move(wm_access_t *access, int device);

// Waits on the host for our stream, if one is open.
WM_MUST_CHECK int
wm_access_synchronize(const wm_access_t *access, wm_error_t *err);

// Waits on the host for both marks.
void
wm_access_wait_for_notes(const wm_access_t *access);

// Releases the stream and the events, and ends the count of the named stream.
void
wm_access_close(wm_access_t *access);

#endif

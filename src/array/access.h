// SPDX-License-Identifier: BSD-3-Clause
// Who uses a piece of memory that we are about to read or write: those who
// used it before (the producer, and a stream that the caller named), notes of
// what they had begun when we were called, and the stream that our own work
// comes behind them on. One owner at a time; GIL not needed.
#ifndef WM_ARRAY_ACCESS_H
#define WM_ARRAY_ACCESS_H

#include "array/order.h"

// What a stream had been given, at one moment.
typedef struct {
    CUevent event; // NULL: none
    int device;
    uint64_t stream; // the id of that it was recorded on
    uint64_t number; // grows with the events recorded
} wm_note_t;

typedef struct {
    wm_producer_t producer;
    bool to_write;        // we write it, else we read it
    int device;           // on which our stream works
    CUstream stream;      // of the pool where `pooled`, else the producer's
    bool opened, pooled;  // it comes behind all others; it is to be given back
    bool idle;            // nothing of ours is pending on it
    bool settled;         // nobody else comes first any more
    int user_device;      // of the stream that the caller named; -1: none
    CUstream user_stream; // likewise
    bool counted;         // it is
    wm_note_t after[2];   // of producer and named stream
} wm_access_t;

// Nothing is begun. `device` is the memory's.
void
wm_access_begin(wm_access_t *access, const wm_producer_t *producer,
                bool to_write, int device);

// The caller named a stream: until wm_access_close it may be waiting for us,
// which is counted.
void
wm_access_name_stream(wm_access_t *access, int device, CUstream stream);

// Whether there is any such stream.
bool
wm_access_any_named(void);

// Takes note, by events, of the work on the streams that ours comes after, on
// the thread that began it: later there may be more on them, they may be gone,
// and the per-thread one would be another. What cannot be noted is waited for
// as it is then.
void
wm_access_take_note(wm_access_t *access);

// Whether the producer's work has been noted, and has not ended.
bool
wm_access_is_noted(const wm_access_t *access);

// Whether what one has noted of its producer comes behind what the other has:
// it has ended only if that has.
bool
wm_access_covers(const wm_access_t *access, const wm_access_t *other);

// Asks whether what was noted of the producer has ended; it is then gone.
bool
wm_access_ask_note(wm_access_t *access);

// What was noted of the producer has ended: nobody uses the memory.
void
wm_access_note_ended(wm_access_t *access);

// Whether nobody is known to use the memory. Asks nothing.
bool
wm_access_is_free(const wm_access_t *access);

// Those who used it before have said themselves that they are done. A stream
// that was borrowed may be gone by now, or wait.
void
wm_access_settle(wm_access_t *access);

// Likewise of a borrowed stream alone.
void
wm_access_forget_borrowed(wm_access_t *access);

// Whether our work can go onto the producer's own stream, which needs no event
// and no query, and has its priority. Not onto a default stream to write:
// waiting for the legacy one takes half as long again, and any thread may come
// to wait, where the per-thread one is another.
bool
wm_access_may_borrow(const wm_access_t *access);

// Our work goes onto a stream that somebody else keeps, once settled.
void
wm_access_use(wm_access_t *access, CUstream stream);

// Opens a stream that comes behind whoever uses the memory: the producer's
// own, or one of the pool. No-op where one is open.
void
wm_access_borrow(wm_access_t *access);
WM_MUST_CHECK int
wm_access_open(wm_access_t *access, wm_error_t *err);

// Makes the named stream come behind the producer, and opens that.
WM_MUST_CHECK int
wm_access_open_named(wm_access_t *access, wm_error_t *err);

// Whether it is that one.
bool
wm_access_is_named(const wm_access_t *access);

// Makes another stream come behind the producer, as it was noted, or is now.
WM_MUST_CHECK int
wm_access_before(const wm_access_t *access, int device, CUstream stream,
                 wm_error_t *err);

// Looks up to `tries` times whether our stream is idle: 1, 0 when not yet.
WM_MUST_CHECK int
wm_access_look(wm_access_t *access, int tries, wm_error_t *err);

// Waits for our stream, where one is open.
WM_MUST_CHECK int
wm_access_synchronize(const wm_access_t *access, wm_error_t *err);

// Waits for what was noted of both.
void
wm_access_wait_for_notes(const wm_access_t *access);

// Gives stream and notes back.
void
wm_access_close(wm_access_t *access);

#endif

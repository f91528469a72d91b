// SPDX-License-Identifier: BSD-3-Clause
// Messages in CUDA graphs. An end of such a message is made when the message
// is captured first, and meets the other end in the background: the sender's
// host sends one header on the communicator `data`, under a tag of its own,
// and hosts match the headers in order, by rank and tag. Kernels of the graph
// wait until the ends have met (kernels/port.h), and then exchange the message
// in each replay without a host. So no capture waits for another rank. An end
// lives as long as a request, or a graph, has it.
//
// Engine lock not held; GIL released by the caller.
#ifndef WM_COMM_PROTOCOL_CAPTURED_H
#define WM_COMM_PROTOCOL_CAPTURED_H

#include "comm/message/p2p.h"

typedef struct wm_captured wm_captured_t;

// Makes an end for the memory of `buffer`, which is taken over in every case,
// on a stream of `device`. Begins to look for the other end. Fails with
// WM_ERR_STATE if the other end cannot be reached by kernels, with
// WM_ERR_VALUE if kernels cannot reach the memory; the other rank is told of
// any failure.
WM_MUST_CHECK int
wm_captured_new(wm_comm_t *comm, wm_buffer_t *buffer,
                const wm_envelope_t *envelope, bool receives,
                wm_captured_t **made, wm_error_t *err);

// Tells the rank of the other end that this rank has refused a captured
// message, with the error.
void
wm_captured_refuse(wm_comm_t *comm, const wm_envelope_t *envelope,
                   bool receives, const char *text);

// Ends the kernels that have waited `least` microseconds for a message that
// the other rank has refused, and keeps the error. Engine lock held.
void
wm_captured_end_refused(int64_t now, int64_t least);

// Returns true if another graph has a message of a blocking call with the same
// memory, rank and tag: a call that is captured again is another message.
bool
wm_captured_is_again(const wm_comm_t *comm, const wm_envelope_t *envelope,
                     bool receives, const void *data);

// Enqueue the start, and the wait, of messages on a stream that is being
// captured: one kernel for up to WM_PORT_OPS of them.
WM_MUST_CHECK int
wm_captured_start(wm_captured_t *const *ends, int count, CUstream stream,
                  wm_error_t *err);

WM_MUST_CHECK int
wm_captured_wait(wm_captured_t *const *ends, int count, CUstream stream,
                 wm_error_t *err);

// Enqueues both, in one kernel: no end waits for another end of the kernel,
// whose memory it must not share.
WM_MUST_CHECK int
wm_captured_pass(wm_captured_t *const *ends, int count, CUstream stream,
                 wm_error_t *err);

// Gives the end up: it lives as long as graphs have it. Any thread, GIL held
// or not. NULL: no-op.
void
wm_captured_release(wm_captured_t *end);

// Closes the end, and gives it up: replays that begin later, of both ranks,
// raise an error and move nothing. Waits, for some seconds, for the work on
// `stream`, where replays may be waiting, and for a message that is under way
// on any other. NULL: no-op.
void
wm_captured_free(wm_captured_t *end, CUstream stream);

// Returns true if there are ends, whose kernels may wait for other ranks. Any
// thread, without the lock.
bool
wm_captured_any(void);

// Called when the program has waited for a stream. Returns the error of a
// message that a replay has not passed, once; 0: there is none.
WM_MUST_CHECK int
wm_captured_find_failures(wm_error_t *err);

// A message that kernels of a graph have waited for or, `unasked`, one that
// has waited here for a captured receive.
typedef struct {
    const wm_comm_t *comm;
    bool unasked, receives, matched;
    int rank, tag; // of the other end; as given before they have matched
    bool other;    // a message with another rank or tag waits for a receive
    int other_rank, other_tag;
    int64_t waited_us;
} wm_captured_wait_t;

// Finds waits that have lasted `least` microseconds, and calls visit() for
// each, once in a minute. `now`: of this look, one of many. Engine lock held.
void
wm_captured_each_wait(int64_t now, int64_t least,
                      void (*visit)(const wm_captured_wait_t *wait));

// Stops the kernels that wait for a dead rank, or on a revoked communicator.
// Keeps the errors of kernels for the next call. Engine lock held.
void
wm_captured_look(wm_comm_t *comm);

#endif

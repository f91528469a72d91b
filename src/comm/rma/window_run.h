// SPDX-License-Identifier: BSD-3-Clause
// The work of a window's calls: Put, Get, and updates of elements (Accumulate,
// Get_accumulate, Fetch_and_op, Compare_and_swap). A call gives copies or
// kernels to the window's stream, ordered behind the producers of its
// arguments, and returns. Work of one window is done in the order of its
// calls. Window's lock held, GIL released, engine lock not held, except where
// noted.
#ifndef WM_COMM_RMA_WINDOW_RUN_H
#define WM_COMM_RMA_WINDOW_RUN_H

#include "array/reduce.h"
#include "array/strided.h"
#include "comm/engine/buffer.h"
#include "comm/rma/window.h"

// Memory with gaps, one strided part behind the other; dense if `parts` is
// NULL. `parts` are from malloc.
typedef struct {
    char *data; // of dense memory
    wm_strided_t *parts;
    int count;
} wm_window_layout_t;

// An argument of a call, which takes it over: `parts` and the owner are NULL
// then.
typedef struct {
    wm_buffer_t buffer;
    wm_window_layout_t layout;
} wm_window_side_t;

typedef struct {
    wm_target_kind_t kind;
    int target;                // reached: parts[target].memory
    wm_window_layout_t layout; // of the target, in this process
    size_t nbytes;             // on each side
    wm_window_side_t *origin;
    wm_window_side_t *compare, *result; // or NULL
    // An update: ACCUMULATE and later kinds.
    wm_reduce_type_t type;
    wm_reduce_op_t op;
} wm_window_call_t;

// Begins a call whose target is within the window.
WM_MUST_CHECK int
wm_window_begin(wm_window_t *window, wm_window_call_t *call, wm_error_t *err);

// Refuses a stream of another device than the window's.
WM_MUST_CHECK int
wm_window_check_stream(const wm_window_t *window, int device, wm_error_t *err);

// Finds the capture of a stream (0: none), whose graph keeps the window.
WM_MUST_CHECK int
wm_window_keep(wm_window_t *window, int device, CUstream stream,
               uint64_t *capture, wm_error_t *err);

// Gives a call to a stream of the program, on the window's device. The arrays
// are GPU or page-locked memory, and in a capture they have no gaps on this
// side; the program keeps them then. Fails where the part is not reached.
WM_MUST_CHECK int
wm_window_begin_on(wm_window_t *window, wm_window_call_t *call, int device,
                   CUstream stream, wm_error_t *err);

// Orders a stream of the program behind the calls of this rank that are under
// way, of which those that the targets' engines do end here; or later calls,
// which name no stream, behind the stream. In a capture, only
// wm_window_keep().
WM_MUST_CHECK int
wm_window_precede(wm_window_t *window, int device, CUstream stream,
                  wm_error_t *err);
WM_MUST_CHECK int
wm_window_follow(wm_window_t *window, int device, CUstream stream,
                 wm_error_t *err);

// Waits for an operation of a target's, and releases it.
WM_MUST_CHECK int
wm_window_await(wm_op_t *op, wm_error_t *err);

// Waits until all work has ended.
WM_MUST_CHECK int
wm_window_complete(wm_window_t *window, wm_error_t *err);

// Copies the next `most` bytes of a result in memory of ours to where the
// program wants it, once the work has ended. Returns 1 when all is there, 0 if
// some is not, or an error. Any lock.
WM_MUST_CHECK int
wm_window_deliver(wm_window_pending_t *one, size_t most, wm_error_t *err);

// Releases an argument. Engine lock not held.
void
wm_window_release(wm_window_pending_t *one);

// Releases the arguments of work that has ended; cheaper with the GIL. Called
// without the window's lock.
void
wm_window_release_ended(wm_window_t *window);

#endif

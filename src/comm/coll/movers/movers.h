// SPDX-License-Identifier: BSD-3-Clause
// A library that moves GPU memory between ranks on streams, such as NCCL: what
// an engine of collectives needs of it. All else of such an engine is in this
// folder: its communicators, failures, calls on streams and in graphs, and the
// steps of each collective, in which kernels of ours add.
//
// `handle` is the library's communicator of all ranks; NULL: it was aborted,
// and the function fails. The calls of one handle are made by one thread at a
// time, with its device's context current, in one order on all ranks; they do
// not wait for other ranks on the host.
#ifndef WM_COMM_COLL_MOVERS_MOVERS_H
#define WM_COMM_COLL_MOVERS_MOVERS_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>

#include "cuda/error.h"

typedef struct {
    // Between both the moves of a group, which run at once. It may have moves
    // of a rank to itself. The end comes also after an error.
    int (*begin)(wm_error_t *err);
    int (*end)(wm_error_t *err);
    int (*send)(void *handle, const void *data, size_t nbytes, int rank,
                CUstream stream, wm_error_t *err);
    int (*receive)(void *handle, void *data, size_t nbytes, int rank,
                   CUstream stream, wm_error_t *err);
    // Each rank gives `nbytes`, and gets those of all. In place if `from` is
    // this rank's part of `into`.
    int (*gather)(void *handle, const void *from, void *into, size_t nbytes,
                  CUstream stream, wm_error_t *err);
    int (*broadcast)(void *handle, void *data, size_t nbytes, int root,
                     CUstream stream, wm_error_t *err);
    // Counts a call in which this rank gave so many bytes to others. NULL:
    // nobody does.
    void (*count)(size_t nbytes);
    // Returns the error of a call that has begun. NULL: none is known.
    int (*look)(void *handle, wm_error_t *err);
    // Returns true if an error of these functions tells that a rank was lost,
    // of which MPI may tell later. NULL: no.
    bool (*lost)(const wm_error_t *err);
    // Frees it when its work has ended. `parent`: what was opened with it, or
    // NULL.
    void (*destroy)(void *handle, void *parent);
    // Ends its work at once, with any data, and frees it; also while another
    // thread is blocked in a call. Either may be NULL. May wait for streams
    // and graphs (mover_abort.h).
    void (*abort)(void *handle, void *parent);
} wm_movers_t;

#endif

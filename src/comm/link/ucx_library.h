// SPDX-License-Identifier: BSD-3-Clause
// UCX in this process: its library, opened at first use, and one context with
// one worker, which are never made twice. Engine lock held.
#ifndef WM_COMM_LINK_UCX_LIBRARY_H
#define WM_COMM_LINK_UCX_LIBRARY_H

#include <stdbool.h>

#include "comm/link/ucx_abi.h"
#include "cuda/error.h"

// The functions of the library. Valid after wm_ucx_open() has returned 0.
extern wm_ucx_functions_t wm_ucx;

typedef struct {
    void *context, *worker;
    bool rdma; // UCX has a transport with RDMA
    bool cuda; // UCX sends and receives device memory
    int fd;    // readable when the worker has work; -1: there is none
} wm_ucx_t;

// Returns true if it is cheap, or worth while, to open UCX unasked: the
// process has loaded it, or the host has an adapter with RDMA.
bool
wm_ucx_is_likely(void);

// Opens UCX, once; a failure is kept, and told each time. Fails with
// WM_ERR_VALUE, whose text says what is missing: the library, a version, its
// support of CUDA where there is a GPU. `asked`: it serves without RDMA, too.
WM_MUST_CHECK int
wm_ucx_open(bool asked, wm_ucx_t **ucx, wm_error_t *err);

// Returns the version, the path and the transports, as text for the doctor;
// or why UCX cannot be used. NULL: it was not opened.
const char *
wm_ucx_tell(void);

// Destroys the worker and the context. `lost`: requests are under way that
// will not end, for which UCX must stay.
void
wm_ucx_close(bool lost);

#endif

// SPDX-License-Identifier: BSD-3-Clause
// Operations on memory of other ranks that the engine of the target performs,
// asked by messages: for memory that the origin does not map (of another host,
// or that CUDA IPC does not export), and for updates that no device does at
// once. A window has a target on every rank of its communicator, unless every
// rank reaches all parts by itself (window.h). The target's engine serves
// whenever it steps: by the progress thread under MPI_THREAD_MULTIPLE, else in
// calls of ours alone. A rank that waits inside MPI (MPI_Win_fence,
// MPI_Barrier) does not serve without that thread.
//
// Operations of one origin on the same bytes of one target are performed in
// the order in which they began, whatever they are; those of different origins
// in any order, one element at once: updates that a device does
// (array/atomic.h) by the same kernel that origins with a mapping use, others
// by the CPU, or by this engine's stream, alone.
//
// GIL released by the caller, engine lock not held, unless noted.
#ifndef WM_COMM_RMA_TARGET_H
#define WM_COMM_RMA_TARGET_H

#include "array/reduce.h"
#include "array/strided.h"
#include "comm/comm/comm.h"
#include "comm/engine/buffer.h"
#include "comm/rma/window_lock.h"

#define WM_TARGET_CALL "MPI.Win" // the call that errors name

typedef struct wm_target wm_target_t;

// Most bytes of one element that is compared.
#define WM_TARGET_COMPARED 16

// Memory of this rank that others access: device, page-locked or host memory,
// which the caller owns and keeps until it is detached or withdrawn.
typedef struct {
    char *data;
    size_t nbytes;
    wm_pointer_t memory;
    // The number by which origins name the first byte: 0 in a window that is
    // one region, the address in a dynamic window.
    uint64_t at;
} wm_target_memory_t;

// Makes the targets of a window; collective over the communicator, which is no
// intercommunicator. memory: NULL exposes none yet. words: this rank's lock,
// which ranks of this host take by themselves, and the engine for others.
// Holds the communicator until wm_target_withdraw(). If one rank fails, all
// raise.
WM_MUST_CHECK int
wm_target_expose(wm_comm_t *comm, const wm_target_memory_t *memory,
                 wm_window_words_t *words, wm_target_t **target,
                 wm_error_t *err);

// Waits until the operations of this rank have ended, and then for all ranks;
// collective. Frees the target in any case. Returns the first error that
// nobody has been told, or that of a rank that died.
WM_MUST_CHECK int
wm_target_withdraw(wm_target_t *target, wm_error_t *err);

// Adds memory of this rank (Win.Attach), or takes it back, by its first byte,
// after the operations on it that have come. Local. WM_ERR_MPI with
// MPI_ERR_RMA_ATTACH if it overlaps other memory, or if none begins there.
WM_MUST_CHECK int
wm_target_attach(wm_target_t *target, const wm_target_memory_t *memory,
                 wm_error_t *err);
WM_MUST_CHECK int
wm_target_detach(wm_target_t *target, uint64_t at, wm_error_t *err);

typedef enum {
    WM_TARGET_PUT = 1,
    WM_TARGET_GET,
    WM_TARGET_ACCUMULATE, // target = target op origin
    WM_TARGET_FETCH,      // likewise; the result is the target as it was:
                          // Get_accumulate, Fetch_and_op
    WM_TARGET_COMPARE,    // Compare_and_swap, of one element
} wm_target_kind_t;

// An operation. All data are of one size, `nbytes` without gaps.
typedef struct {
    wm_target_kind_t kind;
    int rank;    // the target's; PROC_NULL is not taken
    uint64_t at; // first byte there: displacement times unit; an address
    size_t nbytes;
    // ACCUMULATE, FETCH, COMPARE: the elements, and the operation, which
    // wm_reduce_takes() takes; REPLACE takes any type, as uint8.
    wm_reduce_type_t type;
    wm_reduce_op_t op;
    // Gaps of the target: parts one after the other, whose `data` is an offset
    // from `at`. count 0: no gaps. Each run is a number of whole elements.
    const wm_strided_t *parts;
    size_t count;
    // COMPARE: the element that the target must equal, in host memory.
    const void *compare;
    // Its error is told by *op alone; else also by the next flush.
    bool requested;
} wm_target_op_t;

// Begins an operation; takes over both buffers in every case. origin: NULL for
// GET, and for NO_OP; result: NULL for PUT and ACCUMULATE. Both may be memory
// of any kind, with patterns, behind producers. *op, with a reference for the
// caller, unless `op` is NULL, ends when the target has performed the
// operation and the result is in place (a result in GPU memory: as that of a
// receive). Waits for no other rank. Wrong arguments are told here and nothing
// was begun; bounds are the target's to check: WM_ERR_MPI with
// MPI_ERR_RMA_RANGE at the end of *op.
WM_MUST_CHECK int
wm_target_begin(wm_target_t *target, const wm_target_op_t *what,
                wm_buffer_t *origin, wm_buffer_t *result, wm_op_t **op,
                wm_error_t *err);

// Begins to wait for all operations on a rank (-1: on all ranks) that began
// before: *op, with a reference, ends when the targets have performed them,
// with the first error of those that were not requested. If nothing is under
// way, it has ended.
WM_MUST_CHECK int
wm_target_flush(wm_target_t *target, int rank, wm_op_t **op, wm_error_t *err);

// Begin to take, and to leave, the lock of a rank. Taking ends when the lock
// is taken. Leaving flushes first; it ends when the lock is free, with the
// error of the flush. The caller knows what it holds.
WM_MUST_CHECK int
wm_target_lock(wm_target_t *target, int rank, bool exclusive, wm_op_t **op,
               wm_error_t *err);
WM_MUST_CHECK int
wm_target_unlock(wm_target_t *target, int rank, wm_op_t **op, wm_error_t *err);

#endif

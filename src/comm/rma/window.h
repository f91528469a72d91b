// SPDX-License-Identifier: BSD-3-Clause
// A window over GPU memory (MPI.Win): the parts of all ranks of a
// communicator, which is the window's alone. A part that this process reaches,
// in GPU memory of this host, is read and written by copies and kernels on a
// stream of the window. Nobody on the other side does anything. For other
// parts (host memory, other hosts) the engine of their rank serves (target.h):
// if a rank does not reach a part, or no words are left for Post and Start,
// all have a target. Calls begin work (window_run.h), which ends in the calls
// that synchronize (window_sync.h). One thread at a time: `lock`. GIL released
// by the caller, engine lock not held, except where noted.
#ifndef WM_COMM_RMA_WINDOW_H
#define WM_COMM_RMA_WINDOW_H

#include "array/signal.h"
#include "array/strided.h"
#include "comm/comm/comm.h"
#include "comm/node/mapping.h"
#include "comm/rma/target.h"
#include "comm/rma/waiter.h"
#include "comm/rma/window_lock.h"
#include "comm/transfer/epochs.h"
#include "cuda/lock.h"

typedef enum {
    WM_WINDOW_UNLOCKED = 0,
    WM_WINDOW_ASKED, // a thread waits for the lock
    WM_WINDOW_SHARED,
    WM_WINDOW_EXCLUSIVE,
    WM_WINDOW_UNCHECKED, // MPI_MODE_NOCHECK: nobody else wants it
} wm_window_held_t;

// The messages of Post and of Complete, by their tags, where ranks have no
// epoch words.
typedef enum {
    WM_WINDOW_POSTED,
    WM_WINDOW_COMPLETED,
    WM_WINDOW_NOTICES,
} wm_window_notice_t;

// The part of one rank.
typedef struct {
    uint64_t nbytes;
    int64_t unit;   // bytes of a displacement
    bool on_device; // GPU memory
    char *memory;   // address in this process; NULL: its engine serves
    // Our GPU updates its elements at once, as those that are linked with its
    // GPU do; else its engine does.
    bool updates;
    wm_rkey_t place;
    wm_mapping_t *mapping;    // NULL: none is needed
    wm_window_words_t *words; // NULL: on another host
    int index;                // of the words, in the rank's segment
    uint32_t left;            // words->left, while its rank has the window
    wm_window_held_t held;    // by this rank
    // This rank is accessed, and accesses the other, by Post and Start.
    bool posted, started;
    wm_op_t *notices[WM_WINDOW_NOTICES]; // expected; NULL: not
} wm_window_part_t;

// Memory that a rank has attached, mapped here (window_attach.h).
typedef struct {
    int rank, index;
    uint32_t version;
    wm_mapping_t *mapping;
    char *memory;
} wm_window_attached_t;

// An argument of a call whose work has not ended, and memory in its place.
typedef struct {
    void *owner;
    void (*release)(void *owner);
    void *pinned;      // NULL: none
    wm_block_t *block; // NULL: none
    // Host memory that gets the bytes at `pinned` when the work has ended.
    char *into; // NULL: none
    size_t nbytes;
    wm_strided_t *parts; // its layout, owned; NULL: no gaps
    int count;
    // Delivered so far: whole parts, bytes of the next one, bytes in all.
    int delivered;
    size_t within, at;
} wm_window_pending_t;

#define WM_WINDOW_PENDING 64
#define WM_WINDOW_ARGUMENTS 3 // most of a call

typedef struct wm_window_request wm_window_request_t; // window_request.h

typedef struct {
    wm_waiter_t waiter; // once it was closed, for graphs
    pthread_mutex_t lock;
    wm_comm_t *comm;
    bool (*interrupted)(wm_op_t *op); // asked by waits for other ranks; NULL
    atomic_int passing; // abandoned tickets of locks, which the engine passes
    int device;         // of its stream; -1: this process has no GPU
    CUstream stream;
    bool opened;        // the stream was taken
    wm_signal_t signal; // word NULL: none
    bool busy;          // work may be under way
    bool named;         // a call works on a stream that the program named
    bool captured;      // which is in a capture
    bool signals;       // the last kernel sets `signal`
    bool requested;     // since the last end of all work
    wm_window_request_t *requests; // not ended
    unsigned looks;
    int ended; // of the pending ones, the first are only to be released
    int pending_count;
    wm_window_pending_t pending[WM_WINDOW_PENDING];
    // Epochs. `fenced`: no other is open here. `used`: calls have begun since
    // the last Fence.
    bool fenced, used, locked_all, started, posted;
    bool on_streams;     // streams may await our epoch words
    int locks;           // parts that Lock holds
    int words;           // index of our words; -1: none
    wm_epochs_t *epochs; // NULL: targets tell each other of epochs
    wm_target_t *target; // NULL: each rank reaches all parts, by itself
    bool asked;          // operations were begun there since the last flush
    bool dynamic; // ranks attach memory, whose addresses are displacements
    bool left;    // all ranks may know: no graph of this one has calls
    void *owner;  // of our memory, once it was closed
    void (*release)(void *owner);
    wm_window_attached_t *attached; // mapped ones
    int attached_count;
    int size;
    wm_window_part_t parts[];
} wm_window_t;

// The memory that this rank gives.
typedef struct {
    int code; // an error of this rank so far, which all raise; 0: none
    const char *text;
    bool on_device, dynamic;
    char *data;
    size_t nbytes;
    wm_pointer_t memory; // of `data`, if not empty
    int64_t unit;
    bool (*interrupted)(wm_op_t *op);
} wm_window_given_t;

// Opens a window. Collective; if one rank fails, all raise. The window borrows
// the communicator; the caller keeps the memory.
WM_MUST_CHECK int
wm_window_open(wm_comm_t *comm, const wm_window_given_t *given,
               wm_window_t **made, wm_error_t *err);

// Closes the window: the work of all ranks has ended (wm_window_end). Where
// graphs of some rank have its calls, mappings, words and the memory stay
// until all these graphs are destroyed. release(owner), then, gives the memory
// up; owner NULL: none. Collective if it has a target, whose last error is
// returned.
WM_MUST_CHECK int
wm_window_close(wm_window_t *window, void *owner, void (*release)(void *owner),
                wm_error_t *err);

// Returns true if this process does the calls on a part itself, updates of
// elements too if `updates`; else the engine of its rank does. In a dynamic
// window there may still be no memory at an address that this process reaches.
bool
wm_window_reaches(const wm_window_t *window, int rank, bool updates);

// Returns true if a rank of this host has graphs with calls. They may use
// memory that was detached.
bool
wm_window_has_graphs(const wm_window_t *window);

// Tells the other ranks that this one has left the window, unless its graphs
// have calls; or takes that back.
void
wm_window_leave(wm_window_t *window);
void
wm_window_stay(wm_window_t *window);

#endif

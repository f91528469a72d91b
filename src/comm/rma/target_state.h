// SPDX-License-Identifier: BSD-3-Clause
// A target as its files share it, and the messages between origins and
// targets. Engine lock held, except where noted.
#ifndef WM_COMM_RMA_TARGET_STATE_H
#define WM_COMM_RMA_TARGET_STATE_H

#include "comm/engine/op.h"
#include "comm/rma/target.h"

// More kinds of requests, behind those of wm_target_kind_t.
enum {
    WM_TARGET_LOCK_SHARED = WM_TARGET_COMPARE + 1,
    WM_TARGET_LOCK_EXCLUSIVE,
    WM_TARGET_UNLOCK,
    WM_TARGET_KINDS,
};

#define WM_TARGET_MAGIC 0x77747231u

// What an origin asks for.
typedef struct {
    uint32_t magic;
    uint8_t kind, type, op, unused;
    uint32_t number; // of this request, among those of its origin
    uint32_t words;  // of the layout, a message of its own; 0: no gaps
    uint64_t at, nbytes;
    char compare[WM_TARGET_COMPARED];
} wm_target_request_t;

// How it ended. A reply that reports no failure ends before `text`.
typedef struct {
    int32_t code, detail;
    char text[200];
} wm_target_reply_t;

// The messages that belong to one request, by their tags.
typedef enum {
    WM_TARGET_PAYLOAD, // of the origin
    WM_TARGET_LAYOUT,
    WM_TARGET_REPLY,
    WM_TARGET_RESULT, // of the target
    WM_TARGET_PARTS,
} wm_target_part_t;

#define WM_TARGET_ASKED 0 // tag of requests
// Bytes of a long update that are one request; any element divides them.
#define WM_TARGET_CHUNK ((size_t)64 << 20)

typedef struct wm_asked wm_asked_t;                   // target_origin.c
typedef struct wm_serving wm_serving_t;               // target_serve.c
typedef struct wm_target_access wm_target_access_t;   // target_access.c
typedef struct wm_target_exposed wm_target_exposed_t; // likewise

// One other rank, as the target of our requests and as their origin.
typedef struct {
    wm_asked_t *first, *last;   // our requests that have not ended
    int unsent;                 // of these, those without a request so far
    wm_error_t *failure;        // that nobody was told; NULL: none
    wm_target_access_t *access; // a link's, to its memory; NULL: none
    // Its requests, in their order; the first few are given to the engine.
    wm_serving_t *served, *newest;
    wm_serving_t *queued;    // the first one that is not; NULL: none
    int admitted;            // number of those that are
    bool holds, holds_alone; // it holds the lock of this rank
} wm_target_rank_t;

struct wm_target {
    _Atomic int references;
    wm_comm_t *of; // retained
    // Its messages: as `of`, but headers and requests have a communicator of
    // their own.
    wm_comm_t comm;
    uint32_t numbers;           // numbers of requests that tags distinguish
    uint32_t begun;             // requests that we have begun
    wm_window_words_t *words;   // the lock of this rank
    wm_target_memory_t *memory; // regions, in the order of `at`
    int regions;
    CUstream stream;              // updates of device memory, in their order
    int device;                   // of the stream; -1: none yet
    int serving;                  // requests that have not ended
    wm_target_exposed_t *exposed; // our memory, by a link; NULL: it is not
    // The receive of requests, and its operation; NULL: it has ended.
    wm_op_t *server;
    MPI_Request asking;
    wm_target_request_t request;
    wm_serving_t *spare; // for the next request; NULL: none yet
    wm_target_rank_t ranks[];
};

// References; any thread. The last one frees the target.
void
wm_target_retain(wm_target_t *target);
void
wm_target_release(wm_target_t *target);

// Returns the tag of a message that belongs to a request.
int
wm_target_tag(const wm_target_t *target, uint32_t number,
              wm_target_part_t part);

// Returns true if nobody uses the memory of a message any more.
bool
wm_target_has_ended(const wm_op_t *message);

// Returns true if the order of two requests of an origin matters: both access
// the same bytes, as far as is known, and not only to read.
bool
wm_target_conflict(const wm_target_request_t *a, const wm_target_request_t *b);

// Finds the region that has the `nbytes` from `at` on; NULL: there is none.
const wm_target_memory_t *
wm_target_find(const wm_target_t *target, uint64_t at, uint64_t nbytes);

// Returns the device whose kernels update the memory; -1: the CPU does.
int
wm_target_device(const wm_pointer_t *memory);

// Makes the operation of a request that has not come yet, so that none that
// has come is without one; NULL: out of memory. wm_serving_begin() gives it to
// the engine; wm_serving_free() frees one that was not begun.
wm_serving_t *
wm_serving_new(wm_target_t *target);
void
wm_serving_begin(wm_serving_t *serving, wm_target_t *target,
                 const wm_target_request_t *request, int source);
void
wm_serving_free(wm_serving_t *serving);

// Returns true if a request that has begun accesses the memory.
bool
wm_serving_any_uses(const wm_target_t *target,
                    const wm_target_memory_t *memory);

// Begins to receive requests.
WM_MUST_CHECK int
wm_target_serve(wm_target_t *target, wm_error_t *err);

// Ends that receive: no request comes any more.
void
wm_target_serve_end(wm_target_t *target);

#endif

// SPDX-License-Identifier: BSD-3-Clause
// The state of a halo and of its sets of fields, for the files of this noun.
#ifndef WM_COMM_RMA_HALO_STATE_H
#define WM_COMM_RMA_HALO_STATE_H

#include <pthread.h>

#include "array/halo.h"
#include "array/reduce.h"
#include "comm/node/symm_memory.h"
#include "comm/rma/halo_exchange.h"
#include "comm/rma/waiter.h"
#include "comm/transfer/epochs.h"

#define WM_HALO_CALL "wm.Halo" // the call that errors name
#define WM_HALO_MEMORIES 48    // the last one would be larger than any GPU

// An array, as a halo knows it again.
typedef struct {
    char *data;
    uint64_t buffer_id;
    bool on_device;
    wm_dtype_t dtype;
    int ndim;
    int64_t shape[WM_HALO_DIMS + WM_HALO_INNER];
    int64_t strides[WM_HALO_DIMS + WM_HALO_INNER];
} wm_halo_key_t;

// A sum of all edges of a field in a phase.
typedef struct {
    wm_reduce_type_t type;
    size_t at, count; // offset in a half; elements
} wm_halo_sum_t;

typedef struct wm_halo_set wm_halo_set_t;
struct wm_halo_set {
    struct wm_halo_set *next;
    uint32_t id; // the same on all ranks
    bool kept;   // a plan, or a graph, has it: it stays until the halo ends
    // Some rank has made a newer one of the same fields, so that only plans
    // and graphs, which have it, mean this one.
    bool replaced;
    int op; // WM_HALO_EXCHANGE, or the operation of a reduction
    bool by_messages;
    size_t nbytes; // that this rank writes into ghosts, its own included
    size_t peer_bytes[WM_HALO_PEERS]; // of those, the neighbours'
    wm_block_t *table;                // the tasks, in lists
    uint32_t *begins;                 // of the lists, and the end
    wm_halo_params_t params;
    uint64_t task_lines; // most of a task of an exchange by lines
    // A reduction has more lists. The first one copies from the neighbours'
    // ghosts into the first half of the memory. Then each phase has a list of
    // copies from the edges into the second half, a sum for each field, and a
    // list of copies back.
    int phases;
    wm_halo_sum_t *sums;
    wm_block_t *memory;
    size_t half;
    uint32_t most; // blocks
    int mapped;
    wm_mapping_t **mappings;
    int count;
    wm_halo_key_t keys[];
};

struct wm_halo {
    wm_waiter_t waiter;
    wm_comm_t *comm;         // the waiter's
    uint32_t number;         // among those of the communicator
    _Atomic uint32_t *abort; // page-locked; not 0: kernels wait for nobody
    wm_halo_shape_t shape;
    bool told;                   // the cells of the block were
    int64_t block[WM_HALO_DIMS]; // its cells, ghosts included
    int64_t lines; // bytes of ghosts up to which lines serve; -1: as is best
    // The neighbours, each once, without this rank.
    int peer_count, peers[WM_HALO_PEERS];
    // Made with the first set in GPU memory, which tells the device.
    int device; // -1: none
    wm_symm_memory_t *counters;
    wm_epochs_t *epochs; // where processes take turns on a GPU; else NULL
    // Memory for lines, which sets share, as one exchange runs at a time. Each
    // is at least twice as large as the one before.
    int memories;
    wm_symm_memory_t *memory[WM_HALO_MEMORIES];
    wm_halo_set_t *sets; // the last one first
    uint32_t made;       // sets, ever
    CUstream own;        // for arrays without a stream; NULL: not made yet
    bool branched;       // it has been, and may be, in a capture
    // The work enqueued last, but in captures.
    _Atomic uint64_t tickets; // kernels so far
    uint64_t last;            // id of the stream; 0: not known
    pthread_mutex_t end_lock;
    CUevent ended;   // end_lock; NULL: none was needed
    CUstream asking; // where it is recorded; NULL: not made yet
    uint64_t noted;  // end_lock: the ticket that `ended` is recorded behind
    _Atomic uint64_t passed; // the last ticket that is known to have ended
    // The ticket that the list saw last, and the time when the list saw that
    // ticket first; -1: the wait was reported.
    uint64_t seen;
    int64_t since;
    pthread_mutex_t lock; // of calls
};

// Makes what the GPUs need. Collective; all raise if one fails. *unreached
// becomes true on all ranks if a rank does not reach another's memory.
WM_MUST_CHECK int
wm_halo_open_counters(wm_halo_t *halo, int device, bool *unreached,
                      wm_error_t *err);

// Adds a set that all ranks have made, and frees those that it replaces.
void
wm_halo_add_set(wm_halo_t *halo, wm_halo_set_t *set);

// The halo as a waiter.
extern const wm_waiter_class_t wm_halo_class;

// Makes our own stream, unless it is there.
WM_MUST_CHECK int
wm_halo_open_own(wm_halo_t *halo, wm_error_t *err);

// Waits on the host for the work that was enqueued last, but in captures.
void
wm_halo_wait(wm_halo_t *halo);

// Returns true if kernels write their tickets; else events tell their end.
bool
wm_halo_has_tickets(const wm_halo_t *halo);

// Returns the word in GPU memory that the tickets are written into.
const unsigned long long *
wm_halo_ticket_word(const wm_halo_t *halo);

// Makes a stream wait for the work that was enqueued last.
WM_MUST_CHECK int
wm_halo_await_ticket(wm_halo_t *halo, CUstream stream, wm_error_t *err);

// Returns true if the work that was enqueued last has ended, or the context is
// lost.
bool
wm_halo_has_ended(wm_halo_t *halo);

void
wm_halo_key_of(const wm_halo_field_t *field, wm_halo_key_t *key);

// Makes a set (wm_halo_run) in place of *set, which this rank has found, or
// NULL. Collective; a rank that has failed calls it, too.
WM_MUST_CHECK int
wm_halo_register(wm_halo_t *halo, const wm_halo_call_t *call, int code,
                 wm_halo_set_t **set, wm_error_t *err);

void
wm_halo_set_free(wm_halo_set_t *set);

#endif

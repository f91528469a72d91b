// SPDX-License-Identifier: BSD-3-Clause
// The layout of the shared segment of a process. node.h says how peers get to
// see a segment, and has the functions; most parts of a segment have owners of
// their own (slot.h, barrier.h, account.h, exchange_area.h).
#ifndef WM_COMM_NODE_SEGMENT_H
#define WM_COMM_NODE_SEGMENT_H

#include <stdatomic.h>

#include "comm/node/account.h"
#include "comm/node/barrier.h"
#include "comm/node/port_words.h"
#include "comm/node/rkey.h"
#include "comm/node/slot.h"

#define WM_SLOTS 2048
#define WM_NOTICES 1024
#define WM_STAGING_RINGS 4           // staging rings of a segment
#define WM_STAGING_RING_FRAGMENTS 4  // fragments of a staging ring
#define WM_FRAGMENT_BYTES (4u << 20) // largest fragment of a staging ring
#define WM_STAGING_RING_BYTES                                                 \
    ((size_t)WM_STAGING_RING_FRAGMENTS * WM_FRAGMENT_BYTES)
#define WM_PINNED_SYMM_COUNT 8 // after the staging rings
#define WM_PINNED_SYMM_BYTES ((size_t)16u << 20)

// How many of each kind a process has at most (segment_words.h). Each window
// may have epochs with 64 ranks of the host.
#define WM_SHARED_ARRAYS 1024
#define WM_WINDOW_WORDS 512
#define WM_EPOCH_WORDS (64 * WM_WINDOW_WORDS)

// Words for epochs with a neighbour (transfer/epochs.h), which sets them: not
// 0 when it has posted, or completed. Those of a rank's neighbours are side by
// side, as it reads them together.
typedef struct {
    _Atomic uint32_t post, completion;
} wm_epoch_words_t;

// Words of this rank's part of a window (rma/window_lock.h): a lock of readers
// and writers, who draw tickets, and the rank that updates elements that
// hardware does not update at once.
typedef struct {
    _Alignas(64) _Atomic uint32_t drawn, served;
    _Atomic uint32_t readers;
    _Atomic uint32_t updating; // 1 + its rank; 0: none
    _Atomic uint32_t left;     // raised when a window with them is left
    _Atomic uint32_t graphs;   // of this rank, that have calls of the window
} wm_window_words_t;

#define WM_ATTACHED 256

// GPU memory that this rank has attached to a window (rma/window_attach.h).
typedef struct {
    _Atomic uint32_t version; // odd while the others change
    int32_t words;            // the window's, 1 + their index; 0: none
    uint64_t nbytes;
    wm_rkey_t place;
} wm_attached_t;

typedef struct {
    uint64_t magic;
    uint8_t id[16];           // random, of the process
    _Atomic uint32_t leaving; // 1: it is in MPI_Finalize, and receives no more
    // The first bytes of the UUID of the GPU on which it last received a long
    // message; 0: none yet.
    _Atomic uint64_t takes_on;
    // Those of the GPU on which its kernels wait for others' (sharers.h); 0:
    // none yet, UINT64_MAX: several.
    _Atomic uint64_t waits_on;
    wm_account_t account;
    // Ids of freed buffers: peers close their mappings of these.
    _Alignas(64) _Atomic uint64_t notice_count;
    _Atomic uint64_t notices[WM_NOTICES];
    wm_slot_t slots[WM_SLOTS];
    wm_barrier_row_t barrier_rows[WM_BARRIER_ROWS];
    _Alignas(64) wm_epoch_words_t epoch_words[WM_EPOCH_WORDS];
    // How often this process has dropped the shared array that has the word
    // (rma/shared_list.h).
    _Atomic uint32_t shared_drops[WM_SHARED_ARRAYS];
    wm_window_words_t window_words[WM_WINDOW_WORDS];
    wm_port_words_t port_words[WM_PORTS];
    wm_attached_t attached[WM_ATTACHED];
    // Arrival words of bank 0 of each slot of this rank (barrier.h). They are
    // side by side, as a rank that reads one reads several.
    _Alignas(64) _Atomic uint32_t arrived[WM_BARRIER_ROWS];
} wm_segment_t;

#define WM_CONTROL_BYTES                                                      \
    ((sizeof(wm_segment_t) + 65535) / 65536 * (size_t)65536)
#define WM_EXCHANGE_AREAS_AT                                                  \
    (WM_CONTROL_BYTES + WM_STAGING_RINGS * WM_STAGING_RING_BYTES              \
     + WM_PINNED_SYMM_COUNT * WM_PINNED_SYMM_BYTES)
#define WM_SEGMENT_BYTES                                                      \
    (WM_EXCHANGE_AREAS_AT + WM_BARRIER_ROWS * sizeof(wm_exchange_area_t))

#endif

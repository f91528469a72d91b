// SPDX-License-Identifier: BSD-3-Clause
// The exchange area of a barrier slot (barrier.h): the data that its rank
// publishes in epochs, the decision log, and records of the calls that its
// streams were given.
#ifndef WM_COMM_NODE_EXCHANGE_AREA_H
#define WM_COMM_NODE_EXCHANGE_AREA_H

#include <stdatomic.h>
#include <stdint.h>

#define WM_BARRIER_ROWS 256 // slots of a process
#define WM_BARRIER_RANKS 64 // ranks of a barrier, at most
#define WM_BARRIER_BYTES 2560
#define WM_BARRIER_STEPS 8   // steps of an epoch, at most
#define WM_DECISION_LOG 1024 // nonblocking calls with an entry
#define WM_BARRIER_ASIDE 16  // banks of nonblocking calls
#define WM_BARRIER_BANKS (1 + WM_BARRIER_ASIDE)

#define WM_SIGNATURE_CALLS 1024 // last calls on streams with a signature
#define WM_SIGNATURE_PAIRS 32   // of these, calls in which counts vary

// A call on a stream: the hash of all arguments that ranks must give alike,
// and these arguments.
typedef struct {
    _Atomic uint64_t mark, block, asked;
} wm_signature_row_t;

// The exchange of two ranks: the hash of all exchanges so far, and the bytes
// of this call.
typedef struct {
    _Atomic uint64_t mark, nbytes;
} wm_signature_pair_t;

// The last calls that streams were given, the call that a stream is in, the
// first that has failed, and the number of captured ones (signature.h).
typedef struct {
    wm_signature_row_t calls[WM_SIGNATURE_CALLS];
    wm_signature_pair_t pairs[WM_SIGNATURE_PAIRS][2][WM_BARRIER_RANKS];
    _Atomic uint32_t last; // last call in which counts vary
    _Atomic uint64_t current, current_pairs[2][WM_BARRIER_RANKS];
    _Alignas(64) _Atomic uint64_t failure; // 0: none
    _Atomic uint32_t captures;
} wm_signature_area_t;

// The blocking calls that a rank has entered: their number, and the last two
// in which it has not declined, the later one first.
typedef struct {
    _Alignas(64) _Atomic uint32_t count;
    _Atomic uint32_t taken_part[2];
} wm_barrier_blocking_t;

// Hosts read and write this area; streams do not.
typedef struct {
    wm_barrier_blocking_t blocking;
    // Arrival words, by bank; that of bank 0 is in the segment.
    _Alignas(64) _Atomic uint32_t aside[WM_BARRIER_ASIDE];
    _Alignas(64) char published[WM_BARRIER_BANKS][2]
                               [WM_BARRIER_BYTES]; // of the last two epochs
    // The decision log; only that of rank 0 is used.
    _Alignas(64) _Atomic uint64_t decision_log[WM_DECISION_LOG];
    _Alignas(64) wm_signature_area_t signatures;
} wm_exchange_area_t;

#endif

// SPDX-License-Identifier: BSD-3-Clause
// Collectives whose payload goes from GPU to GPU: between ranks of one host
// who meet at gates (comm/node/gate.h) and map each other's memory. A rank
// says where its memory is with what the ranks agree on, then follows its
// plan, and at the end all know whether one has failed. GIL released by the
// caller, engine lock not held.
#ifndef WM_COMM_COLL_NATIVE_H
#define WM_COMM_COLL_NATIVE_H

#include <mpi.h>

#include "array/access.h"
#include "array/reduce.h"
#include "comm/coll/plan.h"
#include "comm/comm/comm.h"

// What a rank says beside what they agree on.
typedef struct {
    wm_place_t sends, receives;
    bool aliased;     // it receives where it sends from
    bool readable;    // `receives` can be mapped, or nothing is received
    bool unmapped;    // it failed to map a peer's memory
    uint8_t failed;   // by this step; 0: it has not. Written before it is told
    bool in_place;    // as it was asked
    uint8_t kind, op; // of what is reduced
    int32_t root;
    uint64_t block;       // bytes of a block, where all are alike
    int32_t code, detail; // of its error
    char text[160];
    union {
        // What it has for each rank, where that is not alike.
        wm_span_t spans[WM_GATE_RANKS];
        // What it sends, where that is short and on the host.
        _Alignas(16) char bytes[sizeof(wm_span_t) * WM_GATE_RANKS];
    };
} wm_said_t;

// What a rank gives to a call.
typedef struct {
    const wm_buffer_t *send, *receive; // NULL: none, or in place
    bool in_place; // what it sends is what it holds where it receives
    bool copied;   // of what is sent others read a copy, as it is written
} wm_given_t;

// One rank's side of a call.
typedef struct {
    wm_comm_t *comm;
    bool capable; // our memory can take part
    int device;
    wm_access_t from, into;
    char *source, *target; // what we send, what we receive into, or NULL
    wm_block_t *stand_in;  // of a source that cannot be exported
    wm_said_t said;
} wm_native_t;

// Whether all ranks are at gates, and memory is not known to be out of reach.
bool
wm_native_is_reached(const wm_comm_t *comm);

// Makes ready what is sent, which waits for its producer, and fills `said`.
// Where this rank cannot take part `capable` is false, which is no error.
WM_MUST_CHECK int
wm_native_begin(wm_native_t *native, wm_comm_t *comm, const wm_given_t *given,
                wm_error_t *err);

// After all have said that they are capable: what the plan is made of.
void
wm_native_facts(const wm_native_t *native, wm_facts_t *facts);

// `wrong` tells what this rank alone finds wrong, code 0: nothing. Follows the
// plan to its end, which is the same on all ranks: 0, 1 where a
// rank could not map another's memory, nothing was received and the host is to
// serve, or an error.
WM_MUST_CHECK int
wm_native_run(wm_native_t *native, const wm_plan_t *plan,
              wm_reduce_type_t type, wm_reduce_op_t op,
              const wm_error_t *wrong, wm_error_t *err);

void
wm_native_end(wm_native_t *native);

// The kernels' names of MPI's type and operation; false where they have none.
bool
wm_native_reduces(MPI_Datatype type, MPI_Op op, wm_reduce_type_t *kind,
                  wm_reduce_op_t *by);

#endif

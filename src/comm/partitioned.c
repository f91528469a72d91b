// SPDX-License-Identifier: BSD-3-Clause
#include "comm/partitioned.h"

#include <stdlib.h>

#include "comm/progress.h"

struct wm_counted {
    wm_counted_t *next;
    int rank, tag;
    bool receives;
    unsigned made;  // requests, ever
    uint32_t alive; // a bit for each number
};

static wm_counted_t *
find(wm_comm_t *comm, int rank, int tag, bool receives)
{
    wm_counted_t *counted = comm->partitioned;
    while (counted != NULL
           && (counted->rank != rank || counted->tag != tag
               || counted->receives != receives))
        counted = counted->next;
    return counted;
}

static int
take(wm_comm_t *comm, int rank, int tag, bool receives, wm_error_t *err)
{
    wm_counted_t *counted = find(comm, rank, tag, receives);
    if (counted == NULL) {
        counted = calloc(1, sizeof *counted);
        if (counted == NULL)
            return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
        *counted = (wm_counted_t){
            .next = comm->partitioned,
            .rank = rank,
            .tag = tag,
            .receives = receives,
        };
        comm->partitioned = counted;
    }
    unsigned place = counted->made % WM_PARTITIONED_AT_ONCE;
    if (counted->alive & 1u << place)
        return wm_error_set(err, WM_ERR_MPI, MPI_ERR_PENDING,
                            "%d partitioned requests with rank %d and tag %d "
                            "have not been freed: use other tags, or Free()",
                            WM_PARTITIONED_AT_ONCE, rank, tag);
    counted->alive |= 1u << place;
    ++counted->made;
    return (int)place;
}

int
wm_partitioned_number(wm_comm_t *comm, int rank, int tag, bool receives,
                      int *number, wm_error_t *err)
{
    // Above those that are drawn.
    int first = wm_comm_last_number(comm) + 1;
    int most = (comm->tag_limit - first + 1) / WM_PARTITIONED_AT_ONCE - 1;
    if (tag > most)
        return wm_error_set(err, WM_ERR_MPI, MPI_ERR_TAG,
                            "tag=%d is not a tag of a partitioned message: "
                            "use 0 to %d",
                            tag, most);
    wm_engine_lock();
    int place = take(comm, rank, tag, receives, err);
    wm_engine_unlock();
    *number = first + tag * WM_PARTITIONED_AT_ONCE + place;
    return place < 0 ? place : 0;
}

void
wm_partitioned_give_back(wm_comm_t *comm, int rank, int tag, bool receives,
                         int number)
{
    int first = wm_comm_last_number(comm) + 1;
    wm_engine_lock();
    wm_counted_t *counted = find(comm, rank, tag, receives);
    if (counted != NULL)
        counted->alive &= ~(1u << (number - first) % WM_PARTITIONED_AT_ONCE);
    wm_engine_unlock();
}

void
wm_partitioned_drop(wm_counted_t *counted)
{
    while (counted != NULL) {
        wm_counted_t *next = counted->next;
        free(counted);
        counted = next;
    }
}

static bool
step_gate(wm_op_t *gate)
{
    const wm_op_t *message = gate->parts_of[0];
    if (!atomic_load(&message->done))
        return false;
    gate->result = message->result;
    if (gate->receives && gate->result.source != MPI_PROC_NULL)
        gate->result.tag = gate->tag;
    gate->buffer.nbytes = message->buffer.nbytes; // for the status
    gate->error = message->error;
    wm_op_complete(gate);
    return true;
}

wm_op_t *
wm_gate_new(wm_comm_t *comm, int tag, bool receives)
{
    wm_buffer_t none = {.memory = {.device = -1}};
    wm_op_t *gate = wm_op_new(comm, &none);
    if (gate == NULL)
        return NULL;
    gate->tag = tag;
    gate->receives = receives;
    gate->step = step_gate;
    gate->header.magic = WM_HEADER_MAGIC; // it waits for no match of its own
    return gate;
}

void
wm_gate_open(wm_op_t *gate, wm_op_t *message)
{
    wm_engine_lock();
    gate->parts_of[0] = message;
    wm_op_retain(gate); // the engine's
    wm_engine_add_lock_held(gate);
    wm_engine_unlock();
    wm_engine_notify();
}

void
wm_gate_fail(wm_op_t *gate, const wm_error_t *err)
{
    wm_engine_lock();
    wm_op_fail(gate, err);
    wm_op_complete(gate);
    wm_engine_unlock();
}

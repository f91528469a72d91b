// SPDX-License-Identifier: BSD-3-Clause
#include "comm/message/partitioned.h"

#include <stdlib.h>

#include "comm/engine/engine.h"
#include "comm/engine/modules.h"
#include "cuda/lock.h"
#include "cuda/stream.h"

struct wm_counted {
    wm_counted_t *next; // next of the communicator
    int rank, tag, first;
    bool receives;
    unsigned made; // requests so far
    unsigned held; // by the communicator, and by requests
    bool alive[WM_PARTITIONED_NUMBERS];
};

// Protects all of them. The engine lock may be held while Python code runs.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static wm_counted_t *
partitioned_find(wm_comm_t *comm, int rank, int tag, bool receives)
{
    wm_counted_t *counted = comm->partitioned;
    while (counted != NULL
           && (counted->rank != rank || counted->tag != tag
               || counted->receives != receives))
        counted = counted->next;
    if (counted != NULL)
        return counted;
    counted = calloc(1, sizeof *counted);
    if (counted == NULL)
        return NULL;
    counted->next = comm->partitioned;
    counted->rank = rank;
    counted->tag = tag;
    counted->first = wm_comm_last_number(comm) + 1
                     + tag * WM_PARTITIONED_NUMBERS;
    counted->receives = receives;
    counted->held = 1;
    comm->partitioned = counted;
    return counted;
}

static int
take(wm_counted_t *counted, int *number, wm_error_t *err)
{
    unsigned place = counted->made % WM_PARTITIONED_NUMBERS;
    if (counted->alive[place])
        return wm_error_set(err, WM_ERR_MPI, MPI_ERR_PENDING,
                            "a partitioned request with rank %d and tag %d "
                            "has not been freed, and %d others were made "
                            "since: free the first, or use another tag",
                            counted->rank, counted->tag,
                            WM_PARTITIONED_NUMBERS - 1);
    counted->alive[place] = true;
    ++counted->made;
    ++counted->held;
    *number = counted->first + (int)place;
    return 0;
}

int
wm_partitioned_number(wm_comm_t *comm, int rank, int tag, bool receives,
                      int *number, wm_counted_t **counted, wm_error_t *err)
{
    // Numbers above those that are drawn (tag_limit of comm.h).
    int numbers = comm->tag_limit - 3 - wm_comm_last_number(comm);
    int most = numbers / WM_PARTITIONED_NUMBERS - 1;
    if (tag > most)
        return wm_error_set(err, WM_ERR_MPI, MPI_ERR_TAG,
                            "tag=%d is not a tag of a partitioned message: "
                            "use 0 to %d",
                            tag, most);
    wm_lock(&lock);
    *counted = partitioned_find(comm, rank, tag, receives);
    int code = *counted != NULL
                   ? take(*counted, number, err)
                   : wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    pthread_mutex_unlock(&lock);
    return code;
}

// Releases a reference. Lock held.
static void
partitioned_let_go(wm_counted_t *counted)
{
    if (--counted->held == 0)
        free(counted);
}

void
wm_partitioned_give_back(wm_counted_t *counted, int number)
{
    wm_lock(&lock);
    counted->alive[number - counted->first] = false;
    partitioned_let_go(counted);
    pthread_mutex_unlock(&lock);
}

// Releases the counts of a communicator that is freed.
static void
partitioned_drop(wm_comm_t *comm)
{
    wm_counted_t *counted = comm->partitioned;
    wm_lock(&lock);
    while (counted != NULL) {
        wm_counted_t *next = counted->next;
        partitioned_let_go(counted);
        counted = next;
    }
    pthread_mutex_unlock(&lock);
}

typedef struct {
    wm_op_t op;    // its part is the message, after that has begun
    int rank, tag; // of the caller
    bool receives;
} gate_t;

static bool
step_gate(wm_op_t *op)
{
    const gate_t *gate = (const gate_t *)op;
    const wm_op_t *message = op->parts_of[0];
    if (!atomic_load(&message->done))
        return false;
    op->result = message->result;
    if (gate->receives && op->result.source != MPI_PROC_NULL)
        op->result.tag = gate->tag;
    if (message->error.code != 0)
        wm_op_fail(op, &message->error);
    return true;
}

static bool
cancel_gate(wm_op_t *op)
{
    return ((const gate_t *)op)->receives; // it is too late to cancel
}

// Describes the gate while it has no part.
static void
about_gate(const wm_op_t *op, wm_about_t *about)
{
    const gate_t *gate = (const gate_t *)op;
    *about = (wm_about_t){
        .is_message = true,
        .receives = gate->receives,
        .matched = true, // nobody waits for a match
        .rank = gate->rank,
        .tag = gate->tag,
    };
}

static const wm_op_kind_t gate_kind = {
    .step = step_gate,
    .about = about_gate,
    .cancel = cancel_gate,
};

wm_op_t *
wm_gate_new(wm_comm_t *comm, int rank, int tag, bool receives)
{
    gate_t *gate = wm_op_new(&gate_kind, sizeof *gate, comm);
    if (gate == NULL)
        return NULL;
    gate->rank = rank;
    gate->tag = tag;
    gate->op.result.source = rank;
    gate->receives = receives;
    gate->op.result.received = receives;
    return &gate->op;
}

void
wm_gate_fail(wm_op_t *gate, const wm_error_t *err)
{
    wm_engine_lock();
    wm_op_fail(gate, err);
    wm_op_complete(gate);
    wm_engine_unlock();
}

int
wm_gate_begin(wm_op_t *gate, wm_comm_t *comm, const wm_envelope_t *envelope,
              wm_buffer_t *buffer, wm_error_t *err)
{
    wm_op_t *message;
    int code = (((gate_t *)gate)->receives ? wm_receive_begin : wm_send_begin)(
        comm->object_comm, buffer, envelope, &message, err);
    if (code < 0) {
        wm_gate_fail(gate, err);
        return code;
    }
    wm_engine_lock();
    gate->parts_of[0] = message;
    wm_engine_add_lock_held(gate);
    wm_engine_unlock();
    wm_engine_notify();
    return 0;
}

// Orders our own stream after the producer's, and makes it the producer.
static int
join(wm_partitions_t *partitions, wm_producer_t *producer, wm_error_t *err)
{
    int code = 0;
    if (!partitions->is_behind) {
        partitions->device = producer->device;
        code = wm_stream_acquire(partitions->device, &partitions->behind, err);
        partitions->is_behind = code == 0;
    }
    if (code == 0)
        code = wm_producer_before(producer, false, partitions->device,
                                  partitions->behind, err);
    producer->device = partitions->device;
    producer->stream = partitions->behind;
    return code;
}

static void
forget_lock_held(wm_partitions_t *partitions)
{
    if (partitions->is_behind)
        wm_stream_release(partitions->device, partitions->behind);
    partitions->is_behind = false;
}

static int
in_turn(wm_partitions_t *partitions, int marked, wm_op_t *gate,
        wm_comm_t *comm, const wm_envelope_t *envelope, wm_buffer_t *buffer,
        bool *begun, wm_error_t *err)
{
    bool last = partitions->missing == marked;
    bool streamed = buffer->producer.kind == WM_PRODUCER_STREAM
                    && wm_buffer_on_device(buffer);
    int code = 0;
    if (streamed && (partitions->is_behind || !last))
        code = join(partitions, &buffer->producer, err);
    else if (last && partitions->is_behind) // the last producer is no stream
        code = wm_stream_synchronize(partitions->device, partitions->behind,
                                     err);
    if (code == 0)
        partitions->missing -= marked;
    if (code < 0 || !last) {
        wm_buffer_release(buffer);
        return code;
    }
    *begun = true;
    code = wm_gate_begin(gate, comm, envelope, buffer, err);
    forget_lock_held(partitions);
    return code;
}

int
wm_partitions_ready(wm_partitions_t *partitions, int marked, wm_op_t *gate,
                    wm_comm_t *comm, const wm_envelope_t *envelope,
                    wm_buffer_t *buffer, bool *begun, wm_error_t *err)
{
    // Waits on the host before taking the lock, so that other threads need not
    // wait.
    int code = wm_await_producer(buffer, &buffer->producer, envelope, false,
                                 err);
    if (code < 0) {
        wm_buffer_release(buffer);
        return code;
    }
    wm_lock(&partitions->lock);
    code = in_turn(partitions, marked, gate, comm, envelope, buffer, begun,
                   err);
    pthread_mutex_unlock(&partitions->lock);
    return code;
}

void
wm_partitions_forget(wm_partitions_t *partitions)
{
    wm_lock(&partitions->lock);
    forget_lock_held(partitions);
    pthread_mutex_unlock(&partitions->lock);
}

const wm_module_t wm_partitioned_module = {.drop = partitioned_drop};

// SPDX-License-Identifier: BSD-3-Clause
#include "comm/op.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "comm/child.h"
#include "comm/eager.h"
#include "comm/mapping.h"
#include "comm/p2p.h"
#include "comm/pack.h"
#include "comm/progress.h"
#include "comm/staging.h"
#include "comm/stats.h"
#include "cuda/lock.h"
#include "cuda/word.h"

#define BORROW_BYTES 1048576

// Operations and packets live for microseconds: some are kept for the next.
// Under AddressSanitizer none is, so that it sees each one's end.
#ifdef __SANITIZE_ADDRESS__
#define SPARES 0
#else
#define SPARES 160
#endif

typedef struct {
    void *blocks[SPARES + 1];
    int count;
} spares_t;

static pthread_mutex_t spare_lock = PTHREAD_MUTEX_INITIALIZER;
static spares_t spare_ops, spare_packets;
static pthread_mutex_t note_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t notes; // taken so far

static void *
take(spares_t *spares, size_t size)
{
    void *block = NULL;
    wm_lock(&spare_lock);
    if (spares->count > 0)
        block = spares->blocks[--spares->count];
    pthread_mutex_unlock(&spare_lock);
    return block != NULL ? block : malloc(size);
}

static void
give(spares_t *spares, void *block)
{
    wm_lock(&spare_lock);
    if (spares->count < SPARES) {
        spares->blocks[spares->count++] = block;
        block = NULL;
    }
    pthread_mutex_unlock(&spare_lock);
    free(block);
}

#define PACKET_BYTES (WM_PACKET_BYTES + WM_STATUS_BYTES)

char *
wm_packet_take(void)
{
    return take(&spare_packets, PACKET_BYTES);
}

void
wm_packet_give(char *packet)
{
    give(&spare_packets, packet);
}

int
wm_op_packet(wm_op_t *op, bool pinned, wm_error_t *err)
{
    int code = 0;
    if (pinned)
        code = wm_pinned_alloc(PACKET_BYTES, (void **)&op->packet, err);
    else if ((op->packet = wm_packet_take()) == NULL)
        code = wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    op->packet_pinned = pinned && code == 0;
    return code;
}

wm_op_t *
wm_op_new(wm_comm_t *comm, wm_buffer_t *buffer)
{
    wm_op_t *op = take(&spare_ops, sizeof *op);
    if (op == NULL) {
        wm_buffer_release(buffer);
        return NULL;
    }
    // All but the text of the error, whose code says that there is none.
    memset(op, 0, offsetof(wm_op_t, error));
    op->error.code = 0;
    atomic_store(&op->references, 1);
    op->comm = comm;
    op->buffer = *buffer;
    op->slot_index = op->lane = op->user_device = -1;
    for (int i = 0; i < 3; ++i)
        op->parts[i] = MPI_REQUEST_NULL;
    op->request = MPI_REQUEST_NULL;
    return op;
}

void
wm_op_retain(wm_op_t *op)
{
    atomic_fetch_add(&op->references, 1);
}

void
wm_op_release(wm_op_t *op)
{
    if (atomic_fetch_sub(&op->references, 1) != 1 || wm_is_child())
        return;
    wm_pack_drop(op);
    wm_buffer_release(&op->buffer);
    for (int i = 0; i < 2; ++i)
        if (op->parts_of[i] != NULL)
            wm_op_release(op->parts_of[i]);
    free(op->staged);
    if (op->packet_pinned)
        wm_pinned_free(op->packet);
    else if (op->packet != NULL)
        wm_packet_give(op->packet);
    give(&spare_ops, op);
}

// Not a default stream for a receive: waiting for the legacy one takes half
// as long again, and any thread may come to pull, where the per-thread one is
// another.
bool
wm_op_borrows(const wm_op_t *op)
{
    const wm_producer_t *producer = &op->buffer.producer;
    if (op->settled || op->after[0].event != NULL
        || producer->stream == CU_STREAM_PER_THREAD
        || (op->receives && wm_stream_is_default(producer->stream)))
        return false;
    return producer->kind == WM_PRODUCER_STREAM && op->user_device < 0
           && producer->device == op->device
           && op->buffer.nbytes <= BORROW_BYTES
           && (op->blocking || !op->receives);
}

bool
wm_op_posts(const wm_op_t *op)
{
    return op->box != NULL && op->lane < 0 && !op->synchronous
           && op->user_device == op->device;
}

static void
take_note_of(wm_op_t *op, int at, int device, CUstream stream)
{
    CUevent event;
    uint64_t id = wm_stream_id(device, stream);
    if (wm_event_acquire(device, &event, NULL) < 0)
        return;
    // One lock, so that the numbers tell which came first on a stream.
    wm_lock(&note_lock);
    int code = wm_event_record(device, event, stream, NULL);
    op->after[at].number = ++notes;
    pthread_mutex_unlock(&note_lock);
    if (code < 0) {
        wm_event_release(device, event);
        return;
    }
    op->after[at].event = event;
    op->after[at].device = device;
    op->after[at].stream = id;
}

bool
wm_op_note_covers(const wm_op_t *op, const wm_op_t *other)
{
    return op->after[0].device == other->after[0].device
           && op->after[0].stream == other->after[0].stream
           && op->after[0].stream != 0 // else not known to be the same
           && op->after[0].number >= other->after[0].number;
}

void
wm_op_note_ended(wm_op_t *op)
{
    wm_event_release(op->after[0].device, op->after[0].event);
    op->after[0].event = NULL;
    op->buffer.producer.kind = WM_PRODUCER_NONE;
}

void
wm_op_take_note(wm_op_t *op)
{
    const wm_producer_t *producer = &op->buffer.producer;
    if (producer->kind == WM_PRODUCER_STREAM)
        take_note_of(op, 0, producer->device, producer->stream);
    if (op->user_device >= 0)
        take_note_of(op, 1, op->user_device, op->user_stream);
}

// What is enqueued next comes after whoever uses the buffer.
static int
order_stream(wm_op_t *op, wm_error_t *err)
{
    int code = 0;
    for (int i = 0; i < 2 && code == 0; ++i)
        if (op->after[i].event != NULL)
            code = wm_stream_wait_event(op->device, op->stream,
                                        op->after[i].event, err);
    if (code == 0 && op->user_device >= 0 && op->after[1].event == NULL
        && !op->settled)
        code = wm_stream_follow(op->device, op->stream, op->user_device,
                                op->user_stream, err);
    if (code == 0 && op->after[0].event == NULL && !op->settled)
        code = wm_producer_before(&op->buffer.producer, op->receives,
                                  op->device, op->stream, err);
    op->opened = code == 0;
    return code;
}

int
wm_op_open_stream(wm_op_t *op, wm_error_t *err)
{
    int code = 0;
    if (op->opened)
        return 0;
    if (wm_op_borrows(op)) {
        op->stream = op->buffer.producer.stream;
        op->opened = true;
        return 0;
    }
    if (wm_op_posts(op)) {
        op->stream = op->user_stream;
        code = wm_producer_before(&op->buffer.producer, false, op->device,
                                  op->stream, err);
        op->opened = code == 0;
        return code;
    }
    if (!op->pooled)
        code = wm_stream_acquire(op->device, &op->stream, err);
    if (code < 0)
        return code;
    op->pooled = true;
    return order_stream(op, err);
}

void
wm_op_drop_resources(wm_op_t *op)
{
    wm_pack_drop(op);
    if (op->side != NULL)
        wm_stream_release(op->device, op->side);
    op->side = NULL;
    if (op->pooled && op->idle)
        wm_stream_release_idle(op->device, op->stream);
    else if (op->pooled)
        wm_stream_release(op->device, op->stream);
    op->pooled = false;
    for (int i = 0; i < 2; ++i)
        if (op->after[i].event != NULL)
            wm_event_release(op->after[i].device, op->after[i].event);
    memset(op->after, 0, sizeof op->after);
    if (op->event != NULL)
        wm_event_release(op->user_device, op->event);
    op->event = NULL;
    if (op->mapping != NULL)
        wm_mapping_release(op->mapping);
    op->mapping = NULL;
    wm_eager_drop(op);
    if (op->handoff != NULL)
        wm_block_free(op->handoff, 0, NULL, NULL);
    op->handoff = NULL;
    bool quiet = op->slot != NULL
                 && wm_word_reached(&op->slot->ready,
                                    op->pieces.ready_base + op->pieces.next);
    if (op->box != NULL && (quiet || op->pieces.next == 0))
        wm_mailbox_release(op->box);
    op->box = NULL;
    if (op->staging != NULL)
        wm_pinned_free(op->staging);
    op->staging = NULL;
    free(op->scratch);
    op->scratch = NULL;
    wm_staging_drop(op);
    // A slot or mailbox that a stream of ours may still write is given up.
    if (op->slot_index >= 0 && quiet)
        wm_slot_release(op->slot_index);
    op->slot_index = -1;
}

int
wm_begin_op(wm_comm_t *comm, wm_buffer_t *buffer,
            const wm_envelope_t *envelope, bool receives, wm_op_t **op,
            wm_error_t *err)
{
    int code = wm_engine_check(err);
    if (code == 0)
        code = wm_comm_check(comm, receives ? "source" : "dest",
                             envelope->rank, envelope->tag, receives, err);
    if (code < 0) {
        wm_buffer_release(buffer);
        return code;
    }
    *op = wm_op_new(comm, buffer);
    if (*op == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    (*op)->receives = receives;
    (*op)->rank = envelope->rank;
    (*op)->tag = envelope->tag;
    (*op)->synchronous = envelope->synchronous;
    (*op)->blocking = envelope->blocking;
    (*op)->more = envelope->more;
    (*op)->paired = envelope->paired;
    (*op)->eager = envelope->eager;
    (*op)->user_stream = envelope->stream;
    (*op)->user_device = envelope->stream_device;
    // Managed memory that is on no GPU now is read by any.
    if (wm_buffer_on_device(buffer))
        (*op)->device = buffer->memory.device >= 0 ? buffer->memory.device : 0;
    (*op)->result.source = envelope->rank;
    (*op)->result.tag = envelope->tag;
    if (envelope->rank == MPI_PROC_NULL) {
        (*op)->result.tag = MPI_ANY_TAG;
        atomic_store(&(*op)->done, WM_DONE_TOLD);
    }
    else if (envelope->rank >= 0)
        (*op)->peer = comm->peers[envelope->rank];
    return 0;
}

// What cannot be done under the lock: waiting for producers that name no
// stream, and for host memory that a GPU still writes.
int
wm_begin_in_device(int (*begin)(wm_comm_t *, wm_buffer_t *,
                                const wm_envelope_t *, wm_op_t **,
                                wm_error_t *),
                   wm_comm_t *comm, wm_buffer_t *buffer,
                   const wm_envelope_t *envelope, wm_op_t **op,
                   wm_error_t *err)
{
    bool device = wm_buffer_on_device(buffer); // which it takes over
    if (device)
        wm_device_stay();
    int code = begin(comm, buffer, envelope, op, err);
    if (device)
        wm_device_go();
    return code;
}

int
wm_settle_producer(wm_buffer_t *buffer, const wm_envelope_t *envelope,
                   bool to_write, wm_error_t *err)
{
    wm_producer_t *producer = &buffer->producer;
    int code = 0;
    if (envelope->stream_device >= 0)
        code = wm_stream_refuse_capture(envelope->stream_device,
                                        envelope->stream, "the stream", err);
    if (code == 0 && producer->kind == WM_PRODUCER_STREAM
        && wm_buffer_on_device(buffer))
        code = wm_stream_refuse_capture(producer->device, producer->stream,
                                        "the stream of the array", err);
    if (code == 0 && envelope->stream_device >= 0
        && !wm_buffer_on_device(buffer))
        code = wm_stream_synchronize(envelope->stream_device, envelope->stream,
                                     err);
    if (code < 0)
        return code;
    if (envelope->stream_device >= 0 && producer->kind == WM_PRODUCER_DEVICE)
        producer->kind = producer->order == NULL
                             ? WM_PRODUCER_NONE // the stream was declared
                             : WM_PRODUCER_ORDER;
    bool unnamed = producer->kind == WM_PRODUCER_DEVICE;
    if (producer->kind == WM_PRODUCER_NONE
        || (!unnamed && wm_buffer_on_device(buffer)))
        return 0;
    wm_stat_add(WM_STAT_device_synchronizations, unnamed);
    code = wm_producer_wait(producer, to_write, err);
    producer->kind = WM_PRODUCER_NONE;
    return code;
}

static bool
step_request(wm_op_t *op)
{
    wm_error_t err;
    int flag = 0;
    if (wm_mpi_check(MPI_Test(&op->parts[0], &flag, MPI_STATUS_IGNORE),
                     "MPI_Test", &err)
        < 0)
        wm_op_fail(op, &err);
    return flag || op->error.code != 0;
}

wm_op_t *
wm_op_of_request(wm_comm_t *comm, MPI_Request request)
{
    wm_buffer_t none = {.memory = {.device = -1}};
    wm_op_t *op = wm_op_new(comm, &none);
    if (op == NULL)
        return NULL;
    op->step = step_request;
    op->parts[0] = request;
    wm_op_retain(op); // the engine's
    wm_engine_add_lock_held(op);
    return op;
}

// Not by MPI_Request_free: an Open MPI that ends it on another thread at that
// moment may use it for the next message first.
void
wm_op_leave(wm_comm_t *comm, MPI_Request *request)
{
    int flag = 0;
    if (MPI_Test(request, &flag, MPI_STATUS_IGNORE) != MPI_SUCCESS || flag)
        return;
    wm_op_t *op = wm_op_of_request(comm, *request);
    if (op != NULL)
        wm_op_release(op); // it ends by itself
    else
        MPI_Request_free(request);
    wm_engine_notify();
    *request = MPI_REQUEST_NULL;
}

static bool
step_pair(wm_op_t *op)
{
    wm_op_t *receiving = op->parts_of[0], *sending = op->parts_of[1];
    if (!atomic_load(&receiving->done) || !atomic_load(&sending->done))
        return false;
    op->result = receiving->result;
    op->buffer.nbytes = receiving->buffer.nbytes; // for the status
    op->error = receiving->error.code != 0 ? receiving->error : sending->error;
    return true;
}

wm_op_t *
wm_pair_begin(wm_op_t *receiving, wm_op_t *sending)
{
    wm_buffer_t none = {.memory = {.device = -1}};
    wm_op_t *op = wm_op_new(receiving->comm, &none);
    if (op == NULL) {
        wm_op_release(receiving);
        wm_op_release(sending);
        return NULL;
    }
    op->receives = true;
    op->step = step_pair;
    op->header.magic = WM_HEADER_MAGIC; // it waits for no match of its own
    op->parts_of[0] = receiving;
    op->parts_of[1] = sending;
    wm_engine_lock();
    wm_op_retain(op); // the engine's
    wm_engine_add_lock_held(op);
    wm_engine_unlock();
    return op;
}

// Waits in the driver for the copy that the engine has submitted.
static void
synchronize(wm_op_t *op)
{
    wm_error_t err;
    atomic_store(&op->news, 0);
    op->sync_code = wm_stream_synchronize(op->device, op->stream, &err);
    if (op->sync_code < 0)
        wm_op_fail(op, &err);
    atomic_store(&op->synchronized, true);
}

int
wm_op_wait(wm_op_t *op, bool (*interrupted)(wm_op_t *op), wm_error_t *err)
{
    bool told = true;
    if (wm_child_refuse(err) < 0)
        return WM_ERR_STATE;
    while (!atomic_load(&op->done) && told) {
        told = wm_engine_wait(&op->news, interrupted, op);
        if (told && !atomic_load(&op->done))
            synchronize(op);
    }
    if (!told && wm_engine_check(err) < 0)
        return WM_ERR_STATE;
    if (!told) {
        // A receive is taken back and loses no message; what is being sent,
        // or can be waited for again, goes on.
        if (op->blocking && wm_op_cancel(op))
            (void)!wm_op_wait(op, NULL, NULL);
        else
            wm_engine_notify();
        return wm_error_set(err, WM_ERR_PYTHON, 0, "interrupted");
    }
    // It may have been told its end before it leaves the engine.
    if (op->error.code != 0 || op->user_device >= 0)
        wm_engine_notify();
    if (op->error.code != 0 && err != NULL)
        *err = op->error;
    return op->error.code;
}

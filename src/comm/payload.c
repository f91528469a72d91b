// SPDX-License-Identifier: BSD-3-Clause
// Payloads that MPI carries on the data communicator: chunks under one tag,
// two of them under way. Host memory is given to MPI as it is, and so is
// device memory to a CUDA-aware one, once those who use it have ended; else
// it goes through two page-locked chunks, so that the copy of one overlaps the
// flight of the other. An empty chunk says that the sender failed.
#include "comm/payload.h"

#include <stdlib.h>

#include "comm/pieces.h"
#include "comm/stats.h"
#include "comm/transport.h"

static uint32_t
chunk_count(const wm_op_t *op)
{
    return (uint32_t)((op->header.nbytes + op->header.chunk - 1)
                      / op->header.chunk);
}

static size_t
chunk_length(const wm_op_t *op, uint32_t index)
{
    uint64_t left = op->header.nbytes - (uint64_t)index * op->header.chunk;
    return left < op->header.chunk ? left : op->header.chunk;
}

// A device's end stages two chunks, so none is larger than need be.
uint32_t
wm_payload_chunk(const wm_op_t *op)
{
    size_t nbytes = op->header.nbytes, most = WM_CHUNK_BYTES;
    if (op->carried)
        most = WM_CARRIED_BYTES;
    else if (wm_buffer_on_device(&op->buffer) && nbytes / 4 < most)
        most = nbytes / 4 > 65536 ? nbytes / 4 : 65536;
    return (uint32_t)(nbytes < most ? nbytes : most);
}

static char *
chunk_stage(const wm_op_t *op, uint32_t index)
{
    return op->staging + (size_t)(index % 2) * op->header.chunk;
}

// Device memory: two chunks of staging, a stream behind the producer.
static int
prepare(wm_op_t *op, wm_error_t *err)
{
    int code = wm_pinned_alloc(2 * (size_t)op->header.chunk,
                               (void **)&op->staging, err);
    return code < 0 ? code : wm_op_open_stream(op, err);
}

// Whether device memory is staged here.
static bool
is_staged(const wm_op_t *op)
{
    return wm_buffer_on_device(&op->buffer) && !op->carried;
}

// MPI looks at no stream: 1 once nobody uses the memory that it is to reach.
static int
wait_for_users(wm_op_t *op, wm_error_t *err)
{
    if (!op->carried || op->reachable)
        return 1;
    int code = wm_op_open_stream(op, err);
    if (code == 0)
        code = wm_stream_idle(op->device, op->stream, &op->reachable, err);
    op->idle = op->reachable;
    return code < 0 ? code : op->reachable;
}

// What MPI does with device memory it does in the current context. After an
// error it must do without.
static int
enter(const wm_op_t *op, wm_scope_t *scope, wm_error_t *err)
{
    if (op->carried && op->error.code == 0)
        return wm_device_enter(op->device, scope, err);
    scope->stayed = true; // nothing to leave
    return 0;
}

static int
test_part(wm_op_t *op, uint32_t chunk, bool *ended, int *count,
          wm_error_t *err)
{
    MPI_Status status;
    wm_scope_t scope;
    int flag = 0;
    int code = enter(op, &scope, err);
    if (code < 0)
        return code;
    code = wm_mpi_check(MPI_Test(&op->parts[1 + chunk % 2], &flag, &status),
                        "MPI_Test", err);
    wm_device_leave(&scope);
    *ended = flag != 0;
    if (code == 0 && flag && count != NULL)
        MPI_Get_count(&status, MPI_BYTE, count);
    return code;
}

static int
send_chunk(wm_op_t *op, const char *from, uint32_t at, wm_error_t *err)
{
    wm_scope_t scope;
    int code = enter(op, &scope, err);
    if (code < 0)
        return code;
    code = wm_mpi_check(MPI_Isend(from, (int)chunk_length(op, at), MPI_BYTE,
                                  op->rank, (int)op->header.seq,
                                  op->comm->data, &op->parts[1 + at % 2]),
                        "MPI_Isend", err);
    wm_device_leave(&scope);
    return code;
}

static int
receive_chunk(wm_op_t *op, char *into, uint32_t at, wm_error_t *err)
{
    wm_scope_t scope;
    int code = enter(op, &scope, err);
    if (code < 0)
        return code;
    code = wm_mpi_check(MPI_Irecv(into, (int)chunk_length(op, at), MPI_BYTE,
                                  op->result.source, (int)op->header.seq,
                                  op->comm->data, &op->parts[1 + at % 2]),
                        "MPI_Irecv", err);
    wm_device_leave(&scope);
    return code;
}

static int
copy_out(wm_op_t *op, uint32_t at, wm_error_t *err)
{
    char *into = chunk_stage(op, at);
    if (op->box != NULL) { // of one chunk
        int code = wm_pieces_take_back(op, into, op->pieces.ready_base + 1,
                                       err);
        op->pieces.next = code == 0;
        return code;
    }
    return wm_memory_copy(op->device, into,
                          op->buffer.data + (size_t)at * op->header.chunk,
                          chunk_length(op, at), op->stream, err);
}

// chunks[0] counts those copied out of the device, offset those given to MPI
// (in chunks), chunks[1] those that MPI is done with.
int
wm_payload_send(wm_op_t *op, wm_error_t *err)
{
    uint32_t total = chunk_count(op);
    bool device = is_staged(op);
    int code = wait_for_users(op, err);
    if (code <= 0)
        return code;
    if (device && op->staging == NULL && (code = prepare(op, err)) < 0)
        return code;
    bool ended = true;
    while (op->chunks[1] < op->offset && ended) {
        if ((code = test_part(op, op->chunks[1], &ended, NULL, err)) < 0)
            return code;
        op->chunks[1] += ended;
    }
    if (op->chunks[1] == total)
        return 1;
    if (device && op->chunks[0] == op->offset && op->chunks[0] < total
        && op->chunks[0] < op->chunks[1] + 2) {
        uint32_t at = op->chunks[0];
        if ((code = copy_out(op, at, err)) < 0)
            return code;
        wm_stat_add(WM_STAT_staged_bytes, (int64_t)chunk_length(op, at));
        ++op->chunks[0];
    }
    if (device) {
        bool idle = false;
        if (op->chunks[0] > op->offset)
            code = wm_stream_idle(op->device, op->stream, &idle, err);
        else
            code = 0;
        if (code < 0 || !idle)
            return code;
    }
    while (op->offset < total && op->offset < op->chunks[1] + 2u
           && (!device || op->offset < op->chunks[0])) {
        uint32_t at = (uint32_t)op->offset;
        char *from = device ? chunk_stage(op, at)
                            : op->buffer.data + (size_t)at * op->header.chunk;
        if ((code = send_chunk(op, from, at, err)) < 0)
            return code;
        ++op->offset;
    }
    return 0;
}

void
wm_payload_abandon(wm_op_t *op)
{
    MPI_Request empty;
    if (MPI_Isend(NULL, 0, MPI_BYTE, op->rank, (int)op->header.seq,
                  op->comm->data, &empty)
        == MPI_SUCCESS)
        wm_op_leave(op->comm, &empty);
}

// The sender failed: what else was posted for it never comes.
static void
end_abandoned(wm_op_t *op, uint32_t total)
{
    for (int i = 1; i < 3; ++i)
        if (op->parts[i] != MPI_REQUEST_NULL) {
            MPI_Cancel(&op->parts[i]);
            MPI_Wait(&op->parts[i], MPI_STATUS_IGNORE);
        }
    op->chunks[1] = total;
    op->offset = total;
}

// Where chunk `index` is received: in place when it fits whole into host
// memory, else into staging.
static char *
landing(const wm_op_t *op, uint32_t index)
{
    if (op->scratch != NULL)
        return op->scratch + (size_t)(index % 2) * op->header.chunk;
    if (op->staging != NULL)
        return chunk_stage(op, index);
    return op->buffer.data + (size_t)index * op->header.chunk;
}

// offset counts the chunks posted, chunks[1] those that MPI is done with.
// After an error the rest is taken and thrown away, so that the sender ends.
int
wm_payload_receive(wm_op_t *op, wm_error_t *err)
{
    uint32_t total = chunk_count(op);
    bool device = is_staged(op);
    bool discard = op->error.code != 0;
    int code = discard ? 1 : wait_for_users(op, err);
    if (code <= 0)
        return code;
    if (device && !discard && op->staging == NULL
        && (code = prepare(op, err)) < 0)
        return code;
    if (discard && op->scratch == NULL
        && (op->scratch = malloc(2 * (size_t)op->header.chunk)) == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    bool ended = true;
    while (op->chunks[1] < op->offset && ended) {
        uint32_t at = op->chunks[1];
        int count = 0;
        if ((code = test_part(op, at, &ended, &count, err)) < 0)
            return code;
        if (!ended)
            break;
        if (count == 0) {
            end_abandoned(op, total);
            return wm_error_set(err, WM_ERR_CUDA, 0,
                                "the sender, rank %d, failed: its GPU could "
                                "not deliver the message",
                                op->result.source);
        }
        ++op->chunks[1];
        if (!device || discard)
            continue;
        code = wm_memory_copy(
            op->device, op->buffer.data + (size_t)at * op->header.chunk,
            chunk_stage(op, at), chunk_length(op, at), op->stream, err);
        if (code < 0)
            return code;
    }
    bool idle = true;
    if (device && op->chunks[1] > 0 && !discard
        && (op->chunks[1] == total || op->offset < op->chunks[1] + 2u)) {
        // The stage of the next chunk may still be copied from.
        code = wm_stream_idle(op->device, op->stream, &idle, err);
        if (code < 0)
            return code;
    }
    if (!idle)
        return 0;
    if (op->chunks[1] == total)
        return 1;
    while (op->offset < total && op->offset < op->chunks[1] + 2u) {
        uint32_t at = (uint32_t)op->offset;
        if ((code = receive_chunk(op, landing(op, at), at, err)) < 0)
            return code;
        ++op->offset;
    }
    return 0;
}

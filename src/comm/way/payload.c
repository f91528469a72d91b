// SPDX-License-Identifier: BSD-3-Clause
// Payloads that MPI carries on the data communicator: chunks under one tag,
// two of them under way. Host memory is given to MPI as it is, and so is
// device memory to a CUDA-aware one, once those who use it have ended; else
// it goes through two page-locked chunks, so that the copy of one overlaps the
// flight of the other. An empty chunk says that the sender failed.
#include "comm/way/payload.h"

#include <stdlib.h>

#include "comm/engine/posted.h"
#include "comm/engine/stats.h"
#include "comm/way/pieces.h"
#include "comm/way/transport.h"

static uint32_t
chunk_count(const wm_end_t *end)
{
    return (uint32_t)((end->header.nbytes + end->header.chunk - 1)
                      / end->header.chunk);
}

static size_t
chunk_length(const wm_end_t *end, uint32_t index)
{
    uint64_t left = end->header.nbytes - (uint64_t)index * end->header.chunk;
    return left < end->header.chunk ? left : end->header.chunk;
}

// A device's end stages two chunks, so none is larger than need be.
uint32_t
wm_payload_chunk(const wm_end_t *end)
{
    size_t nbytes = end->header.nbytes, most = WM_CHUNK_BYTES;
    if (end->carried)
        most = WM_CARRIED_BYTES;
    else if (wm_buffer_on_device(&end->buffer) && nbytes / 4 < most)
        most = nbytes / 4 > 65536 ? nbytes / 4 : 65536;
    return (uint32_t)(nbytes < most ? nbytes : most);
}

static char *
chunk_stage(const wm_end_t *end, uint32_t index)
{
    return end->staging + (size_t)(index % 2) * end->header.chunk;
}

// Device memory: two chunks of staging, a stream behind the producer.
static int
prepare(wm_end_t *end, wm_error_t *err)
{
    int code = wm_pinned_alloc(2 * (size_t)end->header.chunk,
                               (void **)&end->staging, err);
    return code < 0 ? code : wm_end_open_stream(end, err);
}

// Whether device memory is staged here.
static bool
is_staged(const wm_end_t *end)
{
    return wm_buffer_on_device(&end->buffer) && !end->carried;
}

// MPI looks at no stream: 1 once nobody uses the memory that it is to reach.
static int
wait_for_users(wm_end_t *end, wm_error_t *err)
{
    if (!end->carried || end->reachable)
        return 1;
    int code = wm_end_open_stream(end, err);
    if (code == 0)
        code = wm_stream_idle(end->access.device, end->access.stream,
                              &end->reachable, err);
    end->access.idle = end->reachable;
    return code < 0 ? code : end->reachable;
}

// What MPI does with device memory it does in the current context. After an
// error it must do without.
static int
enter(const wm_end_t *end, wm_scope_t *scope, wm_error_t *err)
{
    if (end->carried && end->op.error.code == 0)
        return wm_device_enter(end->access.device, scope, err);
    scope->stayed = true; // nothing to leave
    return 0;
}

static int
test_part(wm_end_t *end, uint32_t chunk, bool *ended, int *count,
          wm_error_t *err)
{
    MPI_Status status;
    wm_scope_t scope;
    int flag = 0;
    int code = enter(end, &scope, err);
    if (code < 0)
        return code;
    code = wm_mpi_check(MPI_Test(&end->flying[chunk % 2], &flag, &status),
                        "MPI_Test", err);
    wm_device_leave(&scope);
    *ended = flag != 0;
    if (code == 0 && flag && count != NULL)
        MPI_Get_count(&status, MPI_BYTE, count);
    return code;
}

static int
send_chunk(wm_end_t *end, const char *from, uint32_t at, wm_error_t *err)
{
    wm_scope_t scope;
    int code = enter(end, &scope, err);
    if (code < 0)
        return code;
    code = wm_mpi_check(MPI_Isend(from, (int)chunk_length(end, at), MPI_BYTE,
                                  end->rank, (int)end->header.seq,
                                  end->op.comm->data, &end->flying[at % 2]),
                        "MPI_Isend", err);
    wm_device_leave(&scope);
    return code;
}

static int
receive_chunk(wm_end_t *end, char *into, uint32_t at, wm_error_t *err)
{
    wm_scope_t scope;
    int code = enter(end, &scope, err);
    if (code < 0)
        return code;
    code = wm_mpi_check(MPI_Irecv(into, (int)chunk_length(end, at), MPI_BYTE,
                                  end->op.result.source, (int)end->header.seq,
                                  end->op.comm->data, &end->flying[at % 2]),
                        "MPI_Irecv", err);
    wm_device_leave(&scope);
    return code;
}

static int
copy_out(wm_end_t *end, uint32_t at, wm_error_t *err)
{
    char *into = chunk_stage(end, at);
    if (end->box != NULL) { // of one chunk
        int code = wm_pieces_take_back(end, into, end->pieces.ready_base + 1,
                                       err);
        end->pieces.next = code == 0;
        return code;
    }
    return wm_memory_copy(end->access.device, into,
                          end->buffer.data + (size_t)at * end->header.chunk,
                          chunk_length(end, at), end->access.stream, err);
}

// chunks[0] counts those copied out of the device, offset those given to MPI
// (in chunks), chunks[1] those that MPI is done with.
int
wm_payload_send(wm_end_t *end, wm_error_t *err)
{
    uint32_t total = chunk_count(end);
    bool device = is_staged(end);
    int code = wait_for_users(end, err);
    if (code <= 0)
        return code;
    if (device && end->staging == NULL && (code = prepare(end, err)) < 0)
        return code;
    bool ended = true;
    while (end->chunks[1] < end->offset && ended) {
        if ((code = test_part(end, end->chunks[1], &ended, NULL, err)) < 0)
            return code;
        end->chunks[1] += ended;
    }
    if (end->chunks[1] == total)
        return 1;
    if (device && end->chunks[0] == end->offset && end->chunks[0] < total
        && end->chunks[0] < end->chunks[1] + 2) {
        uint32_t at = end->chunks[0];
        if ((code = copy_out(end, at, err)) < 0)
            return code;
        wm_stat_add(WM_STAT_staged_bytes, (int64_t)chunk_length(end, at));
        ++end->chunks[0];
    }
    if (device) {
        bool idle = false;
        if (end->chunks[0] > end->offset)
            code = wm_stream_idle(end->access.device, end->access.stream,
                                  &idle, err);
        else
            code = 0;
        if (code < 0 || !idle)
            return code;
    }
    while (end->offset < total && end->offset < end->chunks[1] + 2u
           && (!device || end->offset < end->chunks[0])) {
        uint32_t at = (uint32_t)end->offset;
        char *from = device
                         ? chunk_stage(end, at)
                         : end->buffer.data + (size_t)at * end->header.chunk;
        if ((code = send_chunk(end, from, at, err)) < 0)
            return code;
        ++end->offset;
    }
    return 0;
}

void
wm_payload_abandon(wm_end_t *end)
{
    MPI_Request empty;
    if (MPI_Isend(NULL, 0, MPI_BYTE, end->rank, (int)end->header.seq,
                  end->op.comm->data, &empty)
        == MPI_SUCCESS)
        wm_posted_leave(end->op.comm, &empty);
}

// The sender failed: what else was posted for it never comes.
static void
end_abandoned(wm_end_t *end, uint32_t total)
{
    for (int i = 0; i < 2; ++i)
        if (end->flying[i] != MPI_REQUEST_NULL) {
            MPI_Cancel(&end->flying[i]);
            MPI_Wait(&end->flying[i], MPI_STATUS_IGNORE);
        }
    end->chunks[1] = total;
    end->offset = total;
}

// Where chunk `index` is received: in place when it fits whole into host
// memory, else into staging.
static char *
landing(const wm_end_t *end, uint32_t index)
{
    if (end->scratch != NULL)
        return end->scratch + (size_t)(index % 2) * end->header.chunk;
    if (end->staging != NULL)
        return chunk_stage(end, index);
    return end->buffer.data + (size_t)index * end->header.chunk;
}

// offset counts the chunks posted, chunks[1] those that MPI is done with.
// After an error the rest is taken and thrown away, so that the sender ends.
int
wm_payload_receive(wm_end_t *end, wm_error_t *err)
{
    uint32_t total = chunk_count(end);
    bool device = is_staged(end);
    bool discard = end->op.error.code != 0;
    int code = discard ? 1 : wait_for_users(end, err);
    if (code <= 0)
        return code;
    if (device && !discard && end->staging == NULL
        && (code = prepare(end, err)) < 0)
        return code;
    if (discard && end->scratch == NULL
        && (end->scratch = malloc(2 * (size_t)end->header.chunk)) == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    bool ended = true;
    while (end->chunks[1] < end->offset && ended) {
        uint32_t at = end->chunks[1];
        int count = 0;
        if ((code = test_part(end, at, &ended, &count, err)) < 0)
            return code;
        if (!ended)
            break;
        if (count == 0) {
            end_abandoned(end, total);
            return wm_error_set(err, WM_ERR_CUDA, 0,
                                "the sender, rank %d, failed: its GPU could "
                                "not deliver the message",
                                end->op.result.source);
        }
        ++end->chunks[1];
        if (!device || discard)
            continue;
        code = wm_memory_copy(end->access.device,
                              end->buffer.data
                                  + (size_t)at * end->header.chunk,
                              chunk_stage(end, at), chunk_length(end, at),
                              end->access.stream, err);
        if (code < 0)
            return code;
    }
    bool idle = true;
    if (device && end->chunks[1] > 0 && !discard
        && (end->chunks[1] == total || end->offset < end->chunks[1] + 2u)) {
        // The stage of the next chunk may still be copied from.
        code = wm_stream_idle(end->access.device, end->access.stream, &idle,
                              err);
        if (code < 0)
            return code;
    }
    if (!idle)
        return 0;
    if (end->chunks[1] == total)
        return 1;
    while (end->offset < total && end->offset < end->chunks[1] + 2u) {
        uint32_t at = (uint32_t)end->offset;
        if ((code = receive_chunk(end, landing(end, at), at, err)) < 0)
            return code;
        ++end->offset;
    }
    return 0;
}

// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll.h"

#include <stdlib.h>

#include "comm/element.h"
#include "comm/mapping.h"
#include "comm/p2p.h"
#include "comm/progress.h"
#include "comm/stats.h"

#define PIECE_BYTES ((size_t)16 << 20)

// Waits in the progress loop for a request that was begun with the result
// `begun`.
static int
wait_request(wm_comm_t *comm, int begun, MPI_Request *request, wm_error_t *err)
{
    int code = wm_mpi_check(begun, "collective", err);
    if (code < 0)
        return code;
    wm_engine_lock();
    wm_op_t *op = wm_op_of_request(comm, *request);
    wm_engine_unlock();
    if (op == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    code = wm_op_wait(op, NULL, err);
    wm_op_release(op);
    return code;
}

int
wm_coll_barrier(wm_comm_t *comm, wm_error_t *err)
{
    int freed, any = 0;
    MPI_Request request;
    wm_engine_lock();
    freed = wm_export_notify();
    wm_engine_unlock();
    int code = wait_request(comm,
                            MPI_Iallreduce(&freed, &any, 1, MPI_INT, MPI_MAX,
                                           comm->match, &request),
                            &request, err);
    if (code < 0)
        return code;
    wm_engine_lock();
    wm_mapping_heed_notices(); // or what could not be closed before
    wm_engine_unlock();
    if (!any)
        return 0;
    return wait_request(comm, MPI_Ibarrier(comm->match, &request), &request,
                        err);
}

// One end of a staged collective: a device buffer's stream and staging.
typedef struct {
    const wm_buffer_t *buffer;
    bool device;
    int ordinal;
    char *stage;
    CUstream stream;
    bool pooled;
} end_t;

static int
end_open(end_t *end, const wm_buffer_t *buffer, bool to_write, size_t piece,
         wm_error_t *err)
{
    *end = (end_t){.buffer = buffer, .device = wm_buffer_on_device(buffer)};
    if (!end->device || buffer->nbytes == 0)
        return buffer->producer.kind == WM_PRODUCER_ORDER
                   ? wm_order_wait(buffer->producer.order, to_write, err)
                   : 0;
    end->ordinal = buffer->memory.device >= 0 ? buffer->memory.device : 0;
    const wm_producer_t *producer = &buffer->producer;
    int code = 0;
    if (producer->kind == WM_PRODUCER_STREAM)
        code = wm_stream_refuse_capture(producer->device, producer->stream,
                                        "the stream of the array", err);
    if (code == 0)
        code = wm_pinned_alloc(piece, (void **)&end->stage, err);
    if (code == 0)
        code = wm_stream_acquire(end->ordinal, &end->stream, err);
    if (code < 0)
        return code;
    end->pooled = true;
    return wm_producer_before(&buffer->producer, to_write, end->ordinal,
                              end->stream, err);
}

static void
end_close(end_t *end)
{
    // After an error a copy may still be on its way to the staging, which is
    // given up rather than handed out again where that cannot be found out.
    bool quiet = !end->pooled;
    for (int tries = 0; tries < 2 && !quiet; ++tries)
        quiet = wm_stream_synchronize(end->ordinal, end->stream, NULL) == 0;
    if (end->pooled)
        wm_stream_release(end->ordinal, end->stream);
    if (end->stage != NULL && quiet)
        wm_pinned_free(end->stage);
}

// Where one rank failed, all raise: asked before anything is begun, and at the
// end where a rank stages, since one whose copy fails still takes part.
// `count`, `type`: what all must give the same of. `stages`: whether this rank
// does, and, afterwards, whether any does.
static int
agree(wm_comm_t *comm, int code, size_t count, int64_t type, bool *stages,
      wm_error_t *err)
{
    int64_t mine[6] = {code < 0 ? comm->rank + 1 : 0,
                       *stages,
                       (int64_t)count,
                       -(int64_t)count,
                       type,
                       -type};
    int64_t most[6] = {0};
    wm_error_t later;
    MPI_Request request;
    int agreed = wait_request(comm,
                              MPI_Iallreduce(mine, most, 6, MPI_INT64_T,
                                             MPI_MAX, comm->match, &request),
                              &request, code < 0 ? &later : err);
    *stages = most[1] != 0;
    if (code < 0 || agreed < 0)
        return code < 0 ? code : agreed;
    if (most[0] != 0)
        return wm_error_set(err, WM_ERR_CUDA, 0,
                            "rank %d failed in this collective: its error "
                            "tells why",
                            (int)most[0] - 1);
    if (most[4] != -most[5])
        return wm_error_set(err, WM_ERR_TYPE, 0,
                            "the ranks give different element types, %s and "
                            "%s among them, this one %s: all must give the "
                            "same",
                            wm_element_name(-most[5]),
                            wm_element_name(most[4]), wm_element_name(type));
    if (most[2] != -most[3])
        return wm_error_set(err, WM_ERR_MPI, MPI_ERR_TRUNCATE,
                            "the ranks give from %lld to %lld bytes or "
                            "elements, this one %zu: all must give the same",
                            (long long)-most[3], (long long)most[2], count);
    return 0;
}

static char *
end_pointer(const end_t *end, size_t at)
{
    return end->stage != NULL ? end->stage : end->buffer->data + at;
}

static int
end_copy(const end_t *end, size_t at, size_t length, bool to_host,
         wm_error_t *err)
{
    if (end->stage == NULL || length == 0)
        return 0;
    char *data = end->buffer->data + at;
    int code = wm_memory_copy(end->ordinal, to_host ? end->stage : data,
                              to_host ? data : end->stage, length, end->stream,
                              err);
    if (code == 0)
        code = wm_stream_synchronize(end->ordinal, end->stream, err);
    if (code == 0)
        wm_stat_add(WM_STAT_staged_bytes, (int64_t)length);
    return code;
}

static size_t
piece_of(size_t total)
{
    return total < PIECE_BYTES ? total : PIECE_BYTES;
}

void
wm_coll_refuse(wm_comm_t *comm)
{
    wm_error_t ignored;
    bool stages = false;
    (void)!agree(comm, WM_ERR_CUDA, 0, 0, &stages, &ignored);
}

static int
bcast_bytes(wm_comm_t *comm, const wm_buffer_t *buffer, int root,
            wm_error_t *err)
{
    end_t end;
    bool sends = comm->rank == root;
    size_t piece = piece_of(buffer->nbytes);
    int code = end_open(&end, buffer, !sends, piece, err);
    bool stages = end.device;
    code = agree(comm, code, buffer->nbytes, 0, &stages, err);
    bool joins = code == 0, begun = joins;
    for (size_t at = 0; joins && at < buffer->nbytes; at += piece) {
        size_t length = buffer->nbytes - at < piece ? buffer->nbytes - at
                                                    : piece;
        wm_error_t later;
        MPI_Request request;
        if (code == 0 && sends)
            code = end_copy(&end, at, length, true, err);
        int told = wait_request(comm,
                                MPI_Ibcast(end_pointer(&end, at), (int)length,
                                           MPI_BYTE, root, comm->match,
                                           &request),
                                &request, code < 0 ? &later : err);
        joins = told == 0;
        code = code < 0 ? code : told;
        if (code == 0 && !sends)
            code = end_copy(&end, at, length, false, err);
    }
    if (begun && stages)
        code = agree(comm, code, 0, 0, &stages, err);
    if (end.device)
        wm_stat_add(WM_STAT_staged_collectives, 1);
    end_close(&end);
    return code;
}

// Of host memory with gaps, through a copy without.
static int
bcast_packed(wm_comm_t *comm, const wm_buffer_t *buffer, int root,
             wm_error_t *err)
{
    const wm_pattern_t *pattern = buffer->pattern;
    bool sends = comm->rank == root;
    wm_buffer_t packed = {
        .data = malloc(buffer->nbytes),
        .nbytes = buffer->nbytes,
        .memory = {.kind = WM_MEMORY_HOST, .device = -1},
    };
    int code = packed.data == NULL
                   ? wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory")
                   : wm_producer_wait(&buffer->producer, !sends, err);
    if (code == 0 && sends)
        code = wm_pattern_pack(pattern, packed.data, packed.nbytes, NULL,
                               comm->data, err);
    if (code < 0)
        wm_coll_refuse(comm);
    else
        code = bcast_bytes(comm, &packed, root, err);
    if (code == 0 && !sends)
        code = wm_pattern_unpack(pattern, packed.data, packed.nbytes, NULL,
                                 comm->data, err);
    free(packed.data);
    return code;
}

int
wm_coll_bcast(wm_comm_t *comm, const wm_buffer_t *buffer, int root,
              wm_error_t *err)
{
    return buffer->pattern != NULL ? bcast_packed(comm, buffer, root, err)
                                   : bcast_bytes(comm, buffer, root, err);
}

// What MPI says of an operation is a bare name.
static int
explain(int code, MPI_Datatype type, wm_error_t *err)
{
    int class = MPI_SUCCESS;
    if (code == WM_ERR_MPI)
        MPI_Error_class(err->detail, &class);
    if (class == MPI_ERR_OP)
        wm_error_set(err, WM_ERR_MPI, err->detail,
                     "Allreduce: op: MPI does not compute this with elements "
                     "of this type (%s); use an op that it has for them, or "
                     "convert the elements",
                     wm_element_name(wm_element_number(type)));
    return code;
}

int
wm_coll_allreduce(wm_comm_t *comm, const wm_buffer_t *send,
                  const wm_buffer_t *receive, MPI_Datatype type, size_t size,
                  MPI_Op op, wm_error_t *err)
{
    end_t from = {0}, into;
    const end_t *source = send != NULL ? &from : &into;
    size_t total = receive->nbytes;
    size_t piece = total > 0 ? piece_of(total) / size * size : 0;
    piece = total > 0 && piece == 0 ? size : piece; // one large element
    int code = end_open(&into, receive, true, piece, err);
    if (send != NULL) {
        int opened = end_open(&from, send, false, piece,
                              code == 0 ? err : NULL);
        code = code < 0 ? code : opened;
    }
    bool stages = into.device || from.device;
    code = agree(comm, code, size > 0 ? total / size : 0,
                 wm_element_number(type), &stages, err);
    bool joins = code == 0, begun = joins;
    for (size_t at = 0; joins && at < total; at += piece) {
        size_t length = total - at < piece ? total - at : piece;
        char *output = end_pointer(&into, at);
        wm_error_t later;
        MPI_Request request;
        if (code == 0)
            code = end_copy(source, at, length, true, err);
        // In place on all ranks or on none, also where only some stage: an MPI
        // may choose another algorithm for it.
        int told = wait_request(
            comm,
            MPI_Iallreduce(
                send != NULL ? end_pointer(&from, at) : MPI_IN_PLACE, output,
                (int)(length / size), type, op, comm->match, &request),
            &request, code < 0 ? &later : err);
        joins = told == 0;
        code = code < 0 ? code : explain(told, type, err);
        if (code == 0)
            code = end_copy(&into, at, length, false, err);
    }
    if (begun && stages)
        code = agree(comm, code, 0, 0, &stages, err);
    if (into.device || from.device)
        wm_stat_add(WM_STAT_staged_collectives, 1);
    end_close(&from);
    end_close(&into);
    return code;
}

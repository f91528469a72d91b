// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/coll.h"

#include <stdlib.h>
#include <string.h>

#include "array/access.h"
#include "comm/coll/agreement.h"
#include "comm/coll/by_slabs.h"
#include "comm/coll/half.h"
#include "comm/coll/native_run.h"
#include "comm/coll/part.h"
#include "comm/coll/reducible.h"
#include "comm/engine/engine.h"
#include "comm/engine/posted.h"
#include "comm/engine/stats.h"
#include "comm/message/pattern.h"
#include "comm/node/mapping.h"
#include "comm/watch/wait.h"

static const wm_error_t nothing; // is wrong

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
    wm_op_t *op = wm_posted_begin(comm, *request);
    wm_engine_unlock();
    if (op == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    code = wm_op_wait(op, NULL, err);
    wm_op_release(op);
    return code;
}

// One end of a staged collective: a device buffer's stream and staging.
typedef struct {
    const wm_buffer_t *buffer;
    bool device;
    char *stage;
    wm_access_t access;
} end_t;

static int
end_open(end_t *end, const wm_buffer_t *buffer, bool to_write, size_t piece,
         wm_error_t *err)
{
    const wm_producer_t *producer = &buffer->producer;
    *end = (end_t){.buffer = buffer, .device = wm_buffer_on_device(buffer)};
    if (!end->device || buffer->nbytes == 0)
        return producer->kind == WM_PRODUCER_ORDER
                   ? wm_order_wait(producer->order, to_write, err)
                   : 0;
    wm_access_begin(&end->access, producer, to_write,
                    buffer->memory.device >= 0 ? buffer->memory.device : 0);
    int code = wm_producer_refuse_capture(producer, err);
    if (code == 0)
        code = wm_pinned_alloc(piece, (void **)&end->stage, err);
    return code < 0 ? code : wm_access_open(&end->access, err);
}

static void
end_close(end_t *end)
{
    // After an error a copy may still be on its way to the staging, which is
    // given up rather than handed out again where that cannot be found out.
    bool quiet = false;
    for (int tries = 0; tries < 2 && !quiet; ++tries)
        quiet = wm_access_synchronize(&end->access, NULL) == 0;
    wm_access_close(&end->access);
    if (end->stage != NULL && quiet)
        wm_pinned_free(end->stage);
}

int
wm_coll_barrier(wm_comm_t *comm, wm_error_t *err)
{
    wm_agreement_t agreement = {.call = WM_CALL_BARRIER}, last = agreement;
    wm_engine_lock();
    agreement.notices = wm_place_notify() != 0;
    wm_engine_unlock();
    int code = wm_agreement_make(comm, &agreement, err);
    if (code < 0)
        return code;
    wm_engine_lock();
    wm_mapping_heed_notices(); // or what could not be closed before
    wm_engine_unlock();
    return agreement.notices ? wm_agreement_make(comm, &last, err) : 0;
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
    const wm_access_t *access = &end->access;
    int code = wm_pattern_copy(end->buffer, at, length, end->stage, to_host,
                               access->device, access->stream, err);
    if (code == 0)
        code = wm_access_synchronize(access, err);
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
    wm_agreement_t agreement = {.code = WM_ERR_CUDA};
    (void)!wm_agreement_make(comm, &agreement, &ignored);
}

// A short one rides with the agreement.
static int
bcast_short(wm_comm_t *comm, const end_t *end, bool sends,
            wm_agreement_t *agreed, wm_error_t *err)
{
    wm_agree_t ride; // of which no more is sent than is used
    size_t nbytes = end->buffer->nbytes;
    memset(ride.values, 0, sizeof ride.values);
    ride.nbytes = 0;
    agreed->rides = &ride;
    if (agreed->code == 0 && sends)
        agreed->code = end_copy(end, 0, nbytes, true, err);
    if (agreed->code == 0 && sends && nbytes > 0) {
        ride.nbytes = nbytes;
        memcpy(ride.payload, end_pointer(end, 0), nbytes);
    }
    int code = wm_agreement_make(comm, agreed, err);
    if (code < 0 || sends || nbytes == 0)
        return code;
    if (ride.nbytes != nbytes)
        return wm_comm_damaged(comm, (int)agreed->detail, err);
    memcpy(end_pointer(end, 0), ride.payload, nbytes);
    return end_copy(end, 0, nbytes, false, err);
}

static int
bcast_long(wm_comm_t *comm, const end_t *end, int root, bool busy,
           size_t piece, wm_error_t *err)
{
    size_t nbytes = end->buffer->nbytes;
    bool joins = true, sends = comm->rank == root;
    int code = 0;
    for (size_t at = 0; joins && at < nbytes; at += piece) {
        size_t length = nbytes - at < piece ? nbytes - at : piece;
        wm_error_t later;
        MPI_Request request;
        if (code == 0 && sends)
            code = end_copy(end, at, length, true, err);
        char *data = end_pointer(end, at);
        wm_error_t *where = code < 0 ? &later : err;
        int told = busy ? wait_request(comm,
                                       MPI_Ibcast(data, (int)length, MPI_BYTE,
                                                  root, comm->match, &request),
                                       &request, where)
                        : wm_mpi_check(MPI_Bcast(data, (int)length, MPI_BYTE,
                                                 root, comm->match),
                                       "MPI_Bcast", where);
        joins = told == 0;
        code = code < 0 ? code : told;
        if (code == 0 && !sends)
            code = end_copy(end, at, length, false, err);
    }
    return code;
}

// One that rides with the agreement has come with that.
static bool
slabs_serve_bcast(const wm_comm_t *comm, const wm_coll_t *call, size_t nbytes)
{
    return nbytes > WM_AGREE_BYTES && wm_by_slabs_serves(comm, call);
}

// Through the host. Where others found only now that it serves, once more.
static int
bcast_staged(wm_comm_t *comm, const wm_coll_t *call, const wm_buffer_t *buffer,
             wm_error_t *err)
{
    end_t end;
    int root = call->root;
    bool sends = comm->rank == root;
    size_t nbytes = buffer->nbytes, piece = piece_of(nbytes);
    const wm_agreement_t asked = {
        .call = WM_CALL_BCAST,
        .detail = root,
        .count = nbytes,
        .code = end_open(&end, buffer, !sends, piece, err),
        .stages = end.device,
        .slabs = slabs_serve_bcast(comm, call, nbytes),
    };
    wm_agreement_t agreed;
    int code;
    do {
        agreed = asked;
        code = nbytes <= WM_AGREE_BYTES
                   ? bcast_short(comm, &end, sends, &agreed, err)
                   : wm_agreement_make(comm, &agreed, err);
    } while (agreed.begun && agreed.mixed && !agreed.slabs);
    if (agreed.begun && agreed.slabs) {
        end_close(&end);
        return wm_by_slabs_call(comm, call, &nothing, err);
    }
    if (agreed.begun && nbytes > WM_AGREE_BYTES)
        code = bcast_long(comm, &end, root, agreed.busy, piece, err);
    if (agreed.begun && agreed.stages) {
        wm_agreement_t last = {.code = code};
        code = wm_agreement_make(comm, &last, err);
    }
    if (end.device)
        wm_stat_add(WM_STAT_staged_collectives, 1);
    end_close(&end);
    return code;
}

// 1 where the host is to serve.
static int
bcast_native(wm_comm_t *comm, const wm_coll_t *call, wm_native_t *native,
             wm_agreement_t *agreed, wm_error_t *err)
{
    wm_plan_t plan;
    wm_facts_t facts = {
        .root = call->root,
        .nbytes = agreed->count,
        .element = 1,
    };
    int code = wm_agreement_make(comm, agreed, err);
    if (code < 0)
        return code;
    if (!agreed->stays)
        return agreed->slabs ? wm_by_slabs_call(comm, call, &nothing, err) : 1;
    wm_native_facts(native, &facts);
    wm_plan_bcast(&facts, &plan);
    return wm_native_run(native, &plan, WM_REDUCE_UINT8, WM_REDUCE_NO_OP,
                         &nothing, err);
}

static int
bcast_bytes(wm_comm_t *comm, const wm_buffer_t *buffer, int root,
            wm_error_t *err)
{
    wm_native_t native;
    bool sends = comm->rank == root;
    const wm_coll_t call = {
        .kind = WM_CALL_BCAST,
        .send = sends ? buffer : NULL,
        .receive = sends ? NULL : buffer,
        .root = root,
    };
    wm_given_t given = {.send = call.send, .receive = call.receive};
    wm_agreement_t agreed = {
        .call = WM_CALL_BCAST,
        .detail = root,
        .count = buffer->nbytes,
        .native = &native,
        .nbytes = WM_SAID_BYTES,
        .slabs = slabs_serve_bcast(comm, &call, buffer->nbytes),
        .code = wm_native_begin(&native, comm, &given, err),
    };
    int code = native.capable
                   ? bcast_native(comm, &call, &native, &agreed, err)
                   : 1;
    wm_native_end(&native);
    return code > 0 ? bcast_staged(comm, &call, buffer, err) : code;
}

// What only MPI can walk, or the host: all of it, into `packed` or out of it.
static int
pack(const wm_comm_t *comm, const wm_buffer_t *buffer, bool packs,
     char *packed, wm_error_t *err)
{
    const wm_pattern_t *pattern = buffer->pattern;
    size_t nbytes = buffer->nbytes;
    wm_access_t access;
    if (!wm_buffer_on_device(buffer))
        return packs ? wm_pattern_pack(pattern, packed, nbytes, NULL,
                                       comm->data, err)
                     : wm_pattern_unpack(pattern, packed, nbytes, NULL,
                                         comm->data, err);
    int device = buffer->memory.device >= 0 ? buffer->memory.device : 0;
    wm_access_begin(&access, &buffer->producer, !packs, device);
    int code = wm_producer_refuse_capture(&buffer->producer, err);
    if (code == 0)
        code = wm_access_open(&access, err);
    if (code == 0)
        code = packs ? wm_pattern_stage(pattern, device, access.stream, packed,
                                        nbytes, comm->data, err)
                     : wm_pattern_unstage(pattern, device, access.stream,
                                          packed, nbytes, comm->data, err);
    wm_access_close(&access);
    return code;
}

// Through a copy in host memory without gaps.
static int
bcast_packed(wm_comm_t *comm, const wm_buffer_t *buffer, int root,
             wm_error_t *err)
{
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
        code = pack(comm, buffer, true, packed.data, err);
    if (code < 0)
        wm_coll_refuse(comm);
    else
        code = bcast_bytes(comm, &packed, root, err);
    if (code == 0 && !sends)
        code = pack(comm, buffer, false, packed.data, err);
    free(packed.data);
    return code;
}

int
wm_coll_bcast(wm_comm_t *comm, const wm_buffer_t *buffer, int root,
              wm_error_t *err)
{
    bool walks = buffer->pattern != NULL
                 && (!wm_buffer_on_device(buffer)
                     || !wm_pattern_is_strided(buffer->pattern));
    return walks ? bcast_packed(comm, buffer, root, err)
                 : bcast_bytes(comm, buffer, root, err);
}

// What MPI says of these is a bare name.
static int
explain(int code, MPI_Datatype type, wm_error_t *err)
{
    int class = MPI_SUCCESS;
    if (code == WM_ERR_MPI)
        MPI_Error_class(err->detail, &class);
    if (class == MPI_ERR_BUFFER)
        wm_error_set(err, WM_ERR_MPI, err->detail,
                     "Allreduce: sendbuf and recvbuf are the same memory, or "
                     "overlap: give MPI.IN_PLACE as sendbuf, or a copy");
    if (class == MPI_ERR_OP)
        wm_error_set(err, WM_ERR_MPI, err->detail,
                     "Allreduce: op: MPI does not compute this with elements "
                     "of this type (%s); use an op that it has for them "
                     "(MPI.REPLACE and MPI.NO_OP are for windows), or convert "
                     "the elements",
                     wm_half_name(wm_half_number(type)));
    return code;
}

static wm_agreement_t
ask_allreduce(const wm_comm_t *comm, const wm_coll_t *asked)
{
    size_t nbytes = asked->receive->nbytes;
    return (wm_agreement_t){
        .call = WM_CALL_ALLREDUCE,
        .detail = wm_half_number(asked->type),
        .op = wm_reducible_op(asked->op),
        .count = asked->size > 0 ? nbytes / asked->size : 0,
        .slabs = wm_by_slabs_serves(comm, asked),
    };
}

// Which MPI steps over, and which stay as they are.
static bool
has_gaps(const wm_coll_t *asked)
{
    MPI_Count size = 0;
    MPI_Type_size_x(asked->type, &size);
    return (size_t)size != asked->size;
}

static bool
lie_over(const wm_buffer_t *send, const wm_buffer_t *receive)
{
    char *low, *high, *from, *behind;
    wm_buffer_bounds(send, &low, &high);
    wm_buffer_bounds(receive, &from, &behind);
    return low < behind && from < high;
}

bool
wm_coll_overlap(const wm_buffer_t *send, const wm_buffer_t *receive)
{
    return send != NULL && receive != NULL && wm_buffer_on_device(send)
           && lie_over(send, receive);
}

// Whether what is sent is told with the agreement, so that each rank computes
// it there.
static bool
rides(wm_comm_t *comm, const wm_coll_t *asked, wm_part_t *part,
      wm_agreement_t *agreed)
{
    if (comm->gates == NULL || !asked->on_host
        || lie_over(asked->send, asked->receive)
        || wm_part_open(part, comm, comm->gates, asked, NULL) < 0)
        return false;
    agreed->native = &part->native;
    return wm_part_ride(part, &agreed->nbytes);
}

static int
allreduce_staged(wm_comm_t *comm, const wm_coll_t *asked, wm_error_t *err)
{
    const wm_buffer_t *send = asked->send, *receive = asked->receive;
    end_t from = {0}, into;
    const end_t *source = send != NULL ? &from : &into;
    size_t total = receive->nbytes, size = asked->size;
    size_t piece = total > 0 ? piece_of(total) / size * size : 0;
    piece = total > 0 && piece == 0 ? size : piece; // one large element
    int code = end_open(&into, receive, true, piece, err);
    if (send != NULL) {
        int opened = end_open(&from, send, false, piece,
                              code == 0 ? err : NULL);
        code = code < 0 ? code : opened;
    }
    wm_agreement_t agreed;
    wm_part_t part;
    int opened = code;
    do { // where others found only now that the host serves, once more
        agreed = ask_allreduce(comm, asked);
        agreed.code = opened;
        agreed.stages = into.device || from.device;
        agreed.rides_all = rides(comm, asked, &part, &agreed);
        code = wm_agreement_make(comm, &agreed, err);
        if (agreed.begun && agreed.rides_all)
            return wm_part_take(&part, err);
    } while (agreed.begun && agreed.mixed && !agreed.slabs);
    if (agreed.begun && agreed.slabs) {
        end_close(&from);
        end_close(&into);
        return wm_by_slabs_call(comm, asked, &nothing, err);
    }
    MPI_Op op = wm_half_op(asked->type, asked->op);
    bool joins = agreed.begun;
    bool fills = send != NULL && into.device && has_gaps(asked);
    for (size_t at = 0; joins && at < total; at += piece) {
        size_t length = total - at < piece ? total - at : piece;
        char *output = end_pointer(&into, at);
        wm_error_t later;
        MPI_Request request;
        if (code == 0)
            code = end_copy(source, at, length, true, err);
        if (code == 0 && fills)
            code = end_copy(&into, at, length, true, err);
        // In place on all ranks or on none, also where only some stage: an MPI
        // may choose another algorithm for it.
        const void *input = send != NULL ? end_pointer(&from, at)
                                         : MPI_IN_PLACE;
        int elements = (int)(length / size);
        wm_error_t *where = code < 0 ? &later : err;
        int told = agreed.busy
                       ? wait_request(comm,
                                      MPI_Iallreduce(input, output, elements,
                                                     asked->type, op,
                                                     comm->match, &request),
                                      &request, where)
                       : wm_mpi_check(MPI_Allreduce(input, output, elements,
                                                    asked->type, op,
                                                    comm->match),
                                      "MPI_Allreduce", where);
        joins = told == 0;
        code = code < 0 ? code : explain(told, asked->type, err);
        if (code == 0)
            code = end_copy(&into, at, length, false, err);
    }
    if (agreed.begun && agreed.stages) {
        wm_agreement_t last = {.code = code};
        code = wm_agreement_make(comm, &last, err);
    }
    if (into.device || from.device)
        wm_stat_add(WM_STAT_staged_collectives, 1);
    end_close(&from);
    end_close(&into);
    return code;
}

// 1 where the host is to serve.
static int
allreduce_native(wm_comm_t *comm, const wm_coll_t *asked, wm_native_t *native,
                 wm_reduce_type_t type, wm_reduce_op_t op, int begun,
                 wm_error_t *err)
{
    wm_plan_t plan;
    wm_agreement_t agreed = ask_allreduce(comm, asked);
    agreed.code = begun;
    agreed.native = native;
    agreed.nbytes = WM_SAID_BYTES;
    int code = wm_agreement_make(comm, &agreed, err);
    if (code < 0)
        return code;
    if (!agreed.stays)
        return agreed.slabs ? wm_by_slabs_call(comm, asked, &nothing, err) : 1;
    wm_facts_t facts = {
        .nbytes = asked->receive->nbytes,
        .element = asked->size,
    };
    wm_native_facts(native, &facts);
    return wm_plan_allreduce(&facts, &plan)
               ? wm_native_run(native, &plan, type, op, &nothing, err)
               : 1;
}

static bool
is_plain(const wm_buffer_t *buffer)
{
    return !wm_buffer_on_device(buffer) && buffer->pattern == NULL
           && buffer->producer.kind == WM_PRODUCER_NONE;
}

int
wm_coll_allreduce(wm_comm_t *comm, const wm_buffer_t *send,
                  const wm_buffer_t *receive, MPI_Datatype type, size_t size,
                  MPI_Op op, wm_error_t *err)
{
    const wm_coll_t asked = {
        .kind = WM_CALL_ALLREDUCE,
        .on_host = send != NULL && is_plain(send) && is_plain(receive),
        .send = send,
        .receive = receive,
        .type = type,
        .size = size,
        .op = op,
    };
    wm_native_t native;
    wm_reduce_type_t kind;
    wm_reduce_op_t by;
    int code = 1;
    if (wm_buffer_on_device(receive)
        && wm_reducible(type, size, op, &kind, &by)) {
        // What is packed is read before it is written.
        bool in_place = send == NULL
                        || (send->data == receive->data
                            && send->pattern == NULL
                            && receive->pattern == NULL);
        wm_given_t given = {send, receive, .in_place = in_place};
        given.copied = !in_place && wm_coll_overlap(send, receive);
        int begun = wm_native_begin(&native, comm, &given, err);
        if (native.capable)
            code = allreduce_native(comm, &asked, &native, kind, by, begun,
                                    err);
        wm_native_end(&native);
    }
    return code > 0 ? allreduce_staged(comm, &asked, err) : code;
}

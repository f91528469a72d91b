// SPDX-License-Identifier: BSD-3-Clause
#include "comm/pack.h"

#include <stdlib.h>

#include "array/copy.h"
#include "array/mail.h"
#include "comm/pieces.h"
#include "comm/stats.h"
#include "comm/transport.h"

enum { UNPACK_NEW, UNPACK_READ, UNPACK_WRITTEN };

// Whether kernels pack it.
static bool
by_kernel(const wm_op_t *op)
{
    const wm_pattern_t *pattern = op->buffer.pattern;
    return pattern != NULL && op->buffer.nbytes > 0 && op->packed_host == NULL
           && wm_buffer_on_device(&op->buffer)
           && wm_pattern_is_strided(pattern);
}

static bool
by_host(const wm_op_t *op)
{
    return op->buffer.pattern != NULL && op->buffer.nbytes > 0
           && !by_kernel(op);
}

// What is received, where the message is matched.
static size_t
received_bytes(const wm_op_t *op)
{
    return op->header.nbytes < op->buffer.nbytes ? op->header.nbytes
                                                 : op->buffer.nbytes;
}

static int
stand_in_on_device(wm_op_t *op, size_t nbytes, wm_error_t *err)
{
    if (op->packed != NULL)
        return 0;
    int code = wm_block_alloc(op->device, nbytes, &op->packed, err);
    if (code < 0)
        return code;
    wm_block_describe(op->packed, &op->buffer.memory);
    op->buffer.data = wm_block_pointer(op->packed);
    return 0;
}

static int
stand_in_on_host(wm_op_t *op, size_t nbytes, wm_error_t *err)
{
    if (op->packed_host != NULL)
        return 0;
    op->packed_host = malloc(nbytes);
    if (op->packed_host == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0,
                            "out of host memory: %zu bytes to pack a message "
                            "into",
                            nbytes);
    op->buffer.memory = (wm_pointer_t){.kind = WM_MEMORY_HOST, .device = -1};
    op->buffer.data = op->packed_host;
    return 0;
}

// A page-locked copy of the memory that elements of a datatype lie in, behind
// whoever uses it.
static int
read_span(wm_op_t *op, wm_error_t *err)
{
    const wm_pattern_t *pattern = op->buffer.pattern;
    int code = wm_op_open_stream(op, err);
    if (code == 0)
        code = wm_pinned_alloc(pattern->span, (void **)&op->span, err);
    op->idle = false;
    return code < 0 ? code
                    : wm_memory_copy(op->device, op->span,
                                     pattern->data + pattern->low,
                                     pattern->span, op->stream, err);
}

// Waits: what MPI packs is a host's message from then on.
static int
stage(wm_op_t *op, wm_error_t *err)
{
    int device = op->device;
    int code = wm_op_open_stream(op, err);
    if (code == 0)
        code = stand_in_on_host(op, op->buffer.nbytes, err);
    if (code == 0)
        code = wm_pattern_stage(op->buffer.pattern, device, op->stream,
                                op->packed_host, op->buffer.nbytes,
                                op->comm->data, err);
    op->idle = code == 0;
    op->opened = op->pooled; // a borrowed stream may be gone later
    op->buffer.producer.kind = WM_PRODUCER_NONE;
    return code;
}

int
wm_pack_prepare(wm_op_t *op, wm_error_t *err)
{
    if (by_kernel(op))
        return wm_copy_prepare(op->device, err);
    if (!by_host(op))
        return 0;
    if (wm_buffer_on_device(&op->buffer))
        return stage(op, err);
    int code = stand_in_on_host(op, op->buffer.nbytes, err);
    return code < 0
               ? code
               : wm_pattern_pack(op->buffer.pattern, op->packed_host,
                                 op->buffer.nbytes, NULL, op->comm->data, err);
}

const wm_strided_t *
wm_pack_by_mail(const wm_op_t *op)
{
    bool mailed = by_kernel(op) && op->packed == NULL
                  && wm_mail_takes(&op->buffer.pattern->strided);
    return mailed ? &op->buffer.pattern->strided : NULL;
}

int
wm_pack_reserve(wm_op_t *op, wm_error_t *err)
{
    return by_kernel(op) ? stand_in_on_device(op, op->buffer.nbytes, err) : 0;
}

// On the user's stream it is behind all that writes the buffer, and what comes
// next there may change it.
static int
pack_on_stream(wm_op_t *op, wm_error_t *err)
{
    int device = op->user_device;
    CUstream stream = op->user_stream;
    int code = wm_producer_before(&op->buffer.producer, false, device, stream,
                                  err);
    // The stream may be gone when the block is.
    if (code == 0)
        code = wm_event_acquire(device, &op->event, err);
    if (code == 0)
        code = wm_strided_pack(&op->buffer.pattern->strided, op->buffer.data,
                               op->buffer.nbytes, device, stream, err);
    if (code == 0)
        code = wm_event_record(device, op->event, stream, err);
    op->recorded = code == 0;
    return code;
}

int
wm_pack_enqueue(wm_op_t *op, wm_error_t *err)
{
    int device = op->device;
    CUstream stream = op->user_stream;
    int code;
    if (op->packed == NULL)
        return 0;
    if (op->user_device == device)
        code = pack_on_stream(op, err);
    else {
        code = wm_op_open_stream(op, err);
        stream = op->stream;
        if (code == 0)
            code = wm_strided_pack(&op->buffer.pattern->strided,
                                   op->buffer.data, op->buffer.nbytes, device,
                                   stream, err);
    }
    if (code < 0)
        return code;
    op->buffer.producer = (wm_producer_t){
        .kind = WM_PRODUCER_STREAM,
        .device = device,
        .stream = stream,
    };
    // The payload is taken later, when a borrowed stream may be gone.
    if (op->header.kind == WM_MESSAGE_DATA && !op->pooled) {
        op->opened = false;
        wm_op_take_note(op);
    }
    return 0;
}

int
wm_unpack_prepare(wm_op_t *op, wm_error_t *err)
{
    return by_kernel(op) ? wm_copy_prepare(op->device, err) : 0;
}

int
wm_unpack_match(wm_op_t *op, wm_error_t *err)
{
    if (!by_host(op) || op->header.nbytes == 0)
        return 0;
    op->onto_device |= wm_buffer_on_device(&op->buffer);
    return stand_in_on_host(op, received_bytes(op), err);
}

int
wm_unpack_reserve(wm_op_t *op, wm_error_t *err)
{
    if (by_kernel(op) && op->header.nbytes > 0)
        return stand_in_on_device(op, received_bytes(op), err);
    return wm_unpack_match(op, err);
}

int
wm_unpack_accept(wm_op_t *op, wm_error_t *err)
{
    bool near = op->transport == &wm_transport_ipc
                || (op->transport == &wm_transport_self
                    && op->header.device == op->device);
    bool direct = wm_pieces_are_boxed(op) ? wm_pack_by_mail(op) != NULL
                                          : near && op->pieces.pieces == 1;
    return direct ? wm_unpack_match(op, err) : wm_unpack_reserve(op, err);
}

bool
wm_unpack_is_direct(const wm_op_t *op)
{
    return by_kernel(op) && op->packed == NULL;
}

bool
wm_unpack_on_stream(const wm_op_t *op)
{
    return op->buffer.pattern == NULL
           || (by_kernel(op) && op->user_device == op->device);
}

int
wm_unpack_enqueue(wm_op_t *op, const char *from, int device, CUstream stream,
                  wm_error_t *err)
{
    if (!by_kernel(op))
        return 0;
    op->unpacked = true;
    return wm_strided_unpack(&op->buffer.pattern->strided, from,
                             received_bytes(op), device, stream, err);
}

bool
wm_unpack_is_left(const wm_op_t *op)
{
    return (op->packed != NULL || op->packed_host != NULL) && !op->unpacked
           && op->error.code == 0 && !op->result.cancelled;
}

static int
look_at_stream(wm_op_t *op, wm_error_t *err)
{
    bool idle = false;
    int code = wm_stream_spin(op->device, op->stream, 16, &idle, err);
    op->idle = idle;
    return code < 0 ? code : idle;
}

// MPI unpacks into a copy of the memory, gaps and all, which then goes back.
static int
unpack_span(wm_op_t *op, wm_error_t *err)
{
    const wm_pattern_t *pattern = op->buffer.pattern;
    int code = look_at_stream(op, err);
    if (code <= 0)
        return code;
    code = wm_pattern_unpack(pattern, op->packed_host, received_bytes(op),
                             wm_pattern_base(pattern, op->span),
                             op->comm->data, err);
    if (code < 0)
        return code;
    wm_stat_add(WM_STAT_staged_bytes, (int64_t)received_bytes(op));
    op->idle = false;
    op->unpacking = UNPACK_WRITTEN;
    return wm_memory_copy(op->device, pattern->data + pattern->low, op->span,
                          pattern->span, op->stream, err);
}

static int
begin_unpacking(wm_op_t *op, wm_error_t *err)
{
    int code;
    if (op->packed_host != NULL && !op->onto_device) {
        op->unpacked = true;
        code = wm_pattern_unpack(op->buffer.pattern, op->packed_host,
                                 received_bytes(op), NULL, op->comm->data,
                                 err);
        return code < 0 ? code : 1;
    }
    if (op->packed_host != NULL) {
        op->unpacking = UNPACK_READ;
        return read_span(op, err);
    }
    op->unpacking = UNPACK_WRITTEN;
    code = wm_op_open_stream(op, err);
    op->idle = false;
    return code < 0 ? code
                    : wm_unpack_enqueue(op, op->buffer.data, op->device,
                                        op->stream, err);
}

int
wm_unpack_step(wm_op_t *op, wm_error_t *err)
{
    switch (op->unpacking) {
    case UNPACK_NEW:
        return begin_unpacking(op, err);
    case UNPACK_READ:
        return unpack_span(op, err);
    default:
        return look_at_stream(op, err);
    }
}

void
wm_pack_drop(wm_op_t *op)
{
    // What packs may run still where a send failed.
    for (int i = 0; i < 2 && op->packed != NULL && !op->receives; ++i)
        if (op->error.code != 0 && op->after[i].event != NULL)
            (void)!wm_event_synchronize(op->after[i].device,
                                        op->after[i].event, NULL);
    if (op->packed != NULL && op->recorded) {
        wm_block_free(op->packed, 1, &op->event, &op->user_device);
        op->event = NULL;
    }
    else if (op->packed != NULL)
        wm_block_free(op->packed, 0, NULL, NULL);
    op->packed = NULL;
    if (op->span != NULL)
        wm_pinned_free(op->span);
    op->span = NULL;
    free(op->packed_host);
    op->packed_host = NULL;
}

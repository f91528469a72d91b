// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/laid.h"

#include <string.h>

#include "comm/coll/half.h"
#include "comm/coll/participant.h"
#include "comm/coll/reducible.h"
#include "comm/engine/hash.h"
#include "comm/message/pattern.h"

#define ALIGN 256 // of a rank's blocks in a copy

// Where the blocks are: `nbytes` of them all, alike, or as given.
static void
lay(wm_span_t *spans, const wm_span_t *given, size_t nbytes, int blocks)
{
    for (int i = 0; i < blocks; ++i) {
        size_t each = nbytes / (size_t)blocks;
        spans[i] = given != NULL ? given[i]
                                 : (wm_span_t){(size_t)i * each, each};
    }
}

// Whether a block for each rank is told by a pattern.
static bool
has_parts(const wm_laid_t *laid, const wm_buffer_t *buffer)
{
    const wm_shape_t *shape = laid->shape;
    return buffer->pattern != NULL && shape->varies && shape->scatters
           && shape->gathers;
}

// Where the blocks of memory with gaps are: there, if each rank's is one run
// without, else in a copy.
static const wm_pattern_t *
find_runs(const wm_buffer_t *buffer, int size, wm_span_t *spans,
          size_t *packed)
{
    bool runs = true;
    wm_strided_t part;
    wm_span_t found[WM_BARRIER_RANKS];
    *packed = 0;
    for (int rank = 0; rank < size && runs; ++rank) {
        found[rank] = (wm_span_t){0, spans[rank].nbytes};
        if (spans[rank].nbytes == 0)
            continue;
        runs = wm_pattern_cut(buffer->pattern, spans[rank].at,
                              spans[rank].nbytes, &part)
               && part.ndim == 0;
        found[rank].at = (size_t)(part.data - buffer->data);
    }
    for (int rank = 0; rank < size && !runs; ++rank) {
        found[rank] = (wm_span_t){*packed, spans[rank].nbytes};
        *packed += (spans[rank].nbytes + ALIGN - 1) / ALIGN * ALIGN;
    }
    memcpy(spans, found, (size_t)size * sizeof *spans);
    return runs ? NULL : buffer->pattern;
}

static void
lay_out(wm_laid_t *laid)
{
    const wm_coll_t *call = laid->call;
    const wm_shape_t *shape = laid->shape;
    int size = laid->comm->size, rank = laid->comm->rank;
    bool in_place = call->send == NULL && laid->sends && laid->receives;
    const wm_buffer_t *send = in_place ? call->receive : call->send;
    if (shape->uneven) { // into the first block, where it is in place
        laid->target = call->receive->data;
        laid->into[0].nbytes = call->receives[rank].nbytes;
    }
    else if (laid->receives && call->receive != NULL) {
        size_t nbytes = call->receive->nbytes;
        if (in_place && shape->scatters && shape->reduces)
            nbytes /= (size_t)size; // into the first block of what it sends
        laid->target = call->receive->data;
        lay(laid->into, call->receives, nbytes, shape->gathers ? size : 1);
        if (has_parts(laid, call->receive))
            laid->unpacks = find_runs(call->receive, size, laid->into,
                                      &laid->unpacks_nbytes);
    }
    if (!laid->sends || send == NULL)
        return;
    laid->source = send->data;
    if (in_place && shape->gathers && !shape->scatters)
        laid->out[0] = laid->into[rank];
    else
        lay(laid->out,
            in_place || shape->uneven ? call->receives : call->sends,
            send->nbytes, shape->scatters ? size : 1);
    if (has_parts(laid, send))
        laid->packs = find_runs(send, size, laid->out, &laid->packs_nbytes);
}

size_t
wm_laid_longest(const wm_laid_t *laid)
{
    size_t longest = 0;
    for (int rank = 0; rank < laid->comm->size; ++rank) {
        const wm_span_t *sides[] = {&laid->out[rank], &laid->into[rank]};
        for (int i = 0; i < 2; ++i)
            if (sides[i]->nbytes > longest)
                longest = sides[i]->nbytes;
    }
    return longest;
}

bool
wm_laid_is_overwritten(const wm_laid_t *laid)
{
    bool alike = true;
    for (int rank = 1; rank < laid->comm->size; ++rank)
        alike &= laid->out[rank].nbytes == laid->out[0].nbytes;
    return laid->shape->uneven && !alike && laid->source == laid->target
           && laid->comm->rank > 0;
}

void
wm_laid_pairs(const wm_laid_t *laid, size_t *gives, size_t *takes)
{
    const wm_shape_t *shape = laid->shape;
    for (int rank = 0; rank < laid->comm->size; ++rank) {
        bool none = shape->rooted && rank != laid->call->root;
        gives[rank] = laid->source == NULL || (none && !shape->outward)
                          ? 0
                          : laid->out[shape->scatters ? rank : 0].nbytes;
        takes[rank] = laid->target == NULL || (none && shape->outward)
                          ? 0
                          : laid->into[shape->gathers ? rank : 0].nbytes;
    }
}

size_t
wm_laid_block(const wm_laid_t *laid)
{
    size_t all = 0;
    for (int i = 0; laid->shape->uneven && i < laid->comm->size; ++i)
        all += laid->out[i].nbytes;
    return laid->shape->uneven    ? all
           : laid->shape->varies  ? 0
           : laid->source != NULL ? laid->out[0].nbytes
                                  : laid->into[0].nbytes;
}

uint64_t
wm_laid_number(const wm_laid_t *laid)
{
    const wm_coll_t *call = laid->call;
    uint64_t block = laid->shape->uneven ? 0 : wm_laid_block(laid);
    for (int i = 0; laid->shape->uneven && i < laid->comm->size; ++i)
        block = wm_hash(block, laid->out[i].nbytes);
    uint64_t parts[] = {block, (uint64_t)(call->root + 1), 0, 0};
    if (laid->shape->reduces) {
        parts[2] = laid->refused ? UINT64_MAX : (uint64_t)laid->type;
        parts[3] = (uint64_t)laid->op;
    }
    uint64_t number = WM_HASH_OF_NOTHING;
    for (int i = 0; i < 4; ++i)
        number = wm_hash(number, parts[i]);
    return number;
}

// Bytes of what a rank sends to itself, as it sends and as it receives them.
static size_t
own_of(const wm_laid_t *laid, bool sent)
{
    const wm_shape_t *shape = laid->shape;
    bool many = sent ? shape->scatters : shape->gathers;
    int block = many ? laid->comm->rank : 0;
    return sent ? laid->out[block].nbytes : laid->into[block].nbytes;
}

static int
check(wm_laid_t *laid, wm_error_t *err)
{
    const wm_coll_t *call = laid->call;
    const wm_buffer_t *sides[] = {call->send, call->receive};
    for (int i = 0; i < 2; ++i) {
        const char *name = i == 0 ? "sendbuf" : "recvbuf";
        if (sides[i] == NULL || sides[i]->nbytes == 0)
            continue;
        if (!wm_buffer_on_device(sides[i])
            || (sides[i]->pattern != NULL && !has_parts(laid, sides[i])))
            return wm_error_set(err, WM_ERR_TYPE, 0,
                                "%s: a collective on a stream takes "
                                "contiguous GPU memory; use the communicator "
                                "itself, without on(stream), for other",
                                name);
        int device = sides[i]->memory.device;
        if (device >= 0 && device != laid->device)
            return wm_error_set(err, WM_ERR_VALUE, 0,
                                "%s: it is on cuda:%d, and the stream is one "
                                "of cuda:%d; use a stream of the array's GPU",
                                name, device, laid->device);
    }
    if (call->send != NULL && call->receive != NULL && laid->sends
        && laid->receives && own_of(laid, true) != own_of(laid, false))
        return wm_error_set(err, WM_ERR_MPI, MPI_ERR_TRUNCATE,
                            "recvbuf: its block of this rank itself has %zu "
                            "bytes, and sendbuf's has %zu: give both the same",
                            own_of(laid, false), own_of(laid, true));
    laid->refused = laid->shape->reduces
                    && !wm_reducible(call->type, call->size, call->op,
                                     &laid->type, &laid->op);
    if (laid->refused)
        return wm_error_set(err, WM_ERR_TYPE, 0,
                            "op: GPUs do not compute this with elements of "
                            "this type (%s); use another op, or the "
                            "communicator itself, without on(stream)",
                            wm_half_name(wm_half_number(call->type)));
    return 0;
}

int
wm_laid_out(wm_laid_t *laid, wm_error_t *err)
{
    laid->shape = wm_coll_shape(laid->call->kind);
    laid->sends = wm_coll_sends(laid->call, laid->comm->rank);
    laid->receives = wm_coll_receives(laid->call, laid->comm->rank);
    lay_out(laid);
    return check(laid, err);
}

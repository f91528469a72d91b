// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/stream/coll_desc.h"

#include <stdlib.h>
#include <string.h>

#include "comm/coll/call/half.h"
#include "comm/coll/direct/participant.h"
#include "comm/coll/call/reducible.h"
#include "comm/engine/hash.h"
#include "comm/message/pattern.h"

#define ALIGN 256 // alignment of the blocks in a packed copy

// Fills the spans of the blocks: as given, or equal parts of `nbytes`.
static void
coll_desc_lay(wm_span_t *spans, const wm_span_t *given, size_t nbytes,
              int blocks)
{
    for (int i = 0; i < blocks; ++i) {
        size_t each = nbytes / (size_t)blocks;
        spans[i] = given != NULL ? given[i]
                                 : (wm_span_t){(size_t)i * each, each};
    }
}

// Returns true if a pattern describes a block for each rank.
static bool
has_parts(const wm_coll_desc_t *desc, const wm_buffer_t *buffer)
{
    const wm_shape_t *shape = desc->shape;
    return buffer->pattern != NULL && shape->varies && shape->scatters
           && shape->gathers && desc->comm->size <= WM_BARRIER_RANKS;
}

// Finds the blocks of memory with gaps. If each block is one run, spans point
// into that memory, and NULL is returned. Else they point into a copy of
// *packed bytes, and the pattern is returned.
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
coll_desc_lay_out(wm_coll_desc_t *desc)
{
    const wm_coll_t *call = desc->call;
    const wm_shape_t *shape = desc->shape;
    int size = desc->comm->size, rank = desc->comm->rank;
    bool in_place = call->send == NULL && desc->sends && desc->receives;
    const wm_buffer_t *send = in_place ? call->receive : call->send;
    if (shape->uneven) { // in place, into the first block
        desc->target = call->receive->data;
        desc->into[0].nbytes = call->receives[rank].nbytes;
    }
    else if (desc->receives && call->receive != NULL) {
        size_t nbytes = call->receive->nbytes;
        if (in_place && shape->scatters && shape->reduces)
            nbytes /= (size_t)size; // into the first block of the send data
        desc->target = call->receive->data;
        coll_desc_lay(desc->into, call->receives, nbytes,
                      shape->gathers ? size : 1);
        if (has_parts(desc, call->receive))
            desc->unpacks = find_runs(call->receive, size, desc->into,
                                      &desc->unpacks_nbytes);
    }
    if (!desc->sends || send == NULL)
        return;
    desc->source = send->data;
    if (in_place && shape->gathers && !shape->scatters)
        desc->out[0] = desc->into[rank];
    else
        coll_desc_lay(desc->out,
                      in_place || shape->uneven ? call->receives : call->sends,
                      send->nbytes, shape->scatters ? size : 1);
    if (has_parts(desc, send))
        desc->packs = find_runs(send, size, desc->out, &desc->packs_nbytes);
}

size_t
wm_coll_desc_longest(const wm_coll_desc_t *desc)
{
    size_t longest = 0;
    for (int rank = 0; rank < desc->comm->size; ++rank) {
        const wm_span_t *sides[] = {&desc->out[rank], &desc->into[rank]};
        for (int i = 0; i < 2; ++i)
            if (sides[i]->nbytes > longest)
                longest = sides[i]->nbytes;
    }
    return longest;
}

bool
wm_coll_desc_is_overwritten(const wm_coll_desc_t *desc)
{
    bool alike = true;
    for (int rank = 1; rank < desc->comm->size; ++rank)
        alike &= desc->out[rank].nbytes == desc->out[0].nbytes;
    return desc->shape->uneven && !alike && desc->source == desc->target
           && desc->comm->rank > 0;
}

void
wm_coll_desc_pairs(const wm_coll_desc_t *desc, size_t *gives, size_t *takes)
{
    const wm_shape_t *shape = desc->shape;
    for (int rank = 0; rank < desc->comm->size; ++rank) {
        bool none = shape->rooted && rank != desc->call->root;
        gives[rank] = desc->source == NULL || (none && !shape->outward)
                          ? 0
                          : desc->out[shape->scatters ? rank : 0].nbytes;
        takes[rank] = desc->target == NULL || (none && shape->outward)
                          ? 0
                          : desc->into[shape->gathers ? rank : 0].nbytes;
    }
}

size_t
wm_coll_desc_block(const wm_coll_desc_t *desc)
{
    size_t all = 0;
    for (int i = 0; desc->shape->uneven && i < desc->comm->size; ++i)
        all += desc->out[i].nbytes;
    return desc->shape->uneven    ? all
           : desc->shape->varies  ? 0
           : desc->source != NULL ? desc->out[0].nbytes
                                  : desc->into[0].nbytes;
}

uint64_t
wm_coll_desc_hash(const wm_coll_desc_t *desc)
{
    const wm_coll_t *call = desc->call;
    uint64_t block = desc->shape->uneven ? 0 : wm_coll_desc_block(desc);
    for (int i = 0; desc->shape->uneven && i < desc->comm->size; ++i)
        block = wm_hash(block, desc->out[i].nbytes);
    uint64_t parts[] = {block, (uint64_t)(call->root + 1), 0, 0};
    if (desc->shape->reduces) {
        parts[2] = desc->refused ? UINT64_MAX : (uint64_t)desc->type;
        parts[3] = (uint64_t)desc->op;
    }
    uint64_t number = WM_HASH_OF_NOTHING;
    for (int i = 0; i < 4; ++i)
        number = wm_hash(number, parts[i]);
    return number;
}

// Returns the bytes that a rank sends to itself (`sent`), or expects from
// itself.
static size_t
own_of(const wm_coll_desc_t *desc, bool sent)
{
    const wm_shape_t *shape = desc->shape;
    bool many = sent ? shape->scatters : shape->gathers;
    int block = many ? desc->comm->rank : 0;
    return sent ? desc->out[block].nbytes : desc->into[block].nbytes;
}

static int
coll_desc_check(wm_coll_desc_t *desc, wm_error_t *err)
{
    const wm_coll_t *call = desc->call;
    const wm_buffer_t *sides[] = {call->send, call->receive};
    for (int i = 0; i < 2; ++i) {
        const char *name = i == 0 ? "sendbuf" : "recvbuf";
        if (sides[i] == NULL || sides[i]->nbytes == 0)
            continue;
        if (!wm_buffer_on_device(sides[i])
            || (sides[i]->pattern != NULL && !has_parts(desc, sides[i])))
            return wm_error_set(err, WM_ERR_TYPE, 0,
                                "%s: a collective on a stream takes "
                                "contiguous GPU memory; for other memory call "
                                "the communicator itself, without on(stream)",
                                name);
        int device = sides[i]->memory.device;
        if (device >= 0 && device != desc->device)
            return wm_error_set(err, WM_ERR_VALUE, 0,
                                "%s: the array is on cuda:%d, and the stream "
                                "on cuda:%d; use a stream of the array's GPU",
                                name, device, desc->device);
    }
    if (call->send != NULL && call->receive != NULL && desc->sends
        && desc->receives && own_of(desc, true) != own_of(desc, false))
        return wm_error_set(
            err, WM_ERR_MPI, MPI_ERR_TRUNCATE,
            "recvbuf: the block of this rank itself has %zu bytes in recvbuf, "
            "and %zu in sendbuf: give both the same size",
            own_of(desc, false), own_of(desc, true));
    desc->refused = desc->shape->reduces
                    && !wm_coll_reducible(call, &desc->type, &desc->op);
    if (desc->refused)
        return wm_error_set(err, WM_ERR_TYPE, 0,
                            "op: GPUs do not compute this op with elements of "
                            "this type (%s); use another op, or call the "
                            "communicator itself, without on(stream)",
                            wm_half_name(wm_half_number(call->type)));
    return 0;
}

int
wm_coll_desc_open(wm_coll_desc_t *desc, wm_error_t *err)
{
    size_t size = (size_t)desc->comm->size;
    desc->out = desc->few[0];
    desc->into = desc->few[1];
    if (size <= WM_BARRIER_RANKS)
        return 0;
    desc->many = calloc(2 * size, sizeof *desc->many);
    if (desc->many == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    desc->out = desc->many;
    desc->into = desc->many + size;
    return 0;
}

void
wm_coll_desc_drop(wm_coll_desc_t *desc)
{
    free(desc->many);
    desc->many = NULL;
}

int
wm_coll_desc_fill(wm_coll_desc_t *desc, wm_error_t *err)
{
    int code = wm_coll_desc_open(desc, err);
    if (code < 0)
        return code;
    desc->shape = wm_coll_shape(desc->call->kind);
    desc->sends = wm_coll_sends(desc->call, desc->comm->rank);
    desc->receives = wm_coll_receives(desc->call, desc->comm->rank);
    coll_desc_lay_out(desc);
    return coll_desc_check(desc, err);
}

int
wm_coll_desc_check(wm_comm_t *comm, const wm_coll_t *call,
                   const wm_coll_stream_t *on, wm_error_t *err)
{
    wm_coll_desc_t desc = {
        // 2 KiB
        .call = call,
        .comm = comm,
        .device = on->device,
        .stream = on->stream,
    };
    int code = wm_coll_desc_fill(&desc, err);
    wm_coll_desc_drop(&desc);
    return code;
}

void
wm_coll_desc_sides(const wm_coll_desc_t *desc, wm_ll_side_t *gives,
                   wm_ll_side_t *takes)
{
    const wm_coll_t *call = desc->call;
    uint32_t size = (uint32_t)desc->comm->size;
    uint32_t rank = (uint32_t)desc->comm->rank;
    bool self = desc->shape->inclusive;
    gives->count = takes->count = size;
    if (desc->shape->prefix) {
        gives->first = rank + !self;
        gives->count = size - rank - !self;
        takes->count = rank + self;
    }
    else if (desc->shape->rooted) {
        wm_ll_side_t *one = desc->shape->outward ? takes : gives;
        one->first = (uint32_t)call->root;
        one->count = 1;
    }
    if (desc->source == NULL)
        gives->count = 0;
    if (desc->target == NULL)
        takes->count = 0;
}

bool
wm_coll_desc_reduces(const wm_coll_desc_t *desc, const wm_ll_side_t *takes)
{
    return desc->shape->reduces && takes->count > 1;
}

// SPDX-License-Identifier: BSD-3-Clause
#include "comm/rma/update.h"

#include <string.h>

#include "array/kernels.h"
#include "comm/coll/call/reducible.h"
#include "cuda/event.h"

// Bytes that are updated at a time: by the CPU, and by kernels in memory
// without gaps in place of the target's.
#define CPU_BYTES ((size_t)1 << 20)
#define DEVICE_BYTES ((size_t)4 << 20)

enum { TARGET, SOURCE, COMPARED, CHUNKS };

int
wm_update_prepare(int device, wm_error_t *err)
{
    if (device < 0)
        return 0;
    int code = wm_kernels_prepare(device, WM_KERNELS_COPY, err);
    if (code == 0)
        code = wm_kernels_prepare(device, WM_KERNELS_REDUCE, err);
    return code < 0 ? code : wm_atomic_prepare(device, err);
}

int
wm_update_check(const wm_strided_t *parts, size_t count, wm_reduce_type_t type,
                wm_error_t *err)
{
    size_t size = wm_reducible_size(type);
    for (size_t i = 0; i < count; ++i)
        if ((size_t)parts[i].run % size != 0)
            return wm_error_set(err, WM_ERR_VALUE, 0,
                                "target: the blocks of the datatype are no "
                                "whole elements of %zu bytes",
                                size);
    return 0;
}

// Returns true if no kernel does the update.
static bool
update_is_of_host(const wm_update_t *update)
{
    return update->device < 0 || update->type >= WM_REDUCE_TYPES
           || (update->compare != NULL && wm_update_is_alone(update));
}

// A run of atomic elements at another address than a multiple of their size is
// updated alone, and so are the update's other runs.
bool
wm_update_is_alone(const wm_update_t *update)
{
    if (update->device < 0)
        return false;
    if (update->type >= WM_REDUCE_TYPES
        || !wm_atomic_takes(update->type, update->op))
        return true;
    bool aligned = update->dst == NULL
                   || wm_atomic_is_aligned(update->type, update->dst, NULL);
    for (int i = 0; i < update->count && update->dst == NULL; ++i)
        aligned &= wm_atomic_is_aligned(update->type, NULL, &update->parts[i]);
    return !aligned;
}

// --- by the kernel of atomic updates --------------------------------------

static int
update_atomically(const wm_update_t *update, CUstream stream, wm_error_t *err)
{
    size_t at = 0;
    int code = 0;
    for (int i = 0; i < update->count && code == 0; ++i) {
        const wm_strided_t *part = &update->parts[i];
        size_t nbytes = wm_strided_nbytes(part);
        wm_atomic_t atomic = {
            .type = update->type,
            .op = update->op,
            .dst = update->dst,
            .gaps = update->dst == NULL ? part : NULL,
            .src = update->src + at,
            .compare = update->compare != NULL ? update->compare + at : NULL,
            .fetched = update->fetched != NULL ? update->fetched + at : NULL,
            .count = nbytes / wm_reduce_size(update->type),
        };
        at += nbytes;
        if (at == update->nbytes)
            atomic.signal = update->signal;
        code = wm_atomic_enqueue(update->device, &atomic, stream, err);
    }
    return code < 0 ? code : 1;
}

// --- in chunks ------------------------------------------------------------

static int
update_copy(const wm_update_t *update, void *dst, const void *src,
            size_t nbytes, CUstream stream, wm_error_t *err)
{
    if (update->device >= 0)
        return wm_memory_copy(update->device, dst, src, nbytes, stream, err);
    memcpy(dst, src, nbytes);
    return 0;
}

// Copies the target's next chunk to memory without gaps, or back.
static int
update_move(const wm_update_t *update, char *packed, size_t nbytes, bool packs,
            CUstream stream, wm_error_t *err)
{
    return wm_strided_copy_part(&update->parts[update->part], update->part_at,
                                packed, nbytes, packs, update->device, stream,
                                err);
}

// Returns the bytes of the next chunk: whole elements, `most` bytes at most
// unless an element has more.
static size_t
update_next(const wm_update_t *update, size_t most)
{
    size_t size = wm_reducible_size(update->type);
    size_t left = wm_strided_nbytes(&update->parts[update->part])
                  - update->part_at;
    return left <= most ? left : most / size * size;
}

// Goes on behind a chunk. Returns 1 if that was the last one.
static int
update_pass(wm_update_t *update, size_t nbytes)
{
    update->at += nbytes;
    update->part_at += nbytes;
    if (update->part_at == wm_strided_nbytes(&update->parts[update->part])) {
        ++update->part;
        update->part_at = 0;
    }
    return update->part == update->count;
}

// Enqueues all chunks on the stream of the target's device: a chunk is reduced
// where the target has it, or between copies.
static int
update_on_device(wm_update_t *update, CUstream stream, wm_error_t *err)
{
    bool moves = update->dst == NULL;
    int code = 0;
    if (moves)
        code = wm_coll_memory_take(
            &update->chunks,
            update->nbytes < DEVICE_BYTES ? update->nbytes : DEVICE_BYTES,
            update->device, err);
    while (code == 0) {
        size_t nbytes = moves ? update_next(update, DEVICE_BYTES)
                              : update->nbytes;
        char *dst = moves ? update->chunks.buffer.data : update->dst;
        const void *sources[] = {dst, update->src + update->at};
        if (moves)
            code = update_move(update, dst, nbytes, true, stream, err);
        if (code == 0 && update->fetched != NULL)
            code = update_copy(update, update->fetched + update->at, dst,
                               nbytes, stream, err);
        if (code == 0 && update->op == WM_REDUCE_REPLACE)
            code = update_copy(update, dst, sources[1], nbytes, stream, err);
        else if (code == 0 && update->op != WM_REDUCE_NO_OP)
            code = wm_reduce_launch(
                update->device, update->type, update->op, dst, sources, 2,
                nbytes / wm_reduce_size(update->type), stream, err);
        if (code == 0 && moves)
            code = update_move(update, dst, nbytes, false, stream, err);
        if (code == 0)
            code = update_pass(update, nbytes);
    }
    return code;
}

static char *
update_chunk(const wm_update_t *update, int which)
{
    return update->chunks.buffer.data
           + which * update->chunks.buffer.nbytes / CHUNKS;
}

// Copies the next chunk to the host.
static int
update_load(wm_update_t *update, CUstream stream, wm_error_t *err)
{
    int code = 0;
    size_t size = wm_reducible_size(update->type);
    size_t room = update->nbytes < CPU_BYTES ? update->nbytes
                                             : CPU_BYTES / size * size;
    if (update->chunks.buffer.data == NULL)
        code = wm_coll_memory_take(&update->chunks, CHUNKS * room, -1, err);
    if (code < 0)
        return code;
    size_t nbytes = update_next(update, room);
    code = update_move(update, update_chunk(update, TARGET), nbytes, true,
                       stream, err);
    if (code == 0 && update->op != WM_REDUCE_NO_OP)
        code = update_copy(update, update_chunk(update, SOURCE),
                           update->src + update->at, nbytes, stream, err);
    if (code == 0 && update->compare != NULL)
        code = update_copy(update, update_chunk(update, COMPARED),
                           update->compare + update->at, nbytes, stream, err);
    if (code == 0 && update->device >= 0 && update->event == NULL)
        code = wm_event_acquire(update->device, &update->event, err);
    if (code == 0 && update->device >= 0)
        code = wm_event_record(update->device, update->event, stream, err);
    update->chunk = code == 0 ? nbytes : 0;
    return code;
}

// Updates the chunk, which has come, and copies it back. Returns 1 if that was
// the last one.
static int
update_store(wm_update_t *update, CUstream stream, wm_error_t *err)
{
    char *target = update_chunk(update, TARGET);
    char *source = update_chunk(update, SOURCE);
    size_t nbytes = update->chunk;
    int code = 0;
    bool stays = update->op == WM_REDUCE_NO_OP
                 || (update->compare != NULL
                     && memcmp(target, update_chunk(update, COMPARED), nbytes)
                            != 0);
    if (!stays && update->op != WM_REDUCE_REPLACE)
        code = wm_reducible_reduce(update->type, update->op, source, target,
                                   nbytes / wm_reducible_size(update->type),
                                   err);
    if (code == 0 && update->fetched != NULL)
        code = update_copy(update, update->fetched + update->at, target,
                           nbytes, stream, err);
    if (code == 0 && !stays)
        code = update_move(update, source, nbytes, false, stream, err);
    update->chunk = 0;
    return code < 0 ? code : update_pass(update, nbytes);
}

// Makes the next chunk come to the host, or updates it there.
static int
update_by_host(wm_update_t *update, CUstream stream, wm_error_t *err)
{
    bool done = true;
    int code = update->chunk == 0 ? update_load(update, stream, err) : 0;
    if (code == 0 && update->event != NULL)
        code = wm_event_done(update->device, update->event, &done, err);
    return code < 0 || !done ? code : update_store(update, stream, err);
}

// Updates the next chunk of host memory where it is.
static int
update_in_place(wm_update_t *update)
{
    size_t nbytes = update_next(update, CPU_BYTES), at = update->at;
    char *dst = update->dst + at;
    const void *sources[] = {dst, update->src + at};
    bool stays = update->op == WM_REDUCE_NO_OP
                 || (update->compare != NULL
                     && memcmp(dst, update->compare + at, nbytes) != 0);
    if (update->fetched != NULL)
        memcpy(update->fetched + at, dst, nbytes);
    if (!stays && update->op == WM_REDUCE_REPLACE)
        memcpy(dst, sources[1], nbytes);
    else if (!stays)
        wm_reduce_host(update->type, update->op, dst, sources, 2,
                       nbytes / wm_reduce_size(update->type));
    return update_pass(update, nbytes);
}

int
wm_update_step(wm_update_t *update, CUstream stream, wm_error_t *err)
{
    bool dense = update->dst != NULL;
    wm_strided_t whole;
    if (dense) {
        wm_strided_init(&whole, update->dst, (int64_t)update->nbytes);
        update->parts = &whole;
        update->count = 1;
    }
    if (dense && update->device < 0 && update->type < WM_REDUCE_TYPES)
        return update_in_place(update);
    return update_is_of_host(update) ? update_by_host(update, stream, err)
           : wm_update_is_alone(update)
               ? update_on_device(update, stream, err)
               : update_atomically(update, stream, err);
}

void
wm_update_free(wm_update_t *update)
{
    if (update->event != NULL)
        wm_event_release(update->device, update->event);
    update->event = NULL;
    wm_coll_memory_free(&update->chunks);
}

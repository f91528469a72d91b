// SPDX-License-Identifier: BSD-3-Clause
#include "array/boxes.h"

#include <stdatomic.h>
#include <stddef.h>

#include "array/kernels.h"
#include "array/mail.h"
#include "cuda/stream.h"

#define WARP 32
#define BLOCK 512
#define BLOCKS 16
#define LINES 2 // of a thread, before there are more blocks

enum {
#define X(name, ...) KERNEL_##name,
    WM_REDUCE_KERNEL_ROWS(X)
#undef X
        KERNEL_move,
    KERNELS,
};

static const char *const names[KERNELS] = {
#define X(name, ...) "wm_boxes_" #name,
    WM_REDUCE_KERNEL_ROWS(X)
#undef X
        "wm_boxes_move",
};

static _Atomic(CUfunction) functions[WM_MAX_DEVICES][KERNELS];

_Static_assert(sizeof(wm_boxes_params_t) <= 4096, "what a kernel is given");
_Static_assert(sizeof(wm_boxes_head_t) <= WM_BOXES_HEAD, "before the boxes");

static size_t
box_bytes(int size)
{
    size_t each = (WM_BOXES_BYTES - WM_BOXES_HEAD) / (2 * (size_t)size);
    return each / WM_BOXES_HEAD * WM_BOXES_HEAD;
}

size_t
wm_boxes_room(int size)
{
    return box_bytes(size) / WM_LINE_BYTES * WM_LINE_PAYLOAD;
}

int
wm_boxes_prepare(int device, wm_error_t *err)
{
    int code = 0;
    if (atomic_load(&functions[device][KERNELS - 1]) != NULL)
        return 0;
    for (int i = 0; i < KERNELS && code == 0; i++) {
        CUfunction function;
        code = wm_kernels_find(device, names[i], &function, err);
        if (code == 0)
            atomic_store(&functions[device][i], function);
    }
    return code;
}

int
wm_boxes_clear(int device, char *boxes, wm_error_t *err)
{
    CUstream stream;
    int code = wm_stream_acquire(device, &stream, err);
    if (code < 0)
        return code;
    code = wm_mail_clear(device, boxes, WM_BOXES_BYTES, stream, err);
    if (code == 0)
        code = wm_stream_synchronize(device, stream, err);
    wm_stream_release(device, stream);
    return code;
}

int
wm_boxes_introduce(int device, char *boxes, const wm_boxes_rank_t *ranks,
                   int size, wm_error_t *err)
{
    CUstream stream;
    int code = wm_stream_acquire(device, &stream, err);
    if (code < 0)
        return code;
    code = wm_memory_copy(device, boxes + offsetof(wm_boxes_head_t, ranks),
                          ranks, (size_t)size * sizeof *ranks, stream, err);
    if (code == 0)
        code = wm_stream_synchronize(device, stream, err);
    wm_stream_release(device, stream);
    return code;
}

static uint64_t
lines_of(const wm_boxes_side_t *side)
{
    return (side->nbytes + WM_LINE_PAYLOAD - 1) / WM_LINE_PAYLOAD;
}

// Of what is given or taken; a rank that takes its own has both.
static uint32_t
unit_of(const wm_boxes_params_t *params)
{
    uint64_t all = 0;
    if (params->src != NULL)
        all |= ((uintptr_t)params->src + params->gives.at) | params->gives.step
               | params->gives.nbytes;
    if (params->dst != NULL)
        all |= ((uintptr_t)params->dst + params->takes.at) | params->takes.step
               | params->takes.nbytes;
    return all % 8 == 0 ? 8 : all % 4 == 0 ? 4 : all % 2 == 0 ? 2 : 1;
}

int
wm_boxes_launch(int device, wm_reduce_type_t type, wm_reduce_op_t op,
                wm_boxes_params_t *params, bool overlaid, CUstream stream,
                wm_error_t *err)
{
    wm_scope_t scope;
    int code = wm_boxes_prepare(device, err);
    if (code == 0)
        code = wm_device_enter(device, &scope, err);
    if (code < 0)
        return code;
    int kernel = KERNEL_move;
    uint64_t out = lines_of(&params->gives), in = lines_of(&params->takes);
    uint64_t jobs = out > in ? out : in;
    params->unit = unit_of(params);
    params->box_bytes = (uint32_t)box_bytes((int)params->size);
    if (params->reduces)
        kernel = wm_reduce_row(type, op, &params->op);
    else
        jobs *= params->size;
    uint64_t blocks = (jobs + LINES * BLOCK - 1) / (LINES * BLOCK);
    uint64_t threads = (jobs + WARP - 1) / WARP * WARP;
    blocks = overlaid || blocks < 1 ? 1 : blocks < BLOCKS ? blocks : BLOCKS;
    threads = threads < WARP ? WARP : threads < BLOCK ? threads : BLOCK;
    code = WM_CU(err, LaunchKernel, atomic_load(&functions[device][kernel]),
                 (unsigned int)blocks, 1, 1, (unsigned int)threads, 1, 1, 0,
                 stream, (void *[]){params}, NULL);
    wm_device_leave(&scope);
    return code;
}

// SPDX-License-Identifier: BSD-3-Clause
#include "array/port.h"

#include <stdatomic.h>
#include <stddef.h>

#include "array/kernels.h"
#include "cuda/memory.h"
#include "cuda/stream.h"

#define WARP 32
#define BLOCKS_PER_SM 2
#define BLOCK_BYTES 16384 // of a long message, for each of its blocks
// The blocks of a receiver that may have to empty its slot, or to take a short
// message.
#define STAGED_BLOCKS 32

static struct {
    _Atomic(CUfunction) many, few;
} functions[WM_MAX_DEVICES];

_Static_assert(sizeof(wm_port_params_t) <= 4096, "what a kernel is given");
_Static_assert(offsetof(wm_port_few_params_t, ops)
                   == offsetof(wm_port_params_t, ops),
               "the one is the other's beginning");
_Static_assert(sizeof(wm_port_t) <= WM_PORT_BYTES, "before the slots");

int
wm_port_prepare(int device, wm_error_t *err)
{
    CUfunction many, few;
    if (atomic_load(&functions[device].many) != NULL)
        return 0;
    int code = wm_kernels_find(device, "port", "wm_port_few", &few, err);
    if (code == 0)
        code = wm_kernels_find(device, "port", "wm_port", &many, err);
    if (code < 0)
        return code;
    atomic_store(&functions[device].few, few);
    atomic_store(&functions[device].many, many);
    return 0;
}

static uint64_t
lines_of(uint64_t nbytes)
{
    return nbytes == 0 ? 1 : (nbytes + WM_LINE_PAYLOAD - 1) / WM_LINE_PAYLOAD;
}

static uint64_t
line_blocks_of(uint64_t nbytes)
{
    return (lines_of(nbytes) + WM_PORT_BLOCK_LINES - 1) / WM_PORT_BLOCK_LINES;
}

uint64_t
wm_port_slot_bytes(uint64_t nbytes)
{
    return lines_of(nbytes) * WM_LINE_BYTES;
}

static uint64_t
at_most(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t
at_least(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

// Returns the threads of a block that the operation can use.
static uint64_t
threads_of(const wm_port_work_t *work)
{
    uint64_t lines = at_most(lines_of(work->nbytes), WM_PORT_BLOCK_LINES);
    return (lines + WARP - 1) / WARP * WARP;
}

// Returns the blocks of an operation: a short message has its own number,
// which both ends know; a long one has `most` that may wait at once.
static uint64_t
blocks_of(const wm_port_work_t *work, uint64_t most)
{
    uint64_t blocks = work->nbytes / BLOCK_BYTES;
    if (work->nbytes <= WM_PORT_LL_BYTES)
        return line_blocks_of(work->nbytes);
    if ((work->what & WM_PORT_SENDS) != 0)
        return at_least(at_most(blocks, most), 1);
    if ((work->what & WM_PORT_ENDS) == 0)
        return 1;
    return at_least(at_most(at_most(blocks, most), STAGED_BLOCKS),
                    WM_PORT_LL_BLOCKS);
}

int
wm_port_launch(int device, const wm_port_work_t *works, int count,
               int required, int sharers, CUstream stream, wm_error_t *err)
{
    wm_port_params_t params;
    const wm_device_t *facts;
    int code = wm_port_prepare(device, err);
    if (code == 0)
        code = wm_device_get(device, &facts, err);
    if (code < 0)
        return code;
    uint64_t room = (uint64_t)facts->multiprocessors * BLOCKS_PER_SM
                    / (uint64_t)(sharers * count);
    uint64_t blocks = 0, threads = WARP;
    params.count = (uint32_t)count;
    params.required = (uint32_t)required;
    for (int i = 0; i < count; ++i) {
        uint64_t own = blocks_of(&works[i], at_least(room, 1));
        threads = at_least(threads, threads_of(&works[i]));
        blocks += own;
        params.ops[i] = (wm_port_op_t){
            .port = works[i].port,
            .late = works[i].late,
            .user = works[i].user,
            .nbytes = works[i].nbytes,
            .what = works[i].what,
            .blocks = (uint32_t)own,
        };
    }
    CUfunction function = atomic_load(count <= WM_PORT_FEW_OPS
                                          ? &functions[device].few
                                          : &functions[device].many);
    return wm_kernels_launch_function(device, function, (uint32_t)blocks,
                                      (uint32_t)threads, &params, stream, err);
}

// Returns true if no block is behind the first one in short messages, whose
// blocks leave one by one.
static bool
has_left(const wm_port_t *port)
{
    uint64_t nbytes = port->place.nbytes;
    uint64_t blocks = nbytes > WM_PORT_LL_BYTES ? 1 : line_blocks_of(nbytes);
    for (uint64_t i = 1; i < blocks; ++i)
        if (port->counts[i] != port->counts[0])
            return false;
    return true;
}

int
wm_port_look(int device, const wm_port_t *port, bool *quiet, uint32_t *passed,
             wm_error_t *err)
{
    wm_port_t copy;
    int code = wm_memory_copy_now(device, &copy, port,
                                  offsetof(wm_port_t, heard), err);
    if (code < 0)
        return code;
    *quiet = copy.active == copy.left && has_left(&copy);
    *passed = copy.counts[0] + copy.ended; // short ones, or long ones
    return 0;
}

int
wm_port_close(int device, wm_port_t *port, wm_error_t *err)
{
    static const uint32_t closed = 1;
    return wm_memory_copy_now(device, &port->closed, &closed, sizeof closed,
                              err);
}

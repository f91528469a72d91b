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

_Static_assert(sizeof(wm_port_params_t) <= 4096, "what a kernel is given");
_Static_assert(offsetof(wm_port_few_params_t, ops)
                   == offsetof(wm_port_params_t, ops),
               "the one is the other's beginning");
_Static_assert(sizeof(wm_port_t) <= WM_PORT_BYTES, "before the slots");

int
wm_port_prepare(int device, wm_error_t *err)
{
    return wm_kernels_prepare(device, WM_KERNELS_PORT, err);
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

// Returns the blocks of an operation, `most` at most.
static uint64_t
blocks_of(const wm_port_work_t *work, uint64_t most)
{
    uint64_t blocks = work->nbytes / BLOCK_BYTES;
    if (work->nbytes <= WM_PORT_LL_BYTES)
        blocks = line_blocks_of(work->nbytes);
    else if ((work->what & (WM_PORT_SENDS | WM_PORT_ENDS)) == 0)
        blocks = 1;
    else if ((work->what & WM_PORT_SENDS) == 0)
        blocks = at_least(at_most(blocks, STAGED_BLOCKS), WM_PORT_LL_BLOCKS);
    return at_least(at_most(blocks, most), 1);
}

// Fills the blocks of each operation, `most` at most: those that are not
// required have the same ones. Returns the blocks of the kernel.
static uint64_t
port_divide(const wm_port_work_t *works, wm_port_params_t *params,
            uint64_t most)
{
    uint64_t blocks = 0, shared = 0;
    for (uint32_t i = 0; i < params->count; ++i) {
        uint64_t own = blocks_of(&works[i], most);
        if (i < params->required)
            blocks += own;
        else
            own = shared = at_least(shared, own);
        params->ops[i].blocks = (uint32_t)own;
    }
    for (uint32_t i = params->required; i < params->count; ++i)
        params->ops[i].blocks = (uint32_t)shared;
    return blocks + shared;
}

int
wm_port_room(const wm_device_t *device, int sharers)
{
    int room = device->multiprocessors * BLOCKS_PER_SM / sharers;
    return room > 2 ? room : 2;
}

bool
wm_port_fits(int count, int others, int room)
{
    return count <= WM_PORT_OPS && count - others + (others > 0) <= room;
}

int
wm_port_launch(int device, const wm_port_work_t *works, int count,
               int required, int room, CUstream stream, wm_error_t *err)
{
    wm_port_params_t params;
    int code = wm_port_prepare(device, err);
    if (code < 0)
        return code;
    uint64_t most = (uint64_t)room, threads = WARP;
    params.count = (uint32_t)count;
    params.required = (uint32_t)required;
    for (int i = 0; i < count; ++i) {
        threads = at_least(threads, threads_of(&works[i]));
        params.ops[i] = (wm_port_op_t){
            .port = works[i].port,
            .late = works[i].late,
            .user = works[i].user,
            .nbytes = works[i].nbytes,
            .what = works[i].what,
        };
    }
    uint64_t blocks = port_divide(works, &params, most);
    while (blocks > (uint64_t)room && most > 1)
        blocks = port_divide(works, &params, --most);
    bool few = count <= WM_PORT_FEW_OPS;
    return wm_kernels_launch(
        device, WM_KERNELS_PORT, few ? WM_KERNEL_FEW : WM_KERNEL_MANY,
        (uint32_t)blocks, (uint32_t)threads, &params, stream, err);
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

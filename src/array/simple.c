// SPDX-License-Identifier: BSD-3-Clause
#include "array/simple.h"

#include "array/kernels.h"

#define BLOCK 512
// Few and long slots: a sender waits at the end of each until all of it has
// arrived.
#define SLOTS 2
#define LONGEST_SLOT 131072
// Fences that reach the host do not overlap.
#define HOST_CHANNELS 16
#define LONGEST_HOST_SLOT 524288
#define MOST_PAIRS 512 // channels of all ranks: more would have few bytes each

_Static_assert(sizeof(wm_simple_params_t) <= 4096, "what a kernel is given");
_Static_assert(sizeof(wm_simple_head_t) <= WM_SIMPLE_HEAD, "before the slots");

static uint32_t
least(size_t a, size_t b)
{
    return (uint32_t)(a < b ? a : b);
}

wm_simple_t
wm_simple_fit(size_t nbytes, int size, int blocks, bool on_host)
{
    size_t others = size > 1 ? (size_t)size - 1 : 1;
    uint32_t most = on_host ? HOST_CHANNELS : WM_SIMPLE_CHANNELS;
    uint32_t channels = least(most, MOST_PAIRS / others);
    channels = least(channels, blocks > 1 ? (size_t)blocks / 2 : 1);
    size_t each = (nbytes - WM_SIMPLE_HEAD) / (channels * others * SLOTS);
    return (wm_simple_t){
        .channels = channels,
        .slots = SLOTS,
        .slot_bytes = least(on_host ? LONGEST_HOST_SLOT : LONGEST_SLOT,
                            each / WM_SIMPLE_ALIGN * WM_SIMPLE_ALIGN),
    };
}

int
wm_simple_prepare(int device, wm_error_t *err)
{
    int code = wm_kernels_prepare(device, WM_KERNELS_SIMPLE, err);
    return code < 0 ? code
                    : wm_kernels_prepare(device, WM_KERNELS_SIMPLE_ALL, err);
}

// Returns how many chunks of a span of `nbytes` go through one channel.
static uint32_t
simple_steps_of(const wm_simple_params_t *params, uint64_t nbytes)
{
    uint64_t chunks = (nbytes + params->slot_bytes - 1) / params->slot_bytes;
    return (uint32_t)((chunks + params->channels - 1) / params->channels);
}

typedef struct {
    uintptr_t low, high;
} range_t;

static void
reach(range_t *range, uintptr_t base, const wm_simple_span_t *span)
{
    uintptr_t at = base + span->at;
    range->low = at < range->low ? at : range->low;
    range->high = at + span->nbytes > range->high ? at + span->nbytes
                                                  : range->high;
}

// Finds the unit, the steps and the overlap of all spans. Results that are
// given back never count as overlap: they are written after all data there has
// been read, or no rank could have reduced it.
static void
simple_measure(wm_simple_params_t *params, bool gives_back)
{
    const wm_simple_span_t *sides[] = {params->gives, params->takes};
    uintptr_t bases[] = {(uintptr_t)params->src, (uintptr_t)params->dst};
    range_t ranges[] = {{UINTPTR_MAX, 0}, {UINTPTR_MAX, 0}};
    uint64_t all = 16 | (gives_back ? bases[1] : 0); // all of dst is written
    params->steps = 0;
    for (uint32_t i = 0; i < 2 * params->size; ++i) {
        const wm_simple_span_t *span = &sides[i % 2][i / 2];
        uint32_t steps = simple_steps_of(params, span->nbytes);
        if (span->nbytes == 0)
            continue;
        all |= bases[i % 2] + span->at;
        if (bases[i % 2] != 0) // NULL: data that is passed on
            reach(&ranges[i % 2], bases[i % 2], span);
        params->steps = steps > params->steps ? steps : params->steps;
    }
    params->unit = (uint32_t)(all & -all);
    params->overlaid = !gives_back && ranges[0].low < ranges[1].high
                       && ranges[1].low < ranges[0].high;
}

// Returns the number of ranks of whose chunks a rank makes its result.
static int
sources_of(const wm_simple_params_t *params)
{
    int count = 0;
    for (uint32_t rank = 0; rank < params->size; ++rank)
        count += params->takes[rank].nbytes > 0;
    return count;
}

int
wm_simple_launch(int device, const wm_simple_t *simple, wm_simple_work_t work,
                 wm_reduce_type_t type, wm_reduce_op_t op,
                 wm_simple_params_t *params, CUstream stream, wm_error_t *err)
{
    int row = WM_KERNEL_move;
    int code = wm_simple_prepare(device, err);
    if (code < 0)
        return code;
    if (work != WM_SIMPLE_MOVE)
        row = wm_reduce_row(type, op, sources_of(params), &params->op,
                            &params->average);
    params->channels = simple->channels;
    params->slots = simple->slots;
    params->slot_bytes = simple->slot_bytes;
    simple_measure(params, work == WM_SIMPLE_ALL);
    return wm_kernels_launch(
        device,
        work == WM_SIMPLE_ALL ? WM_KERNELS_SIMPLE_ALL : WM_KERNELS_SIMPLE, row,
        2 * params->channels, BLOCK, params, stream, err);
}

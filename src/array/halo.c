// SPDX-License-Identifier: BSD-3-Clause
#include "array/halo.h"

#include <stdatomic.h>
#include <string.h>

#include "array/kernels.h"

#define BLOCK 512 // threads, without lines
#define LEAST_BLOCK 128
#define MOST_BLOCK 1024
#define WIDEST 16 // bytes of a unit

#define LINE_BYTES 8 // of data

_Static_assert(sizeof(wm_halo_params_t) <= 4096, "what a kernel is given");

int
wm_halo_prepare(int device, wm_error_t *err)
{
    return wm_kernels_prepare(device, WM_KERNELS_HALO, err);
}

// A copy with the fastest dimension first, in units.
typedef struct {
    wm_halo_task_t task;
    int ndim;
    uint64_t shape[WM_MAX_NDIM + 1];
    int64_t dst_strides[WM_MAX_NDIM + 1], src_strides[WM_MAX_NDIM + 1];
} cut_t;

static void
cut_init(cut_t *cut, const wm_layout_t *layout, int most, uint32_t peer)
{
    int unit = wm_layout_unit(layout), n = 0;
    unit = unit < most ? unit : most;
    memset(cut, 0, sizeof *cut);
    cut->task.dst = layout->dst;
    cut->task.src = layout->src;
    cut->task.unit = (uint32_t)unit;
    cut->task.peer = peer;
    if (layout->run > unit || layout->ndim == 0) {
        cut->shape[n] = (uint64_t)(layout->run / unit);
        cut->dst_strides[n] = cut->src_strides[n] = unit;
        ++n;
    }
    for (int i = layout->ndim - 1; i >= 0; --i, ++n) {
        cut->shape[n] = (uint64_t)layout->shape[i];
        cut->dst_strides[n] = layout->dst_strides[i];
        cut->src_strides[n] = layout->src_strides[i];
    }
    cut->ndim = n;
}

static uint64_t
cut_units(const cut_t *cut)
{
    uint64_t units = 1;
    for (int i = 0; i < cut->ndim; ++i)
        units *= cut->shape[i];
    return units;
}

uint64_t
wm_halo_units(const wm_layout_t *layout)
{
    cut_t cut;
    cut_init(&cut, layout, WIDEST, 0);
    return cut_units(&cut);
}

static void
cut_write(const cut_t *cut, wm_halo_task_t *task)
{
    *task = cut->task;
    task->count = (uint32_t)cut_units(cut);
    task->ndim = (uint32_t)cut->ndim;
    for (int i = 0; i < cut->ndim; ++i) {
        if (i + 1 < cut->ndim)
            wm_kernels_divisor(&task->shape[i], (uint32_t)cut->shape[i]);
        task->dst_strides[i] = cut->dst_strides[i];
        task->src_strides[i] = cut->src_strides[i];
    }
}

// Returns the dimension to cut: an outer one that a task has no room for, else
// the longest.
static int
dimension_to_cut(const cut_t *cut)
{
    int longest = cut->ndim - 1;
    for (int i = 0; i < cut->ndim && cut->ndim <= WM_HALO_NDIM; ++i)
        if (cut->shape[i] > cut->shape[longest])
            longest = i;
    return longest;
}

static size_t
cut_all(const cut_t *cut, uint64_t units, wm_halo_task_t *tasks)
{
    uint64_t all = cut_units(cut);
    bool fits = cut->ndim <= WM_HALO_NDIM;
    if (fits && all <= units) {
        if (tasks != NULL)
            cut_write(cut, tasks);
        return 1;
    }
    int at = dimension_to_cut(cut);
    uint64_t extent = cut->shape[at];
    uint64_t parts = fits ? (all + units - 1) / units : extent;
    size_t made = 0;
    parts = parts < extent ? parts : extent;
    for (uint64_t i = 0; i < parts; ++i) {
        cut_t part = *cut;
        uint64_t begin = extent * i / parts, end = extent * (i + 1) / parts;
        part.shape[at] = end - begin;
        part.task.dst += (int64_t)begin * cut->dst_strides[at];
        part.task.src += (int64_t)begin * cut->src_strides[at];
        part.ndim -= !fits; // one index of the outermost dimension
        made += cut_all(&part, units, tasks != NULL ? tasks + made : NULL);
    }
    return made;
}

size_t
wm_halo_cut(const wm_layout_t *layout, uint32_t peer, uint64_t units,
            wm_halo_task_t *tasks)
{
    cut_t cut;
    cut_init(&cut, layout, WIDEST, peer);
    return cut_all(&cut, units, tasks);
}

bool
wm_halo_takes_lines(const wm_layout_t *layout)
{
    cut_t cut;
    cut_init(&cut, layout, LINE_BYTES, 0);
    return cut.ndim <= WM_HALO_NDIM && cut_units(&cut) < UINT32_MAX / 4;
}

size_t
wm_halo_cut_lines(const wm_layout_t *layout, const wm_halo_lines_t *side,
                  uint64_t lines, wm_halo_task_t *tasks)
{
    cut_t cut;
    size_t made = 0;
    cut_init(&cut, layout, LINE_BYTES, 0);
    uint64_t in_line = LINE_BYTES / cut.task.unit, all = cut_units(&cut);
    uint64_t parts = (all + lines * in_line - 1) / (lines * in_line);
    uint64_t each = (all + parts * in_line - 1) / (parts * in_line) * in_line;
    if (side->sends)
        cut.task.dst = side->lines;
    else
        cut.task.src = side->lines;
    cut.task.half = side->half;
    for (uint64_t first = 0; first < all; first += each, ++made) {
        if (tasks == NULL)
            continue;
        cut_write(&cut, &tasks[made]);
        tasks[made].first = (uint32_t)first;
        tasks[made].count = (uint32_t)(all - first < each ? all - first
                                                          : each);
    }
    return made;
}

static uint32_t
find_threads(uint64_t lines)
{
    uint64_t threads = (lines + LEAST_BLOCK - 1) / LEAST_BLOCK * LEAST_BLOCK;
    threads = threads > LEAST_BLOCK ? threads : LEAST_BLOCK;
    return (uint32_t)(threads < MOST_BLOCK ? threads : MOST_BLOCK);
}

int
wm_halo_launch(int device, const wm_halo_params_t *params, uint32_t most,
               uint64_t lines, CUstream stream, wm_error_t *err)
{
    bool sends = params->sends > 0;
    uint32_t receives = params->task_count - params->sends;
    // Without lines the first block posts and waits, and the others copy.
    uint32_t blocks = !sends                     ? params->task_count + 1
                      : receives > params->sends ? receives
                                                 : params->sends;
    blocks = blocks < most ? blocks : most > 0 ? most : 1;
    wm_halo_params_t copy = *params;
    return wm_kernels_launch(
        device, WM_KERNELS_HALO, sends ? WM_KERNEL_LINES : WM_KERNEL_COPIES,
        blocks, sends ? find_threads(lines) : BLOCK, &copy, stream, err);
}

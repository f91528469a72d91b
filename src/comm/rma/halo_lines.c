// SPDX-License-Identifier: BSD-3-Clause
// Short exchanges by LL lines (kernels/halo.h). A rank's memory for lines has
// two halves, each with the lines of its ghosts in the order of directions and
// fields, so that a neighbour finds its place by the records alone. Sets share
// it: epochs, by which lines are known, are those of the halo.
#include <stdlib.h>
#include <string.h>

#include "comm/coll/direct/symm_group.h"
#include "comm/engine/stats.h"
#include "comm/rma/halo_making.h"

#define LEAST_LINES 128 // of a task
#define MOST_LINES (1u << 28)
#define ALIGNED 256

// Lines serve short exchanges. If many processes share a GPU, stores with gaps
// into mapped memory are slow, and lines serve longer ones, too: measured on
// eight ranks of an H200, the faces of 512^3 float32 take 416 us, 2690 us by
// copies, and 519 us if only the faces with gaps go by lines, as more blocks
// at once read and write these more slowly. With few, copies are faster: 74 us
// and 105 us on two ranks.
#define FEW_MULTIPROCESSORS 24 // of a rank's share
#define FEWER_BYTES ((size_t)256 << 10)
#define MORE_BYTES ((size_t)64 << 20)

// Returns the bytes of a rank's ghosts in a direction; 0: there are none.
static size_t
ghost_bytes(const wm_halo_making_t *making, int rank, int direction, int field)
{
    const wm_halo_record_t *record = wm_halo_record(making, rank, field);
    wm_halo_box_t box;
    return wm_halo_ghosts(&making->halo->shape, rank, &record->extents,
                          direction, &box)
               ? wm_halo_box_bytes(record, &box)
               : 0;
}

static size_t
line_bytes(size_t nbytes)
{
    return (nbytes + sizeof(uint64_t) - 1) / sizeof(uint64_t)
           * WM_HALO_LL_LINE;
}

// Returns where, in a half, the lines of a rank's ghosts begin; the number of
// directions: the bytes of a half.
static size_t
offset_of(const wm_halo_making_t *making, int rank, int direction, int field)
{
    size_t offset = 0;
    for (int at = 0; at < WM_HALO_DIRECTIONS && at <= direction; ++at)
        for (int i = 0; i < making->count; ++i)
            if (at < direction || i < field)
                offset += line_bytes(ghost_bytes(making, rank, at, i));
    return direction < WM_HALO_DIRECTIONS
               ? offset
               : (offset + ALIGNED - 1) / ALIGNED * ALIGNED;
}

static size_t
half_of(const wm_halo_making_t *making, int rank)
{
    return offset_of(making, rank, WM_HALO_DIRECTIONS, 0);
}

// Finds the layout of the copy into a rank's ghosts, by the owners' addresses.
// Returns false if there are none.
static bool
find_layout(const wm_halo_making_t *making, int rank, int direction, int field,
            wm_layout_t *layout)
{
    const wm_halo_shape_t *shape = &making->halo->shape;
    int neighbor = wm_halo_neighbor(shape, rank, direction);
    wm_halo_box_t edge, ghosts;
    wm_array_t dst, src;
    if (neighbor < 0 || ghost_bytes(making, rank, direction, field) == 0)
        return false;
    const wm_halo_record_t *own = wm_halo_record(making, rank, field),
                           *its = wm_halo_record(making, neighbor, field);
    (void)wm_halo_ghosts(shape, rank, &own->extents, direction, &ghosts);
    (void)wm_halo_edge(shape, neighbor, &its->extents, wm_halo_back(direction),
                       &edge);
    // NOLINTBEGIN(performance-no-int-to-ptr)
    wm_halo_box_array(own, shape, (char *)(uintptr_t)own->place.address,
                      &ghosts, &dst);
    wm_halo_box_array(its, shape, (char *)(uintptr_t)its->place.address, &edge,
                      &src);
    // NOLINTEND(performance-no-int-to-ptr)
    wm_layout_init(layout, &dst, &src);
    return true;
}

// Returns true if a rank gets something from a neighbour.
static bool
hears(const wm_halo_making_t *making, int rank, int neighbor)
{
    bool any = false;
    for (int at = 0; at < WM_HALO_DIRECTIONS; ++at)
        for (int i = 0; i < making->count; ++i)
            any = any
                  || (wm_halo_neighbor(&making->halo->shape, rank, at)
                          == neighbor
                      && ghost_bytes(making, rank, at, i) > 0);
    return any;
}

static size_t
most_bytes(const wm_halo_t *halo)
{
    bool many = halo->counters->multiprocessors <= FEW_MULTIPROCESSORS;
    return halo->lines >= 0 ? (size_t)halo->lines
           : many           ? MORE_BYTES
                            : FEWER_BYTES;
}

// Returns true if lines serve a rank: there are few, its neighbours tell each
// other in each exchange how far they are, and tasks can step over the gaps.
static bool
lines_serve(const wm_halo_making_t *making, int rank)
{
    size_t nbytes = 0;
    bool serve = true;
    wm_layout_t layout;
    for (int at = 0; at < WM_HALO_DIRECTIONS && serve; ++at) {
        int neighbor = wm_halo_neighbor(&making->halo->shape, rank, at);
        serve = neighbor < 0 || hears(making, rank, neighbor);
        for (int i = 0; i < making->count && serve; ++i) {
            nbytes += ghost_bytes(making, rank, at, i);
            serve = !find_layout(making, rank, at, i, &layout)
                    || wm_halo_takes_lines(&layout);
        }
    }
    return serve && nbytes <= most_bytes(making->halo);
}

bool
wm_halo_wants_lines(const wm_halo_making_t *making)
{
    const wm_halo_t *halo = making->halo;
    bool wants = making->op == WM_HALO_EXCHANGE && wm_halo_has_tickets(halo)
                 && halo->counters->linked;
    for (int rank = 0; rank < halo->comm->size && wants; ++rank)
        wants = lines_serve(making, rank);
    return wants && halo->peer_count > 0;
}

// --- the memory -----------------------------------------------------------

static const wm_symm_memory_t *
newest(const wm_halo_t *halo)
{
    return halo->memory[halo->memories - 1];
}

// Returns true if there is room for the lines of all ranks. All ranks find the
// same.
static bool
memory_serves(const wm_halo_making_t *making)
{
    const wm_halo_t *halo = making->halo;
    bool serves = halo->memories > 0;
    for (int rank = 0; rank < halo->comm->size && serves; ++rank)
        serves = 2 * half_of(making, rank) <= newest(halo)->ranks[rank].nbytes;
    return serves;
}

// Makes memory for this set and later ones, at least twice as large as the
// last one. *made: as of wm_halo_make_lines().
static int
memory_grow(const wm_halo_making_t *making, bool *made, wm_error_t *err)
{
    wm_halo_t *halo = making->halo;
    size_t last = halo->memories > 0 ? newest(halo)->nbytes : 0;
    size_t nbytes = half_of(making, halo->comm->rank);
    const wm_symm_group_t group = wm_symm_group_of(halo->comm, WM_HALO_CALL,
                                                   0);
    bool unreached = false;
    nbytes = 2 * (nbytes > last ? nbytes : last);
    int code = wm_symm_memory_make(&group, halo->device, false, nbytes, NULL,
                                   &halo->memory[halo->memories], &unreached,
                                   err);
    *made = code == 0 && !unreached;
    halo->memories += *made;
    if (!*made)
        wm_stat_add(WM_STAT_halos_without_lines, 1);
    return code == WM_ERR_MEMORY ? 0 : code; // all ranks have this code
}

// --- tasks ----------------------------------------------------------------

// Cuts one side of all copies. Returns how many tasks there are; with `tasks`
// NULL it only counts.
static size_t
cut_side(const wm_halo_making_t *making, bool sends, uint64_t lines,
         wm_halo_task_t *tasks)
{
    const wm_halo_t *halo = making->halo;
    const wm_symm_memory_t *memory = newest(halo);
    int rank = halo->comm->rank;
    wm_layout_t layout;
    size_t made = 0;
    for (int at = 0; at < WM_HALO_DIRECTIONS; ++at) {
        int neighbor = wm_halo_neighbor(&halo->shape, rank, at);
        int owner = sends ? neighbor : rank; // of the ghosts
        int side = sends ? wm_halo_back(at) : at;
        for (int i = 0; i < making->count && neighbor >= 0; ++i) {
            if (!find_layout(making, owner, side, i, &layout))
                continue;
            const wm_halo_lines_t on = {
                .sends = sends,
                .lines = memory->ranks[owner].memory
                         + offset_of(making, owner, side, i),
                .half = memory->ranks[owner].nbytes / 2,
            };
            made += wm_halo_cut_lines(&layout, &on, lines,
                                      tasks != NULL ? tasks + made : NULL);
        }
    }
    return made;
}

// Finds how many lines a task has, so that each block has one if possible.
static uint64_t
find_lines(const wm_halo_making_t *making, bool sends)
{
    uint64_t blocks = making->set->most, lines = LEAST_LINES;
    while (lines < MOST_LINES && cut_side(making, sends, lines, NULL) > blocks)
        lines += lines / 8 + 1;
    return lines;
}

static int
make_tasks(wm_halo_making_t *making, wm_error_t *err)
{
    wm_halo_set_t *set = making->set;
    uint64_t sent = find_lines(making, true),
             received = find_lines(making, false);
    size_t sends = cut_side(making, true, sent, NULL);
    size_t count = sends + cut_side(making, false, received, NULL);
    wm_halo_task_t *tasks = calloc(count, sizeof *tasks);
    set->begins = calloc(2, sizeof *set->begins);
    int code = tasks == NULL || set->begins == NULL
                   ? wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory")
                   : 0;
    if (code == 0) {
        (void)cut_side(making, true, sent, tasks);
        (void)cut_side(making, false, received, tasks + sends);
        set->begins[1] = (uint32_t)count;
        set->params.sends = (uint32_t)sends;
        set->task_lines = sent > received ? sent : received;
        code = wm_halo_upload(set, making->halo->device, tasks, count, err);
    }
    free(tasks);
    return code;
}

int
wm_halo_make_lines(wm_halo_making_t *making, bool *made, wm_error_t *err)
{
    int code = memory_serves(making) ? 0 : memory_grow(making, made, err);
    if (code < 0 || !*made)
        return code;
    wm_halo_count_bytes(making);
    wm_halo_fill_own(making);
    return make_tasks(making, err);
}

// SPDX-License-Identifier: BSD-3-Clause
// The tasks of a set. An exchange is one list: from the own edges into the
// neighbours' ghosts. A reduction first copies the neighbours' ghosts into
// memory of its own, and then adds them to the own edges in phases. Edges of
// one phase share no element, so that the order in which an element is changed
// is that of the directions, always.
#include "comm/rma/halo_making.h"

#include <stdlib.h>
#include <string.h>

#define LEAST_UNITS 1024 // of a task: a thread has two
#define SHORT 8          // times shorter than the others: a block does several
#define MOST_UNITS (UINT32_MAX / 4)
#define ALIGNED 256

typedef struct {
    wm_layout_t layout;
    uint64_t units;
    uint32_t peer;
    int direction;
    int list; // of tasks
} copy_t;

// The copies of a set that is being made.
typedef struct {
    wm_halo_making_t *making;
    copy_t *copies;
    int count;
    int lists;
    // Of a reduction, by direction and field.
    int phases[WM_HALO_DIRECTIONS][WM_HALO_FIELDS]; // -1: no copy
    size_t at[WM_HALO_DIRECTIONS][WM_HALO_FIELDS];  // in the memory
    size_t nbytes; // of the neighbours' ghosts
} cutter_t;

static int
out_of_memory(wm_error_t *err)
{
    return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
}

void
wm_halo_box_array(const wm_halo_record_t *record, const wm_halo_shape_t *shape,
                  char *base, const wm_halo_box_t *box, wm_array_t *array)
{
    array->storage = NULL;
    array->data = base;
    array->dtype = (wm_dtype_t)record->dtype;
    array->ndim = shape->ndim + record->inner_ndim;
    for (int d = 0; d < shape->ndim; ++d) {
        array->data += box->from[d] * record->strides[d];
        array->shape[d] = box->extent[d];
        array->strides[d] = record->strides[d];
    }
    for (int d = 0; d < record->inner_ndim; ++d) {
        array->shape[shape->ndim + d] = record->inner[d];
        array->strides[shape->ndim + d] = record->inner_strides[d];
    }
}

size_t
wm_halo_box_bytes(const wm_halo_record_t *record, const wm_halo_box_t *box)
{
    size_t nbytes = wm_dtype_info((wm_dtype_t)record->dtype)->itemsize;
    for (int d = 0; d < WM_HALO_DIMS; ++d)
        nbytes *= (size_t)box->extent[d];
    for (int d = 0; d < record->inner_ndim; ++d)
        nbytes *= (size_t)record->inner[d];
    return nbytes;
}

// Describes memory of ours that holds a box of a field without gaps.
static void
packed_array(const wm_halo_record_t *record, const wm_halo_shape_t *shape,
             char *base, const wm_halo_box_t *box, wm_array_t *array)
{
    int64_t stride = wm_dtype_info((wm_dtype_t)record->dtype)->itemsize;
    wm_halo_box_array(record, shape, base, box, array);
    array->data = base;
    for (int d = array->ndim - 1; d >= 0; --d) {
        array->strides[d] = stride;
        stride *= array->shape[d];
    }
}

// Finds the edge in a direction, and the neighbour's ghosts there. Returns
// false if there are none.
static bool
find_both(const wm_halo_making_t *making, int field, int direction,
          wm_halo_box_t *edge, wm_halo_box_t *ghosts)
{
    const wm_halo_shape_t *shape = &making->halo->shape;
    int rank = making->halo->comm->rank;
    int neighbor = wm_halo_neighbor(shape, rank, direction);
    return neighbor >= 0
           && wm_halo_edge(shape, rank,
                           &wm_halo_record(making, rank, field)->extents,
                           direction, edge)
           && wm_halo_ghosts(shape, neighbor,
                             &wm_halo_record(making, neighbor, field)->extents,
                             wm_halo_back(direction), ghosts);
}

static uint32_t
peer_index(const wm_halo_t *halo, int rank)
{
    for (int i = 0; i < halo->peer_count; ++i)
        if (halo->peers[i] == rank)
            return (uint32_t)i;
    return WM_HALO_SELF;
}

static size_t
edge_bytes(const wm_halo_making_t *making, int direction, int field)
{
    wm_halo_box_t edge, ghosts;
    return find_both(making, field, direction, &edge, &ghosts)
               ? wm_halo_box_bytes(
                   wm_halo_record(making, making->halo->comm->rank, field),
                   &edge)
               : 0;
}

void
wm_halo_count_bytes(wm_halo_making_t *making)
{
    const wm_halo_t *halo = making->halo;
    wm_halo_set_t *set = making->set;
    for (int at = 0; at < WM_HALO_DIRECTIONS; ++at) {
        uint32_t peer = peer_index(
            halo, wm_halo_neighbor(&halo->shape, halo->comm->rank, at));
        for (int i = 0; i < making->count; ++i) {
            size_t nbytes = edge_bytes(making, at, i);
            set->nbytes += nbytes;
            if (peer != WM_HALO_SELF)
                set->peer_bytes[peer] += nbytes;
        }
    }
}

static void
add_copy(cutter_t *cutter, int direction, int list, const wm_array_t *dst,
         const wm_array_t *src)
{
    const wm_halo_t *halo = cutter->making->halo;
    copy_t *copy = &cutter->copies[cutter->count++];
    int neighbor = wm_halo_neighbor(&halo->shape, halo->comm->rank, direction);
    copy->direction = direction;
    copy->list = list;
    copy->peer = peer_index(halo, neighbor);
    wm_layout_init(&copy->layout, dst, src);
    copy->units = wm_halo_units(&copy->layout);
}

static void
add_exchange(cutter_t *cutter, int direction, int field)
{
    const wm_halo_making_t *making = cutter->making;
    const wm_halo_shape_t *shape = &making->halo->shape;
    int rank = making->halo->comm->rank;
    wm_halo_box_t edge, ghosts;
    wm_array_t src, dst;
    if (!find_both(making, field, direction, &edge, &ghosts))
        return;
    wm_halo_box_array(wm_halo_record(making, rank, field), shape,
                      making->fields[field].array->data, &edge, &src);
    wm_halo_box_array(wm_halo_record(making,
                                     wm_halo_neighbor(shape, rank, direction),
                                     field),
                      shape, making->bases[direction][field], &ghosts, &dst);
    add_copy(cutter, direction, 0, &dst, &src);
}

// --- reductions -----------------------------------------------------------

static bool
share_elements(const wm_halo_box_t *one, const wm_halo_box_t *other)
{
    bool share = true;
    for (int d = 0; d < WM_HALO_DIMS; ++d)
        share = share && one->from[d] < other->from[d] + other->extent[d]
                && other->from[d] < one->from[d] + one->extent[d];
    return share;
}

// Finds the phase of an edge: behind those of earlier directions that share an
// element with it.
static int
find_phase(const cutter_t *cutter, int direction, int field)
{
    wm_halo_box_t edge, earlier, ghosts;
    int phase = 0;
    if (!find_both(cutter->making, field, direction, &edge, &ghosts))
        return -1;
    for (int at = 0; at < direction; ++at)
        if (cutter->phases[at][field] >= phase
            && find_both(cutter->making, field, at, &earlier, &ghosts)
            && share_elements(&edge, &earlier))
            phase = cutter->phases[at][field] + 1;
    return phase;
}

// Gives each edge of a phase its memory, those of a field side by side.
static void
place_phase(cutter_t *cutter, int phase, int field, wm_halo_sum_t *sum)
{
    const wm_halo_making_t *making = cutter->making;
    const wm_halo_record_t *record = wm_halo_record(
        making, making->halo->comm->rank, field);
    size_t begin = (cutter->nbytes + ALIGNED - 1) / ALIGNED * ALIGNED;
    cutter->nbytes = begin;
    for (int at = 0; at < WM_HALO_DIRECTIONS; ++at)
        if (cutter->phases[at][field] == phase) {
            cutter->at[at][field] = cutter->nbytes;
            cutter->nbytes += edge_bytes(making, at, field);
        }
    sum->type = (wm_reduce_type_t)record->dtype;
    sum->at = begin;
    sum->count = (cutter->nbytes - begin) / wm_reduce_size(sum->type);
}

static int
place_all(cutter_t *cutter, wm_error_t *err)
{
    wm_halo_making_t *making = cutter->making;
    wm_halo_set_t *set = making->set;
    int phases = 0;
    for (int i = 0; i < making->count; ++i)
        for (int at = 0; at < WM_HALO_DIRECTIONS; ++at) {
            int phase = find_phase(cutter, at, i);
            cutter->phases[at][i] = phase;
            phases = phase >= phases ? phase + 1 : phases;
        }
    size_t sums = (size_t)phases * (size_t)making->count;
    set->sums = calloc(sums > 0 ? sums : 1, sizeof *set->sums);
    if (set->sums == NULL)
        return out_of_memory(err);
    set->phases = phases;
    for (int phase = 0; phase < phases; ++phase)
        for (int i = 0; i < making->count; ++i)
            place_phase(cutter, phase, i,
                        &set->sums[phase * making->count + i]);
    cutter->nbytes = (cutter->nbytes + ALIGNED - 1) / ALIGNED * ALIGNED;
    set->half = cutter->nbytes;
    cutter->lists = 1 + 2 * phases;
    return cutter->nbytes == 0
               ? 0
               : wm_block_alloc(making->halo->device, 2 * cutter->nbytes,
                                &set->memory, err);
}

// Adds the copies of a reduction: the neighbour's ghosts into the first half
// of the memory; the own edge into the second half and back.
static void
add_reduction(cutter_t *cutter, int direction, int field)
{
    const wm_halo_making_t *making = cutter->making;
    const wm_halo_shape_t *shape = &making->halo->shape;
    int rank = making->halo->comm->rank;
    int list = 1 + 2 * cutter->phases[direction][field];
    wm_halo_box_t edge, ghosts;
    wm_array_t field_array, packed;
    if (!find_both(making, field, direction, &edge, &ghosts))
        return;
    const wm_halo_record_t *own = wm_halo_record(making, rank, field);
    int neighbor = wm_halo_neighbor(shape, rank, direction);
    char *memory = (char *)wm_block_pointer(making->set->memory)
                   + cutter->at[direction][field];
    wm_halo_box_array(wm_halo_record(making, neighbor, field), shape,
                      making->bases[direction][field], &ghosts, &field_array);
    packed_array(own, shape, memory, &edge, &packed);
    add_copy(cutter, direction, 0, &packed, &field_array);
    wm_halo_box_array(own, shape, making->fields[field].array->data, &edge,
                      &field_array);
    packed_array(own, shape, memory + cutter->nbytes, &edge, &packed);
    add_copy(cutter, direction, list, &packed, &field_array);
    add_copy(cutter, direction, list + 1, &field_array, &packed);
}

// --- lists of tasks -------------------------------------------------------

// The longest come first.
static int
compare_lengths(const void *one, const void *other)
{
    uint64_t a = ((const copy_t *)one)->units,
             b = ((const copy_t *)other)->units;
    return a < b ? 1 : a > b ? -1 : 0;
}

static int
find_copies(cutter_t *cutter, wm_error_t *err)
{
    wm_halo_making_t *making = cutter->making;
    bool reduces = making->op != WM_HALO_EXCHANGE;
    size_t most = (size_t)WM_HALO_DIRECTIONS * (size_t)making->count * 3;
    cutter->copies = calloc(most, sizeof *cutter->copies);
    cutter->lists = 1;
    int code = cutter->copies == NULL ? out_of_memory(err)
               : reduces              ? place_all(cutter, err)
                                      : 0;
    for (int at = 0; at < WM_HALO_DIRECTIONS && code == 0; ++at)
        for (int i = 0; i < making->count; ++i)
            if (reduces)
                add_reduction(cutter, at, i);
            else
                add_exchange(cutter, at, i);
    if (code == 0)
        qsort(cutter->copies, (size_t)cutter->count, sizeof *cutter->copies,
              compare_lengths);
    return code;
}

// Cuts the copies of a list, the longest first, into tasks of at most so many
// units; `tasks` NULL: only counts them.
static size_t
cut_list(const cutter_t *cutter, int list, uint64_t units,
         wm_halo_task_t *tasks)
{
    wm_halo_head_t *own = &cutter->making->own;
    size_t made = 0;
    for (int at = 0; at < WM_HALO_DIRECTIONS && list == 0; ++at)
        own->tasks[at] = 0;
    for (int i = 0; i < cutter->count; ++i) {
        const copy_t *copy = &cutter->copies[i];
        size_t before = made;
        if (copy->list != list)
            continue;
        made += wm_halo_cut(&copy->layout, copy->peer, units,
                            tasks != NULL ? tasks + made : NULL);
        if (list == 0)
            own->tasks[copy->direction] += (uint32_t)(made - before);
    }
    return made;
}

// Counts the tasks of a list that are not short.
static size_t
count_long(const cutter_t *cutter, int list, uint64_t units)
{
    size_t count = 0;
    for (int i = 0; i < cutter->count; ++i)
        if (cutter->copies[i].list == list
            && cutter->copies[i].units * SHORT > units)
            count += wm_halo_cut(&cutter->copies[i].layout, 0, units, NULL);
    return count;
}

// Finds how long tasks are, so that each block has one if possible, and
// several short ones.
static uint64_t
find_units(const cutter_t *cutter, int list)
{
    wm_halo_set_t *set = cutter->making->set;
    uint64_t all = 0, longest = 1, blocks = set->most;
    for (int i = 0; i < cutter->count; ++i) {
        uint64_t units = cutter->copies[i].units;
        if (cutter->copies[i].list != list)
            continue;
        all += units;
        longest = units > longest ? units : longest;
    }
    blocks = blocks > 1 ? blocks - 1 : 1; // the first one waits
    uint64_t units = all / blocks;
    units = units > LEAST_UNITS ? units : LEAST_UNITS;
    while (units < longest && units < MOST_UNITS
           && count_long(cutter, list, units) > blocks)
        units += units / 8 + 1;
    return units < MOST_UNITS ? units : MOST_UNITS;
}

int
wm_halo_upload(wm_halo_set_t *set, int device, const wm_halo_task_t *tasks,
               size_t count, wm_error_t *err)
{
    size_t nbytes = count * sizeof *tasks;
    int code = wm_block_alloc(device, nbytes, &set->table, err);
    if (code == 0)
        code = wm_memory_copy_now(device, wm_block_pointer(set->table), tasks,
                                  nbytes, err);
    if (code == 0)
        set->params.tasks = wm_block_pointer(set->table);
    return code;
}

// Cuts all lists. With `tasks` NULL, finds only where each one begins.
static size_t
cut_all(const cutter_t *cutter, wm_halo_task_t *tasks)
{
    wm_halo_set_t *set = cutter->making->set;
    size_t made = 0;
    for (int list = 0; list < cutter->lists; ++list) {
        uint64_t units = find_units(cutter, list);
        set->begins[list] = (uint32_t)made;
        made += cut_list(cutter, list, units,
                         tasks != NULL ? tasks + made : NULL);
    }
    set->begins[cutter->lists] = (uint32_t)made;
    return made;
}

static int
cut_and_upload(const cutter_t *cutter, wm_error_t *err)
{
    wm_halo_set_t *set = cutter->making->set;
    set->begins = calloc((size_t)cutter->lists + 1, sizeof *set->begins);
    if (set->begins == NULL)
        return out_of_memory(err);
    size_t count = cut_all(cutter, NULL);
    if (count == 0)
        return 0;
    wm_halo_task_t *tasks = calloc(count, sizeof *tasks);
    if (tasks == NULL)
        return out_of_memory(err);
    (void)cut_all(cutter, tasks);
    int code = wm_halo_upload(set, cutter->making->halo->device, tasks, count,
                              err);
    free(tasks);
    return code;
}

int
wm_halo_make_tasks(wm_halo_making_t *making, wm_error_t *err)
{
    cutter_t *cutter = calloc(1, sizeof *cutter);
    if (cutter == NULL)
        return out_of_memory(err);
    cutter->making = making;
    int code = find_copies(cutter, err);
    if (code == 0)
        code = cut_and_upload(cutter, err);
    wm_halo_count_bytes(making);
    making->set->params.waits_first = making->op != WM_HALO_EXCHANGE;
    free(cutter->copies);
    free(cutter);
    return code;
}

void
wm_halo_fill_own(wm_halo_making_t *making)
{
    const wm_halo_t *halo = making->halo;
    wm_halo_params_t *params = &making->set->params;
    params->rank = (uint32_t)halo->comm->rank;
    params->size = (uint32_t)halo->comm->size;
    params->memory = halo->counters->ranks[halo->comm->rank].memory;
}

void
wm_halo_fill_peers(wm_halo_making_t *making)
{
    const wm_halo_t *halo = making->halo;
    wm_halo_params_t *params = &making->set->params;
    if (halo->counters == NULL || halo->epochs != NULL)
        return;
    wm_halo_fill_own(making);
    params->peer_count = (uint32_t)halo->peer_count;
    params->unheard = UINT32_MAX;
    for (int i = 0; i < halo->peer_count; ++i)
        params->peers[i] = (wm_halo_peer_t){
            .memory = halo->counters->ranks[halo->peers[i]].memory,
            .rank = (uint32_t)halo->peers[i],
        };
    for (int at = 0; at < WM_HALO_DIRECTIONS; ++at) {
        int neighbor = wm_halo_neighbor(&halo->shape, halo->comm->rank, at);
        uint32_t peer = neighbor < 0 ? WM_HALO_SELF
                                     : peer_index(halo, neighbor);
        if (peer == WM_HALO_SELF)
            continue;
        params->peers[peer].arrivals +=
            making->heads[neighbor].tasks[wm_halo_back(at)];
        if (making->own.tasks[at] > 0)
            params->unheard &= ~(1u << peer);
    }
}

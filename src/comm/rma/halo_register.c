// SPDX-License-Identifier: BSD-3-Clause
// The making of a set of fields: each rank tells all others what its fields
// are, so that all find alike if they fit, and maps those of its neighbours.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/coll/direct/coll_gather.h"
#include "comm/engine/engine.h"
#include "comm/rma/halo_state.h"

#define LEAST_UNITS 4096 // of a task: a thread has eight

enum {
    ON_GPU = 1,  // all fields are on this rank's device
    REACHED = 2, // they can be exported, and the neighbours' are mapped
};

// The state of a rank in the making of a set.
typedef struct {
    int code, detail, count, device;
    unsigned flags;
    uint32_t tasks[WM_HALO_DIRECTIONS]; // toward the neighbour there
    char text[260];
} head_t;

// A field, as its rank tells it.
typedef struct {
    wm_rkey_t place;
    int32_t dtype, inner_ndim;
    wm_halo_extents_t extents;
    int64_t strides[WM_HALO_DIMS];
    int64_t inner[WM_HALO_INNER], inner_strides[WM_HALO_INNER];
} record_t;

typedef struct {
    wm_halo_t *halo;
    const wm_halo_field_t *fields;
    int count;
    head_t own, *heads; // heads: by rank
    record_t *records;  // by rank and field, and then this rank's own
    record_t *gathered; // one of each rank
    wm_halo_set_t *set;
    char *bases[WM_HALO_DIRECTIONS][WM_HALO_FIELDS]; // the neighbour's fields
} making_t;

static int
out_of_memory(wm_error_t *err)
{
    return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
}

// --- what this rank tells -------------------------------------------------

static int
check_array(const wm_halo_t *halo, int field, const wm_array_t *array,
            wm_error_t *err)
{
    int ndim = halo->shape.ndim;
    if (array->ndim < ndim || array->ndim > ndim + WM_HALO_INNER)
        return wm_error_set(
            err, WM_ERR_VALUE, 0,
            "fields[%d] has %d dimensions: its first %d are those of the "
            "cartesian communicator, and at most %d more are parts of an "
            "element",
            field, array->ndim, ndim, WM_HALO_INNER);
    for (int d = 0; d < array->ndim; ++d)
        if (array->shape[d] > 1 && array->strides[d] == 0)
            return wm_error_set(err, WM_ERR_VALUE, 0,
                                "fields[%d]: dimension %d repeats one element "
                                "(a stride of 0): give a copy of the array",
                                field, d);
    for (int d = ndim; d < array->ndim; ++d)
        if (array->shape[d] == 0)
            return wm_error_set(err, WM_ERR_VALUE, 0,
                                "fields[%d] has no elements", field);
    return 0;
}

// Writes the extents. Without a told block all fields have those of the first.
static int
find_extents(const making_t *making, int field, wm_halo_extents_t *extents,
             wm_error_t *err)
{
    const wm_halo_t *halo = making->halo;
    const wm_array_t *array = making->fields[field].array;
    for (int d = 0; d < WM_HALO_DIMS; ++d) {
        extents->cells[d] = 1;
        extents->stagger[d] = 0;
        if (d >= halo->shape.ndim)
            continue;
        extents->cells[d] = array->shape[d];
        int64_t block = halo->told ? halo->block[d]
                                   : making->fields[0].array->shape[d];
        int64_t more = array->shape[d] - block;
        if (!halo->told && more != 0)
            return wm_error_set(
                err, WM_ERR_VALUE, 0,
                "fields[%d] has %" PRId64 " cells in dimension %d, and "
                "fields[0] %" PRId64 ": for staggered fields tell the shape "
                "of the block, wm.Halo(cart, shape=...)",
                field, array->shape[d], d, block);
        if (more < -1 || more > 1)
            return wm_error_set(err, WM_ERR_VALUE, 0,
                                "fields[%d] has %" PRId64
                                " cells in dimension %d, where the "
                                "block (`shape`, ghosts included) has %" PRId64
                                ": a staggered field differs by 1 at most",
                                field, array->shape[d], d, block);
        extents->stagger[d] = more;
    }
    return wm_halo_check_width(&halo->shape, halo->comm->rank, field, extents,
                               err);
}

static int
record_make(making_t *making, int field, record_t *record, wm_error_t *err)
{
    const wm_halo_t *halo = making->halo;
    const wm_array_t *array = making->fields[field].array;
    const wm_pointer_t *memory = making->fields[field].memory;
    int ndim = halo->shape.ndim;
    int code = check_array(halo, field, array, err);
    if (code == 0)
        code = find_extents(making, field, &record->extents, err);
    if (code < 0)
        return code;
    record->dtype = (int32_t)array->dtype;
    record->inner_ndim = array->ndim - ndim;
    for (int d = 0; d < array->ndim; ++d)
        if (d < ndim)
            record->strides[d] = array->strides[d];
        else {
            record->inner[d - ndim] = array->shape[d];
            record->inner_strides[d - ndim] = array->strides[d];
        }
    if (!wm_memory_on_device(memory)
        || (field > 0 && memory->device != making->own.device))
        making->own.flags &= ~(unsigned)ON_GPU;
    else {
        making->own.device = memory->device;
        wm_engine_lock();
        if (wm_rkey_export(array->data, memory, &record->place, NULL) < 0)
            making->own.flags &= ~(unsigned)REACHED;
        wm_engine_unlock();
    }
    return 0;
}

static int
tell_own(making_t *making, wm_error_t *err)
{
    int size = making->halo->comm->size;
    making->own = (head_t){.device = -1, .flags = ON_GPU | REACHED};
    making->own.count = making->count;
    making->heads = calloc((size_t)size, sizeof *making->heads);
    making->records = calloc((size_t)(size + 1) * WM_HALO_FIELDS,
                             sizeof *making->records);
    making->gathered = calloc((size_t)size, sizeof *making->gathered);
    if (making->heads == NULL || making->records == NULL
        || making->gathered == NULL)
        return out_of_memory(err);
    record_t *own = making->records + (ptrdiff_t)size * WM_HALO_FIELDS;
    int code = 0;
    for (int i = 0; i < making->count && code == 0; ++i)
        code = record_make(making, i, &own[i], err);
    if (code == 0 && making->halo->device >= 0
        && (making->own.flags & ON_GPU) != 0
        && making->own.device != making->halo->device)
        code = wm_error_set(err, WM_ERR_VALUE, 0,
                            "fields[0] is on cuda:%d, and this halo has "
                            "exchanged fields on cuda:%d: make another "
                            "wm.Halo for this device",
                            making->own.device, making->halo->device);
    return code;
}

// --- what all ranks tell --------------------------------------------------

// Gathers the heads. Raises on all ranks if one has failed.
static int
gather_heads(making_t *making, int code, wm_error_t *err)
{
    wm_comm_t *comm = making->halo->comm;
    head_t *own = &making->own;
    own->code = code;
    if (code < 0) {
        own->detail = err->detail;
        wm_error_cut(err->text, sizeof own->text, own->text);
    }
    if (making->heads == NULL) { // the others are told, and no more
        head_t *heads = calloc((size_t)comm->size, sizeof *heads);
        if (heads != NULL
            && wm_coll_gather(comm, own, sizeof *own, heads, err))
            code = err->code;
        free(heads);
        return code;
    }
    int gathered = wm_coll_gather(comm, own, sizeof *own, making->heads, err);
    if (gathered < 0)
        return gathered;
    for (int rank = 0; rank < comm->size; ++rank) {
        const head_t *head = &making->heads[rank];
        if (head->code >= 0)
            continue;
        if (rank == comm->rank)
            return wm_error_set(err, own->code, own->detail, "%s", own->text);
        return wm_error_set(err, head->code, head->detail, "rank %d: %.*s",
                            rank, (int)sizeof head->text - 1, head->text);
    }
    return 0;
}

static int
gather_records(making_t *making, wm_error_t *err)
{
    wm_comm_t *comm = making->halo->comm;
    int count = making->count, code = 0;
    const record_t *own = making->records
                          + (ptrdiff_t)comm->size * WM_HALO_FIELDS;
    record_t *all = making->gathered;
    for (int rank = 0; rank < comm->size && code == 0; ++rank)
        if (making->heads[rank].count != count)
            code = wm_error_set(err, WM_ERR_VALUE, 0,
                                "fields: rank %d exchanges %d, and rank %d "
                                "%d: all ranks give the same fields, in the "
                                "same order",
                                comm->rank, count, rank,
                                making->heads[rank].count);
    for (int i = 0; i < count && code == 0; ++i) {
        code = wm_coll_gather(comm, &own[i], sizeof *own, all, err);
        for (int rank = 0; rank < comm->size && code == 0; ++rank)
            making->records[(ptrdiff_t)rank * WM_HALO_FIELDS + i] = all[rank];
    }
    return code;
}

static const record_t *
record_of(const making_t *making, int rank, int field)
{
    return &making->records[(ptrdiff_t)rank * WM_HALO_FIELDS + field];
}

static bool
are_alike(const record_t *one, const record_t *other)
{
    return one->dtype == other->dtype && one->inner_ndim == other->inner_ndim
           && memcmp(one->inner, other->inner, sizeof one->inner) == 0
           && memcmp(one->extents.stagger, other->extents.stagger,
                     sizeof one->extents.stagger)
                  == 0;
}

static int
check_pair(const making_t *making, int field, int rank, int direction,
           wm_error_t *err)
{
    const wm_halo_shape_t *shape = &making->halo->shape;
    int neighbor = wm_halo_neighbor(shape, rank, direction);
    wm_halo_box_t edge, ghosts;
    if (neighbor < 0)
        return 0;
    const record_t *one = record_of(making, rank, field),
                   *other = record_of(making, neighbor, field);
    if (!are_alike(one, other))
        return wm_error_set(
            err, WM_ERR_TYPE, 0,
            "fields[%d]: rank %d and its neighbour, rank %d, have elements of "
            "different types or dimensions (%s and %s), or are staggered "
            "differently: give both the same field",
            field, rank, neighbor, wm_dtype_info((wm_dtype_t)one->dtype)->name,
            wm_dtype_info((wm_dtype_t)other->dtype)->name);
    bool sends = wm_halo_edge(shape, rank, &one->extents, direction, &edge);
    bool gets = wm_halo_ghosts(shape, neighbor, &other->extents,
                               wm_halo_back(direction), &ghosts);
    if (sends == gets
        && (!sends
            || memcmp(edge.extent, ghosts.extent, sizeof edge.extent) == 0))
        return 0;
    const int64_t *a = one->extents.cells, *b = other->extents.cells;
    return wm_error_set(
        err, WM_ERR_VALUE, 0,
        "fields[%d]: the blocks of rank %d, (%" PRId64 ", %" PRId64
        ", %" PRId64 ") cells, and of its neighbour, rank %d, (%" PRId64
        ", %" PRId64 ", %" PRId64 "), do not fit: neighbours have equal "
        "extents in the dimensions in which they are not neighbours",
        field, rank, a[0], a[1], a[2], neighbor, b[0], b[1], b[2]);
}

// All ranks compare all, and so find the same error.
static int
check_fit(const making_t *making, wm_error_t *err)
{
    int code = 0;
    for (int rank = 0; rank < making->halo->comm->size; ++rank)
        for (int i = 0; i < making->count && code == 0; ++i)
            for (int at = 0; at < WM_HALO_DIRECTIONS && code == 0; ++at)
                code = check_pair(making, i, rank, at, err);
    return code;
}

// --- the neighbours' memory -----------------------------------------------

// Returns true if the published field lies in its allocation. The numbers are
// another rank's, and may be anything.
static bool
is_within(const record_t *record)
{
    __int128 low = 0,
             high = wm_dtype_info((wm_dtype_t)record->dtype)->itemsize;
    for (int d = 0; d < WM_HALO_DIMS + WM_HALO_INNER; ++d) {
        bool inner = d >= WM_HALO_DIMS;
        int64_t extent = inner ? record->inner[d - WM_HALO_DIMS]
                               : record->extents.cells[d];
        int64_t stride = inner ? record->inner_strides[d - WM_HALO_DIMS]
                               : record->strides[d];
        __int128 reach = (__int128)(extent - 1) * stride;
        if (extent < 1) // an inner dimension that is not there
            continue;
        *(reach < 0 ? &low : &high) += reach;
    }
    const wm_rkey_t *place = &record->place;
    __int128 at = (__int128)place->address - place->base;
    return at >= 0 && at + low >= 0 && at + high <= (__int128)place->size;
}

// Maps a field of a neighbour. Sets *reached to false if that is impossible.
static int
map_field(making_t *making, int neighbor, int field, bool *reached,
          char **base, wm_error_t *err)
{
    wm_halo_set_t *set = making->set;
    wm_comm_t *comm = making->halo->comm;
    const record_t *record = record_of(making, neighbor, field);
    wm_mapping_t *mapping;
    if (!is_within(record))
        return wm_comm_damaged(comm, neighbor, err);
    wm_engine_lock();
    int code = wm_mapping_reach(comm->peers[neighbor], &record->place,
                                making->halo->device, &mapping, err);
    if (code == 0) {
        set->mappings[set->mapped++] = mapping;
        *base = wm_mapping_at(mapping, &record->place);
    }
    wm_engine_unlock();
    if (code < 0 && wm_mapping_is_refused(code, err)) {
        *reached = false;
        code = 0;
    }
    return code;
}

static int
map_all(making_t *making, bool *reached, wm_error_t *err)
{
    const wm_halo_t *halo = making->halo;
    int rank = halo->comm->rank, code = 0;
    size_t most = (size_t)WM_HALO_DIRECTIONS * (size_t)making->count;
    making->set->mappings = calloc(most, sizeof(wm_mapping_t *));
    if (making->set->mappings == NULL)
        return out_of_memory(err);
    for (int at = 0; at < WM_HALO_DIRECTIONS; ++at) {
        int neighbor = wm_halo_neighbor(&halo->shape, rank, at);
        for (int i = 0; i < making->count && code == 0; ++i)
            if (neighbor == rank)
                making->bases[at][i] = making->fields[i].array->data;
            else if (neighbor >= 0 && *reached)
                code = map_field(making, neighbor, i, reached,
                                 &making->bases[at][i], err);
    }
    return code;
}

// --- the tasks ------------------------------------------------------------

// Describes a box of a field as an array.
static void
box_array(const record_t *record, const wm_halo_shape_t *shape, char *base,
          const wm_halo_box_t *box, wm_array_t *array)
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

// Finds the copy of an edge to the neighbour's ghosts. Returns false if there
// is none.
static bool
find_copy(const making_t *making, int field, int direction,
          wm_layout_t *layout)
{
    const wm_halo_shape_t *shape = &making->halo->shape;
    int rank = making->halo->comm->rank;
    int neighbor = wm_halo_neighbor(shape, rank, direction);
    wm_halo_box_t edge, ghosts;
    wm_array_t src, dst;
    if (neighbor < 0)
        return false;
    const record_t *own = record_of(making, rank, field),
                   *its = record_of(making, neighbor, field);
    if (!wm_halo_edge(shape, rank, &own->extents, direction, &edge)
        || !wm_halo_ghosts(shape, neighbor, &its->extents,
                           wm_halo_back(direction), &ghosts))
        return false;
    box_array(own, shape, making->fields[field].array->data, &edge, &src);
    box_array(its, shape, making->bases[direction][field], &ghosts, &dst);
    wm_layout_init(layout, &dst, &src);
    return true;
}

static uint32_t
peer_index(const wm_halo_t *halo, int rank)
{
    for (int i = 0; i < halo->peer_count; ++i)
        if (halo->peers[i] == rank)
            return (uint32_t)i;
    return WM_HALO_SELF;
}

// Cuts all copies into tasks of at most so many units; `tasks` NULL: only
// counts them.
static size_t
cut_all(making_t *making, uint64_t units, wm_halo_task_t *tasks)
{
    const wm_halo_t *halo = making->halo;
    wm_layout_t layout;
    size_t made = 0;
    for (int at = 0; at < WM_HALO_DIRECTIONS; ++at) {
        int neighbor = wm_halo_neighbor(&halo->shape, halo->comm->rank, at);
        size_t before = made;
        for (int i = 0; i < making->count; ++i)
            if (find_copy(making, i, at, &layout))
                made += wm_halo_cut(&layout, peer_index(halo, neighbor), units,
                                    tasks != NULL ? tasks + made : NULL);
        making->own.tasks[at] = (uint32_t)(made - before);
    }
    return made;
}

// Finds how long tasks are, so that each block has one if possible.
static uint64_t
find_units(making_t *making)
{
    uint64_t all = 0, longest = 1, blocks = making->set->most;
    wm_layout_t layout;
    for (int at = 0; at < WM_HALO_DIRECTIONS; ++at)
        for (int i = 0; i < making->count; ++i)
            if (find_copy(making, i, at, &layout)) {
                uint64_t units = wm_halo_units(&layout);
                all += units;
                longest = units > longest ? units : longest;
                making->set->nbytes += units
                                       * (uint64_t)wm_layout_unit(&layout);
            }
    blocks = blocks > 1 ? blocks - 1 : 1; // the first one waits
    uint64_t units = all / blocks;
    units = units > LEAST_UNITS ? units : LEAST_UNITS;
    while (units < longest && units < UINT32_MAX / 4
           && cut_all(making, units, NULL) > blocks)
        units += units / 8 + 1;
    return units < UINT32_MAX / 4 ? units : UINT32_MAX / 4;
}

static int
upload(wm_halo_set_t *set, int device, const wm_halo_task_t *tasks,
       size_t nbytes, wm_error_t *err)
{
    CUstream stream;
    int code = wm_block_alloc(device, nbytes, &set->table, err);
    if (code == 0)
        code = wm_stream_acquire(device, &stream, err);
    if (code < 0)
        return code;
    code = wm_memory_copy(device, wm_block_pointer(set->table), tasks, nbytes,
                          stream, err);
    if (code == 0)
        code = wm_stream_synchronize(device, stream, err);
    wm_stream_release(device, stream);
    return code;
}

static int
make_tasks(making_t *making, wm_error_t *err)
{
    wm_halo_set_t *set = making->set;
    uint64_t units = find_units(making);
    size_t count = cut_all(making, units, NULL);
    if (count == 0)
        return 0;
    wm_halo_task_t *tasks = calloc(count, sizeof *tasks);
    if (tasks == NULL)
        return out_of_memory(err);
    (void)cut_all(making, units, tasks);
    int code = upload(set, making->halo->device, tasks, count * sizeof *tasks,
                      err);
    free(tasks);
    if (code < 0)
        return code;
    set->params.tasks = wm_block_pointer(set->table);
    set->params.task_count = (uint32_t)count;
    return 0;
}

// Finds how many blocks a kernel may have. Where it waits for the kernels of
// other processes, all of them run at once.
static int
find_most(const wm_halo_t *halo, wm_halo_set_t *set, wm_error_t *err)
{
    const wm_device_t *facts;
    int code = wm_device_get(halo->device, &facts, err);
    if (code < 0)
        return code;
    bool waits = halo->counters != NULL && halo->epochs == NULL;
    set->most = (uint32_t)(waits ? halo->counters->multiprocessors
                                 : 2 * facts->multiprocessors);
    return 0;
}

static int
map_and_cut(making_t *making, wm_error_t *err)
{
    bool reached = true;
    int code = find_most(making->halo, making->set, err);
    if (code == 0)
        code = map_all(making, &reached, err);
    if (!reached)
        making->own.flags &= ~(unsigned)REACHED;
    else if (code == 0)
        code = make_tasks(making, err);
    return code;
}

// Fills the rows of the neighbours. All have told how many tasks they have.
static void
fill_peers(making_t *making)
{
    const wm_halo_t *halo = making->halo;
    wm_halo_params_t *params = &making->set->params;
    if (halo->counters == NULL || halo->epochs != NULL)
        return;
    params->rank = (uint32_t)halo->comm->rank;
    params->size = (uint32_t)halo->comm->size;
    params->memory = halo->counters->ranks[halo->comm->rank].memory;
    params->peer_count = (uint32_t)halo->peer_count;
    for (int i = 0; i < halo->peer_count; ++i)
        params->peers[i] = (wm_halo_peer_t){
            .memory = halo->counters->ranks[halo->peers[i]].memory,
            .rank = (uint32_t)halo->peers[i],
        };
    for (int at = 0; at < WM_HALO_DIRECTIONS; ++at) {
        int neighbor = wm_halo_neighbor(&halo->shape, halo->comm->rank, at);
        uint32_t peer = neighbor < 0 ? WM_HALO_SELF
                                     : peer_index(halo, neighbor);
        if (peer != WM_HALO_SELF)
            params->peers[peer].arrivals +=
                making->heads[neighbor].tasks[wm_halo_back(at)];
    }
}

// --- the whole ------------------------------------------------------------

static bool
have_all(const making_t *making, unsigned flags)
{
    bool all = true;
    for (int rank = 0; rank < making->halo->comm->size; ++rank)
        all = all && (making->heads[rank].flags & flags) == flags;
    return all;
}

static int
set_new(making_t *making, wm_error_t *err)
{
    size_t count = (size_t)making->count;
    making->set = calloc(1, sizeof *making->set
                                + count * sizeof making->set->keys[0]);
    if (making->set == NULL)
        return out_of_memory(err);
    making->set->count = making->count;
    for (int i = 0; i < making->count; ++i)
        wm_halo_key_of(&making->fields[i], &making->set->keys[i]);
    return 0;
}

// Makes the set of fields in GPU memory. *reached becomes false on all ranks
// if messages have to serve.
static int
make_on_gpus(making_t *making, bool *reached, wm_error_t *err)
{
    wm_halo_t *halo = making->halo;
    bool unreached = false;
    int code = 0;
    if (halo->device < 0)
        code = wm_halo_open_counters(halo, making->own.device, &unreached,
                                     err);
    *reached = !unreached;
    if (code < 0 || unreached)
        return code;
    code = gather_heads(making, map_and_cut(making, err), err);
    *reached = code == 0 && have_all(making, REACHED);
    if (*reached)
        fill_peers(making);
    return code;
}

static int
make_set(making_t *making, int code, wm_error_t *err)
{
    wm_comm_t *comm = making->halo->comm;
    bool reached;
    if (code == 0)
        code = tell_own(making, err);
    if (code == 0)
        code = set_new(making, err);
    code = gather_heads(making, code, err);
    if (code == 0)
        code = gather_records(making, err);
    if (code == 0)
        code = check_fit(making, err);
    if (code < 0)
        return code;
    reached = have_all(making, ON_GPU | REACHED)
              && (comm->barrier != NULL || comm->size == 1);
    if (reached)
        code = make_on_gpus(making, &reached, err);
    making->set->by_messages = !reached;
    return code;
}

int
wm_halo_register(wm_halo_t *halo, const wm_halo_field_t *fields, int count,
                 int code, wm_halo_set_t **set, wm_error_t *err)
{
    making_t *making = calloc(1, sizeof *making);
    if (making == NULL) // as nothing can be told, the others report the wait
        return out_of_memory(err);
    making->halo = halo;
    making->fields = fields;
    making->count = count;
    code = make_set(making, code, err);
    if (code == 0)
        wm_halo_add_set(halo, *set = making->set);
    else
        wm_halo_set_free(making->set);
    free(making->heads);
    free(making->records);
    free(making->gathered);
    free(making);
    return code;
}

// SPDX-License-Identifier: BSD-3-Clause
// The making of a set of fields: each rank tells all others what its fields
// are, so that all find alike if they fit, and maps those of its neighbours.
#define _POSIX_C_SOURCE 200809L // nanosleep
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/coll/direct/coll_gather.h"
#include "comm/engine/engine.h"
#include "array/strided.h"
#include "comm/rma/halo_making.h"

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
find_extents(const wm_halo_making_t *making, int field,
             wm_halo_extents_t *extents, wm_error_t *err)
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

// Refuses two fields that share memory, which both would write.
static int
check_shared(const wm_halo_making_t *making, int field, wm_error_t *err)
{
    wm_strided_t own, other;
    if (!wm_strided_from_array(&own, making->fields[field].array))
        return 0;
    for (int i = 0; i < field; ++i)
        if (wm_strided_from_array(&other, making->fields[i].array)
            && wm_strided_share(&own, &other))
            return wm_error_set(err, WM_ERR_VALUE, 0,
                                "fields[%d] and fields[%d] share memory: give "
                                "each field once",
                                i, field);
    return 0;
}

static int
record_make(wm_halo_making_t *making, int field, wm_halo_record_t *record,
            wm_error_t *err)
{
    const wm_halo_t *halo = making->halo;
    const wm_array_t *array = making->fields[field].array;
    const wm_pointer_t *memory = making->fields[field].memory;
    int ndim = halo->shape.ndim;
    int code = check_array(halo, field, array, err);
    if (code == 0)
        code = check_shared(making, field, err);
    if (code == 0)
        code = find_extents(making, field, &record->extents, err);
    if (code < 0)
        return code;
    if (making->op >= 0 && making->op < WM_REDUCE_OPS
        && !wm_reduce_takes((wm_reduce_type_t)array->dtype,
                            (wm_reduce_op_t)making->op))
        return wm_error_set(err, WM_ERR_TYPE, 0,
                            "op: MPI does not reduce elements of fields[%d] "
                            "(%s) by this operation",
                            field, wm_dtype_info(array->dtype)->name);
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
        making->own.flags &= ~(unsigned)WM_HALO_ON_GPU;
    else {
        making->own.device = memory->device;
        wm_rkey_set(array->data, memory, &record->place);
        wm_engine_lock();
        if (wm_rkey_export(array->data, memory, &record->place, NULL) < 0)
            making->own.flags &= ~(unsigned)WM_HALO_REACHED;
        wm_engine_unlock();
    }
    return 0;
}

static int
tell_own(wm_halo_making_t *making, wm_error_t *err)
{
    int size = making->halo->comm->size;
    making->own.device = -1;
    making->own.flags = WM_HALO_ON_GPU | WM_HALO_REACHED;
    making->own.number = making->halo->number;
    making->own.count = making->count;
    making->own.shape = making->halo->shape;
    making->heads = calloc((size_t)size, sizeof *making->heads);
    making->records = calloc((size_t)(size + 1) * WM_HALO_FIELDS,
                             sizeof *making->records);
    making->gathered = calloc((size_t)size, sizeof *making->gathered);
    if (making->heads == NULL || making->records == NULL
        || making->gathered == NULL)
        return out_of_memory(err);
    wm_halo_record_t *own = making->records + (ptrdiff_t)size * WM_HALO_FIELDS;
    int code = 0;
    for (int i = 0; i < making->count && code == 0; ++i)
        code = record_make(making, i, &own[i], err);
    if (code == 0 && making->halo->device >= 0
        && (making->own.flags & WM_HALO_ON_GPU) != 0
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
gather_heads(wm_halo_making_t *making, int code, wm_error_t *err)
{
    return wm_coll_exchange(making->halo->comm, WM_HALO_CALL, code,
                            &making->own, sizeof making->own, making->heads,
                            err);
}

static int
gather_records(wm_halo_making_t *making, wm_error_t *err)
{
    wm_comm_t *comm = making->halo->comm;
    int count = making->count, code = 0;
    const wm_halo_record_t *own = making->records
                                  + (ptrdiff_t)comm->size * WM_HALO_FIELDS;
    wm_halo_record_t *all = making->gathered;
    for (int rank = 0; rank < comm->size && code == 0; ++rank)
        if (making->heads[rank].count != count)
            code = wm_error_set(err, WM_ERR_VALUE, 0,
                                "fields: rank %d exchanges %d, and rank %d "
                                "%d: all ranks give the same fields, in the "
                                "same order",
                                comm->rank, count, rank,
                                making->heads[rank].count);
    for (int rank = 0; rank < comm->size && code == 0; ++rank)
        if (making->heads[rank].op != making->own.op)
            code = wm_error_set(err, WM_ERR_VALUE, 0,
                                "op: rank %d gives another operation, or "
                                "makes another call (exchange, plan, reduce), "
                                "than rank %d: all ranks make the same call",
                                rank, comm->rank);
    for (int i = 0; i < count && code == 0; ++i) {
        code = wm_coll_gather(comm, &own[i], sizeof *own, all, err);
        for (int rank = 0; rank < comm->size && code == 0; ++rank)
            making->records[(ptrdiff_t)rank * WM_HALO_FIELDS + i] = all[rank];
    }
    return code;
}

static bool
are_alike(const wm_halo_record_t *one, const wm_halo_record_t *other)
{
    return one->dtype == other->dtype && one->inner_ndim == other->inner_ndim
           && memcmp(one->inner, other->inner, sizeof one->inner) == 0
           && memcmp(one->extents.stagger, other->extents.stagger,
                     sizeof one->extents.stagger)
                  == 0;
}

static int
check_pair(const wm_halo_making_t *making, int field, int rank, int direction,
           wm_error_t *err)
{
    const wm_halo_shape_t *shape = &making->halo->shape;
    int neighbor = wm_halo_neighbor(shape, rank, direction);
    wm_halo_box_t edge, ghosts;
    if (neighbor < 0)
        return 0;
    const wm_halo_record_t *one = wm_halo_record(making, rank, field),
                           *other = wm_halo_record(making, neighbor, field);
    if (!are_alike(one, other))
        return wm_error_set(
            err, WM_ERR_TYPE, 0,
            "fields[%d]: rank %d and its neighbour, rank %d, have different "
            "elements (%s of shape (%d, %d, %d) and %s of shape (%d, %d, "
            "%d)), or are staggered differently: give both the same field",
            field, rank, neighbor, wm_dtype_info((wm_dtype_t)one->dtype)->name,
            (int)one->inner[0], (int)one->inner[1], (int)one->inner[2],
            wm_dtype_info((wm_dtype_t)other->dtype)->name,
            (int)other->inner[0], (int)other->inner[1], (int)other->inner[2]);
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
check_fit(const wm_halo_making_t *making, wm_error_t *err)
{
    int code = 0;
    for (int rank = 0; rank < making->halo->comm->size; ++rank)
        for (int i = 0; i < making->count && code == 0; ++i)
            for (int at = 0; at < WM_HALO_DIRECTIONS && code == 0; ++at)
                code = check_pair(making, i, rank, at, err);
    return code;
}

// Refuses halos that were made differently.
static int
check_halos(const wm_halo_making_t *making, wm_error_t *err)
{
    const wm_halo_shape_t *first = &making->heads[0].shape;
    for (int rank = 1; rank < making->halo->comm->size; ++rank) {
        const wm_halo_shape_t *other = &making->heads[rank].shape;
        if (making->heads[rank].number != making->heads[0].number)
            return wm_error_set(err, WM_ERR_VALUE, 0,
                                "rank %d exchanges by another wm.Halo of this "
                                "communicator than rank 0: all ranks make the "
                                "same calls in the same order",
                                rank);
        bool same = first->ndim == other->ndim
                    && first->corners == other->corners;
        for (int d = 0; d < WM_HALO_DIMS; ++d)
            same = same && first->low[d] == other->low[d]
                   && first->high[d] == other->high[d]
                   && first->dims[d] == other->dims[d]
                   && first->periodic[d] == other->periodic[d];
        if (!same)
            return wm_error_set(err, WM_ERR_VALUE, 0,
                                "width, corners: rank %d has made its wm.Halo "
                                "with others than rank 0: give all ranks the "
                                "same",
                                rank);
    }
    return 0;
}

// --- the neighbours' memory -----------------------------------------------

// Returns true if the published field lies in its allocation. The numbers are
// another rank's, and may be anything.
static bool
is_within(const wm_halo_record_t *record)
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

// How long a graph that has ended may hold a mapping of freed memory: CUDA
// lets go of what a graph has in a thread of its own.
#define NAP_NS 1000000
#define NAPS 100

// Maps a field of a neighbour. Sets *reached to false if that is impossible.
static int
map_field(wm_halo_making_t *making, int neighbor, int field, bool *reached,
          char **base, wm_error_t *err)
{
    wm_halo_set_t *set = making->set;
    wm_comm_t *comm = making->halo->comm;
    const wm_halo_record_t *record = wm_halo_record(making, neighbor, field);
    int code = 0;
    if (!is_within(record))
        return wm_comm_damaged(comm, neighbor, err);
    for (int nap = 0; nap < NAPS; ++nap) {
        if (nap > 0) {
            nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
            wm_waiters_collect();
        }
        wm_engine_lock();
        code = wm_mapping_reach(comm->peers[neighbor], &record->place,
                                making->halo->device,
                                &set->mappings[set->mapped], base, err);
        set->mapped += code == 0;
        wm_engine_unlock();
        if (code == 0 || code == WM_ERR_MEMORY
            || wm_mapping_is_refused(code, err))
            break;
    }
    if (code < 0 && code != WM_ERR_MEMORY) {
        *reached = false;
        code = 0;
    }
    return code;
}

static int
map_all(wm_halo_making_t *making, bool *reached, wm_error_t *err)
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

// Multiprocessors of each rank's share that its kernel leaves free. Blocks
// that wait for a rank must not be on all of them, as a kernel of that rank
// may fill one, and comes first.
#define SPARE 2

// Finds how many blocks a kernel may have. Where it waits for the kernels of
// other processes, all of them run at once.
static int
find_most(const wm_halo_t *halo, wm_halo_set_t *set, wm_error_t *err)
{
    const wm_device_t *facts;
    int code = wm_device_get(halo->device, &facts, err);
    if (code < 0)
        return code;
    int share = 2 * facts->multiprocessors;
    if (wm_halo_has_tickets(halo)) {
        share = halo->counters->multiprocessors;
        share = share > 2 * SPARE ? share - SPARE : share;
    }
    set->most = (uint32_t)share;
    return 0;
}

static int
map_and_cut(wm_halo_making_t *making, wm_error_t *err)
{
    bool reached = true;
    int code = map_all(making, &reached, err);
    if (!reached)
        making->own.flags &= ~(unsigned)WM_HALO_REACHED;
    else if (code == 0)
        code = wm_halo_make_tasks(making, err);
    return code;
}

// --- the whole ------------------------------------------------------------

static bool
have_all(const wm_halo_making_t *making, unsigned flags)
{
    bool all = true;
    for (int rank = 0; rank < making->halo->comm->size; ++rank)
        all = all && (making->heads[rank].flags & flags) == flags;
    return all;
}

static int
set_new(wm_halo_making_t *making, wm_error_t *err)
{
    size_t count = (size_t)making->count;
    making->set = calloc(1, sizeof *making->set
                                + count * sizeof making->set->keys[0]);
    if (making->set == NULL)
        return out_of_memory(err);
    making->set->count = making->count;
    making->set->op = making->op;
    for (int i = 0; i < making->count; ++i)
        wm_halo_key_of(&making->fields[i], &making->set->keys[i]);
    return 0;
}

// Makes the set of fields in GPU memory. *reached becomes false on all ranks
// if messages have to serve.
static int
make_on_gpus(wm_halo_making_t *making, bool *reached, wm_error_t *err)
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
    code = find_most(halo, making->set, err);
    bool lines = wm_halo_wants_lines(making);
    if (lines && code == 0)
        code = wm_halo_make_lines(making, &lines, err);
    *reached = lines || have_all(making, WM_HALO_REACHED);
    if (*reached && !lines && code == 0)
        code = map_and_cut(making, err);
    code = gather_heads(making, code, err);
    *reached = *reached && code == 0
               && (lines || have_all(making, WM_HALO_REACHED));
    if (*reached && !lines)
        wm_halo_fill_peers(making);
    return code;
}

static int
make_set(wm_halo_making_t *making, int code, wm_error_t *err)
{
    wm_comm_t *comm = making->halo->comm;
    bool reached;
    if (code == 0)
        code = tell_own(making, err);
    if (code == 0)
        code = set_new(making, err);
    code = gather_heads(making, code, err);
    if (code == 0)
        code = check_halos(making, err);
    if (code == 0)
        code = gather_records(making, err);
    if (code == 0)
        code = check_fit(making, err);
    if (code < 0)
        return code;
    reached = have_all(making, WM_HALO_ON_GPU) && making->op < WM_REDUCE_OPS
              && (comm->barrier != NULL || comm->size == 1);
    if (reached)
        code = make_on_gpus(making, &reached, err);
    making->set->by_messages = !reached;
    return code;
}

// Marks what the new set replaces on any rank: all ranks find the same sets.
static void
mark_replaced(const wm_halo_making_t *making)
{
    for (wm_halo_set_t *set = making->halo->sets; set != NULL; set = set->next)
        for (int rank = 0; rank < making->halo->comm->size; ++rank)
            set->replaced |= making->heads[rank].replaces == set->id;
}

int
wm_halo_register(wm_halo_t *halo, const wm_halo_call_t *call, int code,
                 wm_halo_set_t **set, wm_error_t *err)
{
    wm_halo_making_t *making = calloc(1, sizeof *making);
    if (making == NULL) // as nothing can be told, the others report the wait
        return out_of_memory(err);
    making->halo = halo;
    making->fields = call->fields;
    making->count = call->count;
    making->op = call->op;
    making->own.op = call->step == WM_HALO_PREPARE ? WM_HALO_PLAN : call->op;
    making->own.replaces = *set != NULL ? (*set)->id : 0;
    code = make_set(making, code, err);
    if (code == 0) {
        mark_replaced(making);
        wm_halo_add_set(halo, *set = making->set);
    }
    else
        wm_halo_set_free(making->set);
    free(making->heads);
    free(making->records);
    free(making->gathered);
    free(making);
    return code;
}

// SPDX-License-Identifier: BSD-3-Clause
// A rank's memory begins with what kernels are given (wm_shared_t), the tables
// of all ranks' arrays and counters, and its own counters; its array follows.
#include "comm/rma/shared_array.h"

#include <stdlib.h>
#include <string.h>

#include "array/peer_signal.h"
#include "comm/coll/call/coll_wait.h"
#include "comm/coll/direct/coll_gather.h"
#include "comm/coll/direct/preflight.h"
#include "comm/coll/direct/symm_group.h"
#include "comm/engine/engine.h"
#include "comm/node/mapping.h"
#include "comm/node/segment_words.h"
#include "comm/rma/shared_list.h"

#define ARRAY_ALIGN ((size_t)512)
#define WORDS_ALIGN ((size_t)128)

// The facts that a rank gives all others.
typedef struct {
    int32_t dtype, ndim, device, slots, index;
    uint32_t drops;
    int64_t shape[WM_MAX_NDIM];
} told_t;

static size_t
round_up(size_t value, size_t to)
{
    return (value + to - 1) / to * to;
}

static size_t
counters_of(const wm_shared_array_t *array)
{
    return (size_t)(array->slots + array->size);
}

// Finds where the parts of a rank's memory begin; all but the array itself are
// as long on all ranks.
static void
shared_array_lay_out(wm_shared_array_t *array, bool on_host)
{
    int writers = on_host ? array->size : 1;
    size_t tables = 2 * (size_t)array->size * sizeof(void *);
    size_t count = counters_of(array);
    array->on_host = on_host;
    array->counters = round_up(sizeof(wm_shared_t) + tables, WORDS_ALIGN);
    array->words = count * (size_t)writers;
    size_t taken = writers > 1 ? count : 0;
    array->head = round_up(array->counters
                               + (array->words + taken) * sizeof(uint64_t),
                           ARRAY_ALIGN);
    array->shared.rank = array->rank;
    array->shared.size = array->size;
    array->shared.slots = array->slots;
    array->shared.writers = writers;
}

static wm_shared_word_t *
counters_at(const wm_shared_array_t *array, int rank)
{
    return (wm_shared_word_t *)(void *)(array->memory->ranks[rank].memory
                                        + array->counters);
}

// Writes the tables into our own memory.
static int
shared_array_introduce(wm_shared_array_t *array, wm_error_t *err)
{
    char *own = array->memory->ranks[array->rank].memory;
    size_t entries = (size_t)array->size, nbytes = array->counters;
    char *head = calloc(1, nbytes);
    if (head == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    void **pointers = (void **)(void *)(head + sizeof(wm_shared_t));
    void **counters = pointers + entries;
    for (int rank = 0; rank < array->size; ++rank) {
        pointers[rank] = array->memory->ranks[rank].memory + array->head;
        counters[rank] = counters_at(array, rank);
    }
    wm_shared_t *shared = &array->shared;
    shared->pointers = (void *const *)(void *)(own + sizeof(wm_shared_t));
    shared->counters =
        (wm_shared_word_t *const *)(void *)(own + sizeof(wm_shared_t)
                                            + entries * sizeof(void *));
    shared->own = counters_at(array, array->rank);
    shared->taken = shared->own + array->words;
    memcpy(head, shared, sizeof *shared);
    int code = 0;
    if (array->on_host)
        memcpy(own, head, nbytes);
    else
        code = wm_memory_copy_now(array->device, own, head, nbytes, err);
    free(head);
    return code;
}

static size_t
bytes_of(wm_dtype_t dtype, int ndim, const int64_t *shape)
{
    size_t nbytes = wm_dtype_info(dtype)->itemsize;
    for (int i = 0; i < ndim; ++i)
        nbytes *= (size_t)shape[i];
    return nbytes;
}

// Compares the memory of all ranks with their shapes.
static int
shared_array_check_sizes(const wm_shared_array_t *array, const wm_comm_t *comm,
                         wm_error_t *err)
{
    int rank = 0;
    while (rank < array->size
           && array->memory->ranks[rank].nbytes - array->head >= bytes_of(
                  array->ranks[rank].dtype, array->ranks[rank].ndim,
                  array->ranks[rank].shape))
        ++rank;
    return rank == array->size ? 0 : wm_comm_damaged(comm, rank, err);
}

static int
map_memory(wm_shared_array_t *array, wm_comm_t *comm, const char *call,
           bool on_host, size_t nbytes, bool *unreached, wm_error_t *err)
{
    shared_array_lay_out(array, on_host);
    // An array without elements has an address within the memory, too.
    array->nbytes = array->head + (nbytes > 0 ? nbytes : 1);
    wm_symm_group_t group = wm_symm_group_of(comm, call, array->head);
    group.has_files = true;
    return wm_symm_memory_make(&group, array->device, on_host, array->nbytes,
                               NULL, &array->memory, unreached, err);
}

// Makes the memory: the GPUs', or the host's where a rank has no GPU, or does
// not reach another's.
static int
shared_array_map(wm_shared_array_t *array, wm_comm_t *comm,
                 const wm_shared_wish_t *wish, bool on_host, wm_error_t *err)
{
    size_t nbytes = bytes_of(wish->dtype, wish->ndim, wish->shape);
    bool unreached = false;
    int code = map_memory(array, comm, wish->call, on_host, nbytes, &unreached,
                          err);
    if (code == 0 && unreached && !on_host)
        code = map_memory(array, comm, wish->call, true, nbytes, &unreached,
                          err);
    if (code == 0 && unreached)
        code = wm_error_set(err, WM_ERR_STATE, 0,
                            "the ranks do not reach each other's memory");
    if (code < 0)
        return code;
    code = shared_array_check_sizes(array, comm, err);
    if (code == 0)
        code = shared_array_introduce(array, err);
    array->spins = array->memory->multiprocessors > 0;
    return wm_coll_exchange(comm, wish->call, code, NULL, 0, NULL, err);
}

// Fills what this rank tells, and takes its drop word.
static int
shared_array_describe(const wm_shared_wish_t *wish, told_t *told,
                      wm_error_t *err)
{
    *told = (told_t){
        .dtype = (int32_t)wish->dtype,
        .ndim = wish->ndim,
        .device = wish->device,
        .slots = wish->slots,
        .index = -1,
    };
    memcpy(told->shape, wish->shape,
           (size_t)wish->ndim * sizeof told->shape[0]);
    if (wish->failure != NULL)
        return wm_error_set(err, WM_ERR_PYTHON, 0, "%s", wish->failure);
    int code = wish->device < 0 ? 0
                                : wm_peer_signal_prepare(wish->device, err);
    if (code < 0)
        return code;
    wm_engine_lock();
    told->index = wm_shared_list_take(&told->drops, err);
    wm_engine_unlock();
    return told->index < 0 ? told->index : 0;
}

// Returns true if a rank has told impossible numbers.
static bool
is_damaged(const told_t *told)
{
    bool fits = told->ndim >= 0 && told->ndim <= WM_MAX_NDIM
                && told->dtype >= 0 && told->dtype < WM_DTYPES
                && told->index >= 0 && told->index < WM_SHARED_ARRAYS;
    size_t most = (size_t)1 << 62;
    for (int i = 0; i < told->ndim && fits; ++i) {
        fits = told->shape[i] >= 0;
        most /= fits && told->shape[i] > 0 ? (size_t)told->shape[i] : 1;
        fits = fits && most > 0;
    }
    return !fits;
}

// Compares what the ranks have told.
static int
shared_array_check(const wm_comm_t *comm, const wm_shared_wish_t *wish,
                   const told_t *all, wm_error_t *err)
{
    for (int rank = 0; rank < comm->size; ++rank) {
        const told_t *told = &all[rank];
        if (told->slots != wish->slots)
            return wm_error_set(err, WM_ERR_VALUE, 0,
                                "slots: %s has %d, and %s has %d: give all "
                                "ranks the same number",
                                wm_comm_name(comm, comm->rank).text,
                                wish->slots, wm_comm_name(comm, rank).text,
                                told->slots);
        if (is_damaged(told))
            return wm_comm_damaged(comm, rank, err);
    }
    return 0;
}

// Returns the array without its memory; NULL: out of host memory.
static wm_shared_array_t *
shared_array_new(wm_comm_t *comm, const wm_shared_wish_t *wish,
                 const told_t *all)
{
    size_t size = (size_t)comm->size, extents = 0;
    for (int rank = 0; rank < comm->size; ++rank)
        extents += (size_t)all[rank].ndim;
    wm_shared_array_t *array;
    size_t before = sizeof *array + size * sizeof array->ranks[0];
    array = calloc(1, before + extents * sizeof(int64_t));
    if (array == NULL)
        return NULL;
    int64_t *shapes = (int64_t *)(void *)((char *)array + before);
    array->rank = comm->rank;
    array->size = comm->size;
    array->slots = wish->slots;
    array->device = wish->device;
    array->index = all[comm->rank].index;
    for (int rank = 0; rank < comm->size; ++rank) {
        const told_t *told = &all[rank];
        size_t ndim = (size_t)told->ndim;
        array->ranks[rank].peer = comm->peers[rank];
        array->ranks[rank].dtype = (wm_dtype_t)told->dtype;
        array->ranks[rank].ndim = told->ndim;
        array->ranks[rank].index = told->index;
        array->ranks[rank].drops = told->drops;
        array->ranks[rank].shape = shapes;
        memcpy(shapes, told->shape, ndim * sizeof *shapes);
        shapes += ndim;
    }
    return array;
}

static int
refuse_hosts(const wm_comm_t *comm, const char *call, wm_error_t *err)
{
    if (comm->whole != comm)
        return wm_error_set(err, WM_ERR_VALUE, 0,
                            "comm: %s takes no intercommunicator: merge it",
                            call);
    return wm_error_set(
        err, WM_ERR_VALUE, 0,
        "comm: its ranks do not share memory, as they are on several hosts: "
        "%s needs ranks of one host, such as those of "
        "comm.Split_type(MPI.COMM_TYPE_SHARED)",
        call);
}

static void
give_back(int index)
{
    wm_engine_lock();
    wm_segment_words_give(WM_WORDS_OF_SHARED, index);
    wm_engine_unlock();
}

// Tells the peers of freed memory, so that all close their mappings of it, and
// frees what all have dropped.
static int
shared_array_collect(wm_comm_t *comm, wm_error_t *err)
{
    wm_waiters_collect();
    wm_engine_lock();
    wm_preflight_t preflight = {
        .call = WM_COLL_MAKING,
        .all = 1,
        .notices = wm_rkey_notify(),
    };
    wm_engine_unlock();
    int code = wm_preflight_run(comm, &preflight, err);
    if (code == 0 && preflight.notices) {
        wm_engine_lock();
        wm_mapping_heed_notices();
        wm_engine_unlock();
    }
    return code;
}

static int
shared_array_begin(wm_comm_t *comm, const wm_shared_wish_t *wish, told_t *all,
                   wm_error_t *err)
{
    told_t told;
    int code = shared_array_describe(wish, &told, err);
    // What this rank has dropped is known to all behind this.
    wm_waiters_collect();
    code = wm_coll_exchange(comm, wish->call, code, &told, sizeof told, all,
                            err);
    if (code == 0)
        code = shared_array_check(comm, wish, all, err);
    if (code == 0)
        code = shared_array_collect(comm, err);
    if (code < 0)
        give_back(told.index);
    return code;
}

static int
shared_array_try(wm_comm_t *comm, const wm_shared_wish_t *wish,
                 const told_t *all, wm_shared_array_t **made, wm_error_t *err)
{
    bool on_host = false;
    for (int rank = 0; rank < comm->size; ++rank)
        on_host |= all[rank].device < 0;
    wm_shared_array_t *array = shared_array_new(comm, wish, all);
    int code = array != NULL
                   ? 0
                   : wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    code = wm_coll_exchange(comm, wish->call, code, NULL, 0, NULL, err);
    if (code == 0)
        code = shared_array_map(array, comm, wish, on_host, err);
    if (code == 0)
        *made = array;
    else if (array != NULL) {
        wm_symm_memory_free(array->memory);
        free(array);
    }
    return code;
}

// Frees what all have dropped by now if memory is short, gives back what is
// idle here and mapped elsewhere, and tries again.
static int
shared_array_make(wm_comm_t *comm, const wm_shared_wish_t *wish,
                  const told_t *all, wm_shared_array_t **made, wm_error_t *err)
{
    int code = shared_array_try(comm, wish, all, made, err);
    if (code == WM_ERR_MEMORY) {
        wm_error_t other;
        int told = shared_array_collect(comm, &other);
        wm_waiters_collect();
        if (wish->device >= 0)
            wm_memory_trim(wish->device);
        if (told == 0 && shared_array_collect(comm, &other) == 0)
            code = shared_array_try(comm, wish, all, made, err);
    }
    if (code < 0)
        give_back(all[comm->rank].index);
    return code;
}

int
wm_shared_array_make(wm_comm_t *comm, const wm_shared_wish_t *wish,
                     wm_shared_array_t **made, wm_error_t *err)
{
    if (comm->barrier == NULL || comm->whole != comm)
        return wish->failure != NULL ? WM_ERR_PYTHON
                                     : refuse_hosts(comm, wish->call, err);
    told_t *all = malloc((size_t)comm->size * sizeof *all);
    if (all == NULL) // as nothing can be told, the others report the wait
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    int code = shared_array_begin(comm, wish, all, err);
    if (code == 0)
        code = shared_array_make(comm, wish, all, made, err);
    free(all);
    if (code == 0)
        wm_shared_list_add(*made, comm);
    return code;
}

int
wm_shared_array_arrive(wm_shared_array_t *array, const char *failure,
                       wm_error_t *err)
{
    int code = wm_waiter_check(&array->waiter, err);
    if (code < 0)
        return code;
    if (failure != NULL)
        code = wm_error_set(err, WM_ERR_PYTHON, 0, "%s", failure);
    return wm_coll_exchange(array->waiter.comm, "shared_full", code, NULL, 0,
                            NULL, err);
}

int
wm_shared_array_rank(const wm_shared_array_t *array)
{
    return array->rank;
}

int
wm_shared_array_size(const wm_shared_array_t *array)
{
    return array->size;
}

int
wm_shared_array_device(const wm_shared_array_t *array)
{
    return array->device;
}

int
wm_shared_array_slots(const wm_shared_array_t *array)
{
    return array->slots;
}

bool
wm_shared_array_on_host(const wm_shared_array_t *array)
{
    return array->on_host;
}

const wm_shared_t *
wm_shared_array_handle(const wm_shared_array_t *array)
{
    return (const wm_shared_t *)(const void *)array->memory->ranks[array->rank]
        .memory;
}

void *const *
wm_shared_array_pointers(const wm_shared_array_t *array)
{
    return array->shared.pointers;
}

void
wm_shared_array_view(const wm_shared_array_t *array, int rank,
                     wm_array_t *view)
{
    view->storage = NULL;
    view->data = array->memory->ranks[rank].memory + array->head;
    view->dtype = array->ranks[rank].dtype;
    view->readonly = false;
    view->ndim = array->ranks[rank].ndim;
    int64_t stride = wm_dtype_info(view->dtype)->itemsize;
    for (int i = view->ndim - 1; i >= 0; --i) {
        int64_t extent = array->ranks[rank].shape[i];
        view->shape[i] = extent;
        view->strides[i] = stride;
        stride *= extent > 0 ? extent : 1;
    }
}

static int
check_counter(const wm_shared_array_t *array, int64_t rank, int64_t slot,
              int64_t value, wm_error_t *err)
{
    if (rank < 0 || rank >= array->size)
        return wm_error_set(err, WM_ERR_VALUE, 0,
                            "rank: there is no rank %lld, there are 0 to %d",
                            (long long)rank, array->size - 1);
    if (slot < 0 || slot >= array->slots)
        return wm_error_set(err, WM_ERR_VALUE, 0,
                            "slot: there is no slot %lld, the array has %d: "
                            "give shared_empty more (slots=)",
                            (long long)slot, array->slots);
    if (value <= 0 || value >= WM_SHARED_VALUE)
        return wm_error_set(err, WM_ERR_VALUE, 0,
                            "value: %lld is not one of 1 to 2**48 - 1",
                            (long long)value);
    return wm_waiter_check(&array->waiter, err);
}

// Waits on the host, for ranks without a GPU.
typedef struct {
    const wm_shared_array_t *array;
    int counter, last; // all from the one to the other
    uint64_t value;
} host_wait_t;

static int
host_wait_look(void *context, wm_error_t *err)
{
    (void)err;
    host_wait_t *wait = context;
    const wm_shared_t *shared = &wait->array->shared;
    while (
        wait->counter <= wait->last
        && (wait->counter == shared->slots + shared->rank
            || (int64_t)(wm_shared_count(shared, wait->counter) - wait->value)
                   >= 0))
        ++wait->counter;
    return wait->counter > wait->last;
}

static int
wait_on_host(const wm_shared_array_t *array, int first, int last,
             uint64_t value, bool takes, wm_error_t *err)
{
    host_wait_t wait = {array, first, last, value};
    int code = wm_coll_wait(array->waiter.comm, host_wait_look, &wait,
                            WM_LOOKS_AT_WORDS, err);
    for (int counter = first; counter <= last && code == 0 && takes; ++counter)
        if (counter != array->slots + array->rank)
            wm_shared_take(&array->shared, counter, value);
    return code;
}

static int
barrier_on_host(const wm_shared_array_t *array, wm_error_t *err)
{
    int counter = array->slots + array->rank;
    for (int rank = 0; rank < array->size; ++rank)
        if (rank != array->rank)
            wm_shared_raise(&array->shared, rank, counter, 1);
    return wait_on_host(array, array->slots, array->slots + array->size - 1, 1,
                        true, err);
}

static int
end_call(wm_shared_array_t *array, int code, const char *name, int slot,
         uint64_t value, CUstream stream, wm_error_t *err)
{
    if (code == 0)
        code = wm_shared_list_note(
            array, &(wm_shared_call_t){name, slot, value}, stream, err);
    wm_device_go();
    return code;
}

int
wm_shared_array_signal(wm_shared_array_t *array, int64_t rank, int64_t slot,
                       int64_t value, CUstream stream, wm_error_t *err)
{
    int code = check_counter(array, rank, slot, value, err);
    if (code < 0)
        return code;
    if (array->device < 0) {
        wm_shared_raise(&array->shared, (int)rank, (int)slot, (uint64_t)value);
        return 0;
    }
    wm_device_stay();
    code = wm_peer_signal_enqueue(array->device, &array->shared, (int)rank,
                                  (int)slot, (uint64_t)value, stream, err);
    return end_call(array, code, "signal", (int)slot, (uint64_t)value, stream,
                    err);
}

int
wm_shared_array_wait(wm_shared_array_t *array, int64_t slot, int64_t value,
                     bool takes, CUstream stream, wm_error_t *err)
{
    int code = check_counter(array, array->rank, slot, value, err);
    if (code < 0)
        return code;
    if (array->device < 0)
        return wait_on_host(array, (int)slot, (int)slot, (uint64_t)value,
                            takes, err);
    wm_device_stay();
    code = wm_peer_wait_enqueue(
        array->device, &array->shared, counters_at(array, array->rank),
        (int)slot, (uint64_t)value, takes, array->spins, stream, err);
    return end_call(array, code, "wait", (int)slot, (uint64_t)value, stream,
                    err);
}

int
wm_shared_array_barrier(wm_shared_array_t *array, CUstream stream,
                        wm_error_t *err)
{
    int code = wm_waiter_check(&array->waiter, err);
    if (code < 0 || array->size == 1)
        return code;
    if (array->device < 0)
        return barrier_on_host(array, err);
    wm_device_stay();
    code = wm_peer_barrier_enqueue(array->device, &array->shared,
                                   counters_at(array, array->rank),
                                   array->spins, stream, err);
    return end_call(array, code, "barrier", -1, 0, stream, err);
}

// SPDX-License-Identifier: BSD-3-Clause
#include "comm/message/buffered.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "array/access.h"
#include "array/kernels.h"
#include "cuda/settings.h"
#include "comm/engine/engine.h"
#include "comm/message/pattern.h"

typedef struct {
    wm_comm_t *comm;   // whose room it is in; NULL: the process's
    size_t taken;      // bytes of that room
    wm_block_t *block; // device memory; NULL: see memory
    void *memory;
} copy_t;

static wm_room_t of_process;

static wm_room_t *
room(wm_comm_t *comm)
{
    return comm != NULL ? &comm->room : &of_process;
}

int
wm_room_attach(wm_comm_t *comm, size_t size, wm_error_t *err)
{
    size_t none = 0, limit = size == SIZE_MAX ? size : size + 1;
    return atomic_compare_exchange_strong(&room(comm)->limit, &none, limit)
               ? 0
               : wm_error_set(err, WM_ERR_MPI, MPI_ERR_BUFFER,
                              "a buffer is attached already: detach it "
                              "first");
}

static int
none_attached(wm_error_t *err)
{
    return wm_error_set(err, WM_ERR_MPI, MPI_ERR_BUFFER,
                        "no buffer is attached: attach one to the "
                        "communicator with comm.Attach_buffer(buf), or call "
                        "warpmpi.install() before MPI.Attach_buffer(buf)");
}

int
wm_room_detach(wm_comm_t *comm, wm_error_t *err)
{
    return atomic_exchange(&room(comm)->limit, 0) != 0 ? 0
                                                       : none_attached(err);
}

static bool
step_flush(wm_op_t *op)
{
    return atomic_load(&room(op->comm)->used) == 0;
}

static const wm_op_kind_t flush_kind = {.step = step_flush};

int
wm_room_flush_begin(wm_comm_t *comm, wm_op_t **result, wm_error_t *err)
{
    if (atomic_load(&room(comm)->limit) == 0)
        return none_attached(err);
    wm_op_t *flush = wm_op_new(&flush_kind, sizeof *flush, comm);
    if (flush == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    *result = flush;
    wm_engine_add(flush);
    return 0;
}

// Takes bytes of the room of *comm, or of the process's: then *comm is NULL.
static int
take(wm_comm_t **comm, size_t bytes, wm_error_t *err)
{
    if (atomic_load(&(*comm)->room.limit) == 0)
        *comm = NULL;
    wm_room_t *taken = room(*comm);
    size_t limit = atomic_load(&taken->limit);
    size_t used = atomic_load(&taken->used);
    if (limit == 0)
        return none_attached(err);
    do {
        if (limit != SIZE_MAX && used + bytes >= limit)
            return wm_error_set(
                err, WM_ERR_MPI, MPI_ERR_BUFFER,
                "a buffered message of %zu bytes (with "
                "MPI.BSEND_OVERHEAD) does not fit the attached buffer: %zu of "
                "its %zu bytes are in use; attach a larger buffer",
                bytes, used, limit - 1);
    } while (!atomic_compare_exchange_weak(&taken->used, &used, used + bytes));
    if (*comm != NULL)
        wm_comm_retain(*comm);
    return 0;
}

static void
give_back(wm_comm_t *comm, size_t bytes)
{
    atomic_fetch_sub(&room(comm)->used, bytes);
    if (comm != NULL)
        wm_comm_release(comm);
}

static void
release_copy(void *owner)
{
    copy_t *copy = owner;
    if (copy->block != NULL)
        wm_block_free(copy->block, 0, NULL, NULL);
    free(copy->memory);
    give_back(copy->comm, copy->taken);
    free(copy);
}

// Copies into the block, or, if only MPI can pack, into host memory.
static int
enqueue_copy(const wm_buffer_t *buffer, char *into, int device,
             CUstream stream, wm_error_t *err)
{
    const wm_pattern_t *pattern = buffer->pattern;
    return pattern == NULL || wm_pattern_is_strided(pattern)
               ? wm_pattern_copy(buffer, 0, buffer->nbytes, into, true, device,
                                 stream, err)
               : wm_pattern_stage(pattern, device, stream, into,
                                  buffer->nbytes, MPI_COMM_SELF, err);
}

// Copies on a stream that follows all who write the buffer; waits for the end.
static int
copy_on_device(const wm_buffer_t *buffer, const wm_producer_t *producer,
               const wm_envelope_t *envelope, char *into, int device,
               wm_error_t *err)
{
    wm_access_t access;
    wm_access_begin(&access, producer, false, device);
    if (envelope->stream_device >= 0)
        wm_access_name_stream(&access, envelope->stream_device,
                              envelope->stream);
    int code = wm_kernels_prepare(device, WM_KERNELS_COPY, err);
    if (code == 0)
        code = wm_access_open(&access, err);
    if (code == 0)
        code = enqueue_copy(buffer, into, device, access.stream, err);
    int ended = wm_access_synchronize(&access, code == 0 ? err : NULL);
    wm_access_close(&access);
    return code < 0 ? code : ended;
}

int
wm_buffer_duplicate(const wm_buffer_t *buffer, const wm_envelope_t *envelope,
                    wm_buffer_t *result, wm_error_t *err)
{
    wm_buffer_t made = {
        .nbytes = buffer->nbytes,
        .memory = {.device = -1},
        .release = release_copy,
        .pickled = buffer->pickled,
        .element = buffer->element,
    };
    wm_producer_t producer = buffer->producer;
    int code = wm_await_producer(buffer, &producer, envelope, false, err);
    if (code < 0)
        return code;
    copy_t *copy = calloc(1, sizeof *copy);
    if (copy == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    made.owner = copy;
    bool device = wm_buffer_on_device(buffer);
    const wm_pattern_t *pattern = buffer->nbytes > 0 ? buffer->pattern : NULL;
    int ordinal = buffer->memory.device >= 0 ? buffer->memory.device : 0;
    if (device && (pattern == NULL || wm_pattern_is_strided(pattern))) {
        code = wm_block_alloc(ordinal, buffer->nbytes, &copy->block, err);
        if (code == 0) {
            made.data = wm_block_pointer(copy->block);
            wm_block_describe(copy->block, &made.memory);
        }
    }
    else if ((made.data = copy->memory = malloc(buffer->nbytes + 1)) == NULL)
        code = wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    if (code == 0 && device)
        code = copy_on_device(buffer, &producer, envelope, made.data, ordinal,
                              err);
    else if (code == 0 && pattern != NULL)
        code = wm_pattern_pack(pattern, made.data, buffer->nbytes, NULL,
                               MPI_COMM_SELF, err);
    else if (code == 0 && buffer->nbytes > 0)
        memcpy(made.data, buffer->data, buffer->nbytes);
    if (code < 0)
        release_copy(copy);
    else
        *result = made;
    return code;
}

static int
send_copy(wm_comm_t *comm, const wm_buffer_t *buffer,
          const wm_envelope_t *envelope, wm_error_t *err)
{
    wm_buffer_t copy;
    wm_op_t *sending;
    wm_envelope_t inner = {
        .rank = envelope->rank,
        .tag = envelope->tag,
        .stream_device = -1,
    };
    wm_comm_t *owner = comm;
    size_t bytes = buffer->nbytes + MPI_BSEND_OVERHEAD;
    int code = take(&owner, bytes, err);
    if (code < 0)
        return code;
    code = wm_buffer_duplicate(buffer, envelope, &copy, err);
    if (code < 0) {
        give_back(owner, bytes);
        if (wm_send_tells(code))
            wm_send_failure(comm, &inner, err->text);
        return code;
    }
    copy_t *taken = copy.owner;
    taken->comm = owner;
    taken->taken = bytes;
    code = wm_send_begin(comm, &copy, &inner, &sending, err);
    if (code == 0) {
        wm_op_release(sending); // it ends by itself
        wm_engine_notify();
    }
    return code;
}

// A send that has ended, for reports with WARPMPI_CHECK.
typedef struct {
    wm_op_t op;
    int rank, tag;
    size_t nbytes;
} ended_t;

static void
about_ended(const wm_op_t *op, wm_about_t *about)
{
    const ended_t *ended = (const ended_t *)op;
    *about = (wm_about_t){
        .is_message = true,
        .rank = ended->rank,
        .tag = ended->tag,
        .sized = true,
        .nbytes = ended->nbytes,
    };
}

static const wm_op_kind_t ended_kind = {.about = about_ended};

static wm_op_t *
ended(wm_comm_t *comm, const wm_envelope_t *envelope, size_t nbytes)
{
    if (!wm_setting_is_on(WM_SETTING_CHECK)) // with it, operations are listed
        return wm_op_ended();
    ended_t *own = wm_op_new(&ended_kind, sizeof *own, comm);
    if (own == NULL)
        return NULL;
    own->rank = envelope->rank;
    own->tag = envelope->tag;
    own->nbytes = nbytes;
    wm_op_finish(&own->op);
    return &own->op;
}

int
wm_buffered_begin(wm_comm_t *comm, wm_buffer_t *buffer,
                  const wm_envelope_t *envelope, wm_op_t **result,
                  wm_error_t *err)
{
    int code = wm_engine_check(err);
    if (code == 0)
        code = wm_comm_check(comm, "dest", envelope->rank, envelope->tag,
                             false, err);
    if (code == 0 && envelope->rank != MPI_PROC_NULL)
        code = send_copy(comm, buffer, envelope, err);
    size_t nbytes = buffer->nbytes;
    wm_buffer_release(buffer);
    if (code == 0)
        *result = ended(comm, envelope, nbytes);
    return code < 0 || *result != NULL
               ? code
               : wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
}

// SPDX-License-Identifier: BSD-3-Clause
// A toy: a second library that moves between hosts, beside NCCL. It shows that
// such an engine is this file and a name in coll_engine.h: a table of moves
// (coll/movers/movers.h), its opening and a row. The library is MPI, with host
// memory. Its moves wait for other ranks, which no true library may.
//
// TOY_MOVERS chooses it. "gathers": it does Allgather alone.
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "comm/coll/movers/mover_engine.h"
#include "comm/coll/movers/mover_stream.h"
#include "comm/engine/posted.h"
#include "cuda/memory.h"
#include "cuda/stream.h"

#define MOVES 256 // of a group

typedef struct {
    MPI_Comm mpi;
    int device, ranks;
} handle_t;

typedef struct {
    const handle_t *handle;
    char *data, *room; // room: page-locked
    size_t nbytes;
    int rank;
    bool sends;
    CUstream stream;
} move_t;

static _Thread_local move_t moves[MOVES]; // of the group that has begun
static _Thread_local int count;

static bool
is_asked(const char *what)
{
    const char *text = getenv("TOY_MOVERS");
    return text != NULL && (what == NULL || strcmp(text, what) == 0);
}

// Copies between GPU memory and a room, and waits.
static int
copy(const handle_t *handle, void *to, const void *from, size_t nbytes,
     CUstream stream, wm_error_t *err)
{
    int code = nbytes == 0 ? 0
                           : wm_memory_copy(handle->device, to, from, nbytes,
                                            stream, err);
    return code < 0 ? code
                    : wm_stream_synchronize(handle->device, stream, err);
}

static int
toy_begin(wm_error_t *err)
{
    (void)err;
    count = 0;
    return 0;
}

static int
toy_add(const handle_t *handle, char *data, size_t nbytes, int rank,
        bool sends, CUstream stream, wm_error_t *err)
{
    if (handle == NULL || count == MOVES)
        return wm_error_set(err, WM_ERR_STATE, 0, "the toy was aborted");
    moves[count++] = (move_t){handle, data, NULL, nbytes, rank, sends, stream};
    return 0;
}

static int
toy_send(void *handle, const void *data, size_t nbytes, int rank,
         CUstream stream, wm_error_t *err)
{
    return toy_add(handle, (char *)data, nbytes, rank, true, stream, err);
}

static int
toy_receive(void *handle, void *data, size_t nbytes, int rank, CUstream stream,
            wm_error_t *err)
{
    return toy_add(handle, data, nbytes, rank, false, stream, err);
}

static int
move_begin(move_t *move, MPI_Request *request, wm_error_t *err)
{
    const handle_t *handle = move->handle;
    int code = wm_pinned_alloc(move->nbytes, (void **)&move->room, err);
    if (code == 0 && move->sends)
        code = copy(handle, move->room, move->data, move->nbytes, move->stream,
                    err);
    if (code < 0)
        return code;
    code = move->sends ? MPI_Isend(move->room, (int)move->nbytes, MPI_BYTE,
                                   move->rank, 0, handle->mpi, request)
                       : MPI_Irecv(move->room, (int)move->nbytes, MPI_BYTE,
                                   move->rank, 0, handle->mpi, request);
    return wm_mpi_check(code, "MPI_Isend", err);
}

static int
toy_end(wm_error_t *err)
{
    MPI_Request requests[MOVES];
    int code = 0;
    for (int i = 0; i < count; ++i) {
        requests[i] = MPI_REQUEST_NULL;
        if (code == 0)
            code = move_begin(&moves[i], &requests[i], err);
    }
    if (code == 0)
        code = wm_mpi_check(MPI_Waitall(count, requests, MPI_STATUSES_IGNORE),
                            "MPI_Waitall", err);
    for (int i = 0; i < count; ++i) {
        const move_t *move = &moves[i];
        if (code == 0 && !move->sends)
            code = copy(move->handle, move->data, move->room, move->nbytes,
                        move->stream, err);
        if (move->room != NULL)
            wm_pinned_free(move->room);
    }
    count = 0;
    return code;
}

static int
toy_gather(void *context, const void *from, void *into, size_t nbytes,
           CUstream stream, wm_error_t *err)
{
    const handle_t *handle = context;
    char *room;
    if (handle == NULL)
        return wm_error_set(err, WM_ERR_STATE, 0, "the toy was aborted");
    size_t all = nbytes * (size_t)handle->ranks;
    int code = wm_pinned_alloc(all + nbytes, (void **)&room, err);
    if (code < 0)
        return code;
    code = copy(handle, room + all, from, nbytes, stream, err);
    if (code == 0)
        code = wm_mpi_check(MPI_Allgather(room + all, (int)nbytes, MPI_BYTE,
                                          room, (int)nbytes, MPI_BYTE,
                                          handle->mpi),
                            "MPI_Allgather", err);
    if (code == 0)
        code = copy(handle, into, room, all, stream, err);
    wm_pinned_free(room);
    return code;
}

static int
toy_broadcast(void *context, void *data, size_t nbytes, int root,
              CUstream stream, wm_error_t *err)
{
    const handle_t *handle = context;
    char *room;
    if (handle == NULL)
        return wm_error_set(err, WM_ERR_STATE, 0, "the toy was aborted");
    int code = wm_pinned_alloc(nbytes, (void **)&room, err);
    if (code < 0)
        return code;
    code = copy(handle, room, data, nbytes, stream, err);
    if (code == 0)
        code = wm_mpi_check(
            MPI_Bcast(room, (int)nbytes, MPI_BYTE, root, handle->mpi),
            "MPI_Bcast", err);
    if (code == 0)
        code = copy(handle, data, room, nbytes, stream, err);
    wm_pinned_free(room);
    return code;
}

static void
toy_destroy(void *context, void *parent)
{
    handle_t *handle = context;
    (void)parent;
    MPI_Comm_free(&handle->mpi);
    free(handle);
}

static void
toy_abort(void *handle, void *parent)
{
    (void)parent;
    free(handle); // other ranks need not come: MPI keeps the communicator
}

static const wm_movers_t toy_movers = {
    .begin = toy_begin,
    .end = toy_end,
    .send = toy_send,
    .receive = toy_receive,
    .gather = toy_gather,
    .broadcast = toy_broadcast,
    .destroy = toy_destroy,
    .abort = toy_abort,
};

static int
toy_open(wm_comm_t *comm, int device, void **state, wm_error_t *err)
{
    handle_t *handle = malloc(sizeof *handle);
    wm_mover_comm_t *own = wm_mover_comm_new(comm, &toy_movers, device, err);
    if (own == NULL || handle == NULL) { // the others wait: it is a toy
        free(handle);
        return own == NULL ? err->code
                           : wm_error_set(err, WM_ERR_MEMORY, 0, "no memory");
    }
    *handle = (handle_t){.device = device, .ranks = comm->size};
    int code = wm_mpi_duplicate(comm->data, &handle->mpi, err);
    if (code < 0) {
        free(handle);
        wm_mover_comm_free(own);
        return code;
    }
    own->handle = handle;
    wm_mover_comm_add(own);
    *state = own;
    return 0;
}

static bool
toy_spans(const wm_comm_t *comm)
{
    return is_asked(NULL) && wm_mover_spans(comm);
}

static bool
toy_does(const wm_coll_facts_t *facts)
{
    return (!is_asked("gathers") || facts->kind == WM_COLL_ALLGATHER)
           && wm_mover_does(facts);
}

static int
toy_find(const char **version, const char **path, wm_error_t *err)
{
    *version = "1.0.0";
    *path = "tests/toys";
    return is_asked(NULL) ? 0
                          : wm_error_set(err, WM_ERR_STATE, 0,
                                         "TOY_MOVERS does not choose it");
}

static const wm_coll_library_t toy_library = {
    .title = "The toy",
    .cure = "set TOY_MOVERS on all hosts",
    .find = toy_find,
};

const wm_coll_engine_t wm_toy_movers_engine = {
    .name = "toy_movers",
    .library = &toy_library,
    .in_order = true,
    .takes = WM_COLL_TAKES_DEVICE,
    .does = toy_does,
    .spans = toy_spans,
    .open = toy_open,
    .comm_drop = wm_mover_drop_comm,
    .abort = wm_mover_abort_calls,
    .revoke = wm_mover_revoke,
    .serves = wm_mover_serves,
    .start = wm_mover_start,
    .step = wm_mover_step,
    .drop = wm_mover_drop,
    .on_stream = &wm_mover_on_stream,
};

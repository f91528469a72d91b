// SPDX-License-Identifier: BSD-3-Clause
// On one host the bytes are published in preflights, between hosts they go by
// MPI.
#include "comm/coll/direct/coll_gather.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "comm/coll/call/coll_wait.h"
#include "comm/coll/direct/preflight.h"

#define LOOKS 50

static int
gather_at_barrier(wm_comm_t *comm, const char *mine, size_t nbytes, char *all,
                  wm_error_t *err)
{
    int code = 0;
    for (size_t at = 0, part; at < nbytes && code == 0; at += part) {
        part = nbytes - at < WM_PREFLIGHT_BYTES ? nbytes - at
                                                : WM_PREFLIGHT_BYTES;
        wm_preflight_t preflight = {
            .call = WM_COLL_MAKING,
            .all = 1,
            .data = mine + at,
            .nbytes = part,
        };
        code = wm_preflight_run(comm, &preflight, err);
        for (int rank = 0; rank < comm->size && code == 0; ++rank)
            memcpy(all + (size_t)rank * nbytes + at,
                   wm_preflight_data(comm->barrier, rank), part);
    }
    return code;
}

static int
gather_look(void *context, wm_error_t *err)
{
    int flag = 0;
    int code = wm_mpi_check(MPI_Test(context, &flag, MPI_STATUS_IGNORE),
                            "MPI_Test", err);
    return code < 0 ? code : flag;
}

int
wm_coll_gather(wm_comm_t *comm, const void *mine, size_t nbytes, void *all,
               wm_error_t *err)
{
    MPI_Request request = MPI_REQUEST_NULL;
    if (comm->barrier != NULL)
        return gather_at_barrier(comm, mine, nbytes, all, err);
    if (nbytes > INT_MAX)
        return wm_error_set(err, WM_ERR_VALUE, 0,
                            "MPI gathers at most %d bytes of a rank", INT_MAX);
    int code = wm_mpi_check(MPI_Iallgather(mine, (int)nbytes, MPI_BYTE, all,
                                           (int)nbytes, MPI_BYTE, comm->match,
                                           &request),
                            "MPI_Iallgather", err);
    return code < 0 ? code
                    : wm_coll_wait(comm, gather_look, &request, LOOKS, err);
}

// The state that a rank gives all others first.
typedef struct {
    char what[32];
    uint64_t nbytes;
    int32_t code, detail;
    char text[400];
} told_t;

// Judges what all ranks have told. *err is this rank's if it has failed.
static int
exchange_judge(const wm_comm_t *comm, const told_t *all, wm_error_t *err)
{
    const told_t *mine = &all[comm->rank], *failed = NULL;
    for (int rank = comm->size - 1; rank >= 0; --rank) {
        const told_t *its = &all[rank];
        if (memcmp(its->what, mine->what, sizeof its->what) != 0
            || its->nbytes != mine->nbytes)
            return wm_error_set(err, WM_ERR_STATE, 0,
                                "%s: %s is in another collective call: all "
                                "ranks make the calls of a communicator in "
                                "one order",
                                mine->what, wm_comm_name(comm, rank).text);
        failed = its->code < 0 ? its : failed;
    }
    if (failed == NULL || failed->code == mine->code)
        return mine->code;
    return wm_error_set(
        err, failed->code == WM_ERR_PYTHON ? WM_ERR_STATE : failed->code,
        failed->detail, "%s: %s failed in this collective: %.*s", mine->what,
        wm_comm_name(comm, (int)(failed - all)).text,
        (int)sizeof failed->text - 1, failed->text);
}

int
wm_coll_exchange(wm_comm_t *comm, const char *what, int code, const void *mine,
                 size_t nbytes, void *all, wm_error_t *err)
{
    told_t own = {.nbytes = nbytes, .code = code};
    told_t *told = malloc((size_t)comm->size * sizeof *told);
    wm_error_t other;
    wm_error_cut(what, sizeof own.what, own.what);
    if (code < 0) {
        own.detail = err->detail;
        wm_error_cut(err->text, sizeof own.text, own.text);
    }
    if (told == NULL) // as nothing can be told, the others report the wait
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    int gathered = wm_coll_gather(comm, &own, sizeof own, told, &other);
    if (gathered == 0)
        code = exchange_judge(comm, told, err);
    else if (code == 0) {
        *err = other;
        code = gathered;
    }
    free(told);
    return code < 0 || nbytes == 0
               ? code
               : wm_coll_gather(comm, mine, nbytes, all, err);
}

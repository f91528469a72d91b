// SPDX-License-Identifier: BSD-3-Clause
// On one host the bytes are published in preflights, between hosts they go by
// MPI.
#include "comm/coll/direct/coll_gather.h"

#include <limits.h>
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
            .call = WM_COLL_BARRIER, // alike on all ranks
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

// SPDX-License-Identifier: BSD-3-Clause
// MPI carries what no other link does: host memory, and staged device memory.
// A CUDA-aware MPI takes device memory in place, if it is asked to, or if no
// memory is shared.
#include "comm/engine/optional_mpi.h"
#include "comm/engine/posted.h"
#include "comm/link/link.h"

int
wm_mpi_is_cuda_aware(void)
{
    return MPIX_Query_cuda_support == NULL ? -1
                                           : MPIX_Query_cuda_support() != 0;
}

static int
mpi_open(bool asked, wm_error_t *err)
{
    return asked && wm_mpi_is_cuda_aware() == 0
               ? wm_error_set(err, WM_ERR_VALUE, 0,
                              "WARPMPI_TRANSPORT=mpi: this MPI reports that "
                              "it is not CUDA-aware: unset "
                              "WARPMPI_TRANSPORT, or use a CUDA-aware MPI")
               : 0;
}

static bool
mpi_reach(const wm_peer_t *peer, const wm_pointer_t *into, const char **reason)
{
    (void)into;
    *reason = "the peer is this process";
    if (peer->self)
        return false;
    *reason = "MPI reports that it is CUDA-aware; MPI delivers GPU data";
    return wm_link_is_asked(&wm_link_mpi)
           || (wm_link_is_asked(NULL) && !wm_node_shares(peer)
               && wm_mpi_is_cuda_aware() == 1);
}

static bool
mpi_unstaged(const wm_peer_t *peer, const wm_pointer_t *memory)
{
    const char *unused;
    return mpi_reach(peer, memory, &unused);
}

static int
mpi_send(const wm_carry_t *to, const void *memory, size_t nbytes,
         wm_flight_t *flight, wm_error_t *err)
{
    return wm_mpi_check(MPI_Isend(memory, (int)nbytes, MPI_BYTE, to->rank,
                                  (int)to->number, to->data, &flight->mpi),
                        "MPI_Isend", err);
}

static int
mpi_receive(const wm_carry_t *from, void *memory, size_t nbytes,
            wm_flight_t *flight, wm_error_t *err)
{
    return wm_mpi_check(MPI_Irecv(memory, (int)nbytes, MPI_BYTE, from->rank,
                                  (int)from->number, from->data, &flight->mpi),
                        "MPI_Irecv", err);
}

static int
mpi_test(wm_flight_t *flight, size_t *nbytes, wm_error_t *err)
{
    MPI_Status status;
    int flag = 0, count = 0;
    int code = wm_mpi_check(MPI_Test(&flight->mpi, &flag, &status), "MPI_Test",
                            err);
    if (code == 0 && flag && nbytes != NULL) {
        MPI_Get_count(&status, MPI_BYTE, &count);
        *nbytes = (size_t)count;
    }
    return code < 0 ? code : flag != 0;
}

static void
mpi_cancel(wm_flight_t *flight)
{
    if (flight->mpi == MPI_REQUEST_NULL)
        return;
    MPI_Cancel(&flight->mpi);
    MPI_Wait(&flight->mpi, MPI_STATUS_IGNORE);
}

static void
mpi_tell_lacking(const wm_peer_t *peer, size_t room, char *told)
{
    (void)peer;
    wm_error_cut(wm_mpi_is_cuda_aware() == 0
                     ? "it says that it is not CUDA-aware"
                     : "it does not say that it is CUDA-aware; if it is, set "
                       "WARPMPI_TRANSPORT=mpi",
                 room, told);
}

const wm_link_t wm_link_mpi = {
    .name = "mpi",
    .title = "MPI",
    .by_comm = true,
    .unstaged = mpi_unstaged,
    .send = mpi_send,
    .receive = mpi_receive,
    .test = mpi_test,
    .cancel = mpi_cancel,
    .tell_lacking = mpi_tell_lacking,
    .open = mpi_open,
    .reach = mpi_reach,
};

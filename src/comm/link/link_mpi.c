// SPDX-License-Identifier: BSD-3-Clause
// Device memory that a CUDA-aware MPI carries: nothing is offered, and MPI
// gets the chunks of chunks.c in place. Used if it is forced, or if no memory
// is shared and MPI says that it takes device memory.
#include "comm/engine/optional_mpi.h"
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

const wm_link_t wm_link_mpi = {
    WM_LINK_NAMED(mpi),
    .open = mpi_open,
    .reach = mpi_reach,
};

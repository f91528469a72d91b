// SPDX-License-Identifier: BSD-3-Clause
// Device memory that a CUDA-aware MPI carries: nothing is offered, and MPI
// gets the chunks of chunks.c in place. Used if it is forced, or if no memory
// is shared and MPI says that it takes device memory.
#include "comm/engine/optional_mpi.h"
#include "comm/engine/stats.h"
#include "comm/protocol/transport.h"

int
wm_mpi_is_cuda_aware(void)
{
    return MPIX_Query_cuda_support == NULL ? -1
                                           : MPIX_Query_cuda_support() != 0;
}

static bool
mpi_reach(const wm_peer_t *peer, const wm_pointer_t *into, const char **reason)
{
    (void)into;
    bool asked = wm_transport_forced() == &wm_transport_mpi;
    *reason = "the peer is this process";
    if (peer->self)
        return false;
    *reason = "MPI reports that it is CUDA-aware; MPI delivers GPU data";
    return asked
           || (wm_transport_forced() == NULL && peer->segment == NULL
               && wm_mpi_is_cuda_aware() == 1);
}

static void
mpi_count(const wm_end_t *end)
{
    wm_stat_add(WM_STAT_mpi_messages, 1);
    wm_stat_add(WM_STAT_mpi_bytes, (int64_t)end->header.nbytes);
}

const wm_transport_t wm_transport_mpi = {
    .name = "mpi",
    .reach = mpi_reach,
    .count = mpi_count,
};

// SPDX-License-Identifier: BSD-3-Clause
#include "comm/engine/progress_mpi.h"

#include "comm/engine/posted.h"

// A receive that never matches. MPI_Test of it lets MPI advance everything
// that is under way. A probe would not do so if it found a message.
static MPI_Comm alone = MPI_COMM_NULL;
static MPI_Request never = MPI_REQUEST_NULL;

void
wm_progress_mpi_begin(void)
{
    wm_error_t err;
    if (wm_mpi_duplicate(MPI_COMM_SELF, &alone, &err) < 0
        || MPI_Irecv(NULL, 0, MPI_BYTE, 0, 0, alone, &never) != MPI_SUCCESS)
        never = MPI_REQUEST_NULL;
}

void
wm_progress_mpi_end(void)
{
    if (never != MPI_REQUEST_NULL) {
        MPI_Cancel(&never);
        MPI_Wait(&never, MPI_STATUS_IGNORE);
    }
    if (alone != MPI_COMM_NULL)
        MPI_Comm_free(&alone);
}

void
wm_progress_mpi(void)
{
    int flag;
    if (never != MPI_REQUEST_NULL)
        MPI_Test(&never, &flag, MPI_STATUS_IGNORE);
}

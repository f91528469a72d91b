// SPDX-License-Identifier: BSD-3-Clause
#include "comm/engine/poke.h"

#include "comm/engine/posted.h"

// A receive that nobody sends for. To test it is to let MPI see to whatever is
// under way, the program's own messages, too; probing is not, where something
// is found.
static MPI_Comm alone = MPI_COMM_NULL;
static MPI_Request never = MPI_REQUEST_NULL;

void
wm_poke_begin(void)
{
    wm_error_t err;
    if (wm_mpi_duplicate(MPI_COMM_SELF, &alone, &err) < 0
        || MPI_Irecv(NULL, 0, MPI_BYTE, 0, 0, alone, &never) != MPI_SUCCESS)
        never = MPI_REQUEST_NULL;
}

void
wm_poke_end(void)
{
    if (never != MPI_REQUEST_NULL) {
        MPI_Cancel(&never);
        MPI_Wait(&never, MPI_STATUS_IGNORE);
    }
    if (alone != MPI_COMM_NULL)
        MPI_Comm_free(&alone);
}

void
wm_poke_mpi(void)
{
    int flag;
    if (never != MPI_REQUEST_NULL)
        MPI_Test(&never, &flag, MPI_STATUS_IGNORE);
}

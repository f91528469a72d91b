// SPDX-License-Identifier: BSD-3-Clause
// MPI progress: lets MPI advance what it has under way, the program's own
// messages included, when no operation of ours has called it for a while.
#ifndef WM_COMM_ENGINE_PROGRESS_MPI_H
#define WM_COMM_ENGINE_PROGRESS_MPI_H

// Begins and ends the use of wm_progress_mpi(), while MPI runs.
void
wm_progress_mpi_begin(void);
void
wm_progress_mpi_end(void);

void
wm_progress_mpi(void);

#endif

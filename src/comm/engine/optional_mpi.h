// SPDX-License-Identifier: BSD-3-Clause
// Functions and objects of MPI that not every library of an ABI has, though
// the mpi.h that we compile with declares them: their address is NULL where
// the library lacks them. Include this in place of mpi.h.
#ifndef WM_COMM_ENGINE_OPTIONAL_MPI_H
#define WM_COMM_ENGINE_OPTIONAL_MPI_H

#include <mpi.h>

#if defined(OPEN_MPI) && defined(__has_include)
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif
#pragma weak ompi_mpi_errors_abort
#endif

#pragma weak MPI_Type_get_contents_c
#pragma weak MPI_Type_get_envelope_c
#pragma weak MPIX_Comm_failure_ack
#pragma weak MPIX_Comm_get_failed
#pragma weak MPIX_Comm_revoke

// Open MPI and MPICH have this function if they were built with CUDA.
#pragma weak MPIX_Query_cuda_support
extern int
MPIX_Query_cuda_support(void);

#endif

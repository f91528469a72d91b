// SPDX-License-Identifier: BSD-3-Clause
// A line on stderr if the process dies because host code, such as MPI, has
// used a device pointer.
#ifndef WM_COMM_DIAGNOSTICS_FAULT_H
#define WM_COMM_DIAGNOSTICS_FAULT_H

#include <stdbool.h>

// Installs a handler for SIGSEGV before the present one, and a thread that
// asks the driver about the address. At the first fault the handler installs
// the former one again, which the fault then reaches unchanged. Does nothing
// before MPI_Init, after MPI_Finalize, and on a host without an NVIDIA driver.
// Idempotent, and cheap then. Any thread.
void
wm_fault_watch(void);

// Installs the former handler again. Returns false if another was installed
// since, which stays.
bool
wm_fault_end(void);

#endif

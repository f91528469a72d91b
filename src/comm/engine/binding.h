// SPDX-License-Identifier: BSD-3-Clause
// The cores to which an MPI launcher has bound this rank. mpirun of Open MPI
// binds each of one or two ranks to one core, unless it is told otherwise, and
// threads that a library begins there take turns with ours. These may use the
// cores of the launcher, which it has by the user's will (taskset), the batch
// system's or the container's. Binding by others than a launcher, and to more
// than one core, is left as it is.
#ifndef WM_COMM_ENGINE_BINDING_H
#define WM_COMM_ENGINE_BINDING_H

#include <stdbool.h>

typedef struct {
    bool wide;
    unsigned long own[16]; // a cpu_set_t: the cores of the calling thread
} wm_binding_t;

// If a launcher has bound this thread to one core, lets it, and threads that
// it begins, run on the launcher's until wm_binding_restore(). Both in one
// thread; no lock.
void
wm_binding_widen(wm_binding_t *binding);
void
wm_binding_restore(const wm_binding_t *binding);

#endif

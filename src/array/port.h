// SPDX-License-Identifier: BSD-3-Clause
// The launcher of messages in CUDA graphs (kernels/port.h): the ends of
// several messages in one kernel. A kernel waits for kernels of other
// processes, so all blocks of all of them must be able to run at once. Any
// thread; no GIL.
#ifndef WM_ARRAY_PORT_H
#define WM_ARRAY_PORT_H

#include <stdbool.h>

#include "cuda/device.h"
#include "kernels/port.h"

// An operation of a port; its blocks are chosen here.
typedef struct {
    wm_port_t *port;
    wm_port_late_t *late;
    char *user;
    uint32_t what;   // bits WM_PORT_…
    uint64_t nbytes; // of the user's memory
} wm_port_work_t;

// Loads the kernels, which may wait for the device. Idempotent.
WM_MUST_CHECK int
wm_port_prepare(int device, wm_error_t *err);

// Returns the bytes of LL lines for so many bytes, which are a slot of a
// mailbox.
uint64_t
wm_port_slot_bytes(uint64_t nbytes);

// Returns the blocks that a process may have on the device, at least 2.
// `sharers`: processes whose kernels run there at once, at most.
int
wm_port_room(const wm_device_t *device, int sharers);

// Returns true if a kernel of `room` blocks can have so many operations, the
// last `others` of which are not required.
bool
wm_port_fits(int count, int others, int room);

// Enqueues one kernel for operations that fit, of which the first are
// required, and the others done if that needs no wait.
WM_MUST_CHECK int
wm_port_launch(int device, const wm_port_work_t *works, int count,
               int required, int room, CUstream stream, wm_error_t *err);

// Reads a port, and waits until this is done. *quiet is true if no message is
// under way: each one that a kernel has begun has ended. *passed is the number
// of messages so far.
WM_MUST_CHECK int
wm_port_look(int device, const wm_port_t *port, bool *quiet, uint32_t *passed,
             wm_error_t *err);

// Writes into a port that no message passes any more, and waits until this is
// done. No kernel that begins later moves data.
WM_MUST_CHECK int
wm_port_close(int device, wm_port_t *port, wm_error_t *err);

#endif

// SPDX-License-Identifier: BSD-3-Clause
// Devices and their primary contexts. A context is retained at the first use
// of a device by this library and never before (import makes none), and kept
// until the process ends: CuPy, Torch, Warp and JAX share it.
// Any thread; nothing here needs or touches the GIL.
#ifndef WM_CUDA_DEVICE_H
#define WM_CUDA_DEVICE_H

#include "cuda/driver.h"

#define WM_MAX_DEVICES 64

typedef struct {
    int ordinal;
    CUdevice handle;
    CUcontext context; // NULL until wm_device_get() retained it
    char name[96];
    char pci_bus_id[20];
    CUuuid uuid;
    int multiprocessors;
    int major; // of its compute capability
    bool mps;  // processes that share it do so at once
    size_t total_memory;
} wm_device_t;

// What wm_device_enter() has to undo.
typedef struct {
    CUcontext previous;
    CUstreamCaptureMode mode;
    int ordinal;
    bool pushed;
    bool stayed; // nothing to undo: the thread was there
} wm_scope_t;

// Number of devices; 0 without a driver.
int
wm_device_count(void);

// The device, its primary context retained. Borrowed, lives for ever.
// WM_ERR_VALUE for an unknown ordinal (the text tells the valid ones),
// WM_ERR_STATE in a child forked after CUDA was initialised.
WM_MUST_CHECK int
wm_device_get(int ordinal, const wm_device_t **device, wm_error_t *err);

// The same facts without retaining a context (context may be NULL).
WM_MUST_CHECK int
wm_device_describe(int ordinal, const wm_device_t **device, wm_error_t *err);

// Makes the device's primary context current on this thread and relaxes the
// thread's stream capture mode, so that a capture going on anywhere is not
// spoiled by our calls. Every successful enter is followed by one leave on
// the same thread, which restores both.
WM_MUST_CHECK int
wm_device_enter(int ordinal, wm_scope_t *scope, wm_error_t *err);

void
wm_device_leave(const wm_scope_t *scope);

// From wm_device_stay() to wm_device_go() the thread remains in the first
// device that it leaves: entering that again asks only whether it is still
// there. For a few calls in a row.
void
wm_device_stay(void);

void
wm_device_go(void);

// Waits for all work on the device.
WM_MUST_CHECK int
wm_device_synchronize(int ordinal, wm_error_t *err);

// Whether `device` can read and write the memory of `peer` (true for itself).
WM_MUST_CHECK int
wm_device_can_access(int device, int peer, bool *can, wm_error_t *err);

// Whether the one with that id is linked to `device` so closely that it keeps
// the bytes of a store together (NVLink), or is the same. False where this
// process does not see it.
WM_MUST_CHECK int
wm_device_is_linked(int device, const CUuuid *peer, bool *linked,
                    wm_error_t *err);

// Lets `device` reach memory of `peer` in this process; idempotent, and no
// error where it is impossible (copies between them then go through the
// driver's own staging).
WM_MUST_CHECK int
wm_device_enable_peer(int device, int peer, wm_error_t *err);

// Free and total bytes of the device.
WM_MUST_CHECK int
wm_device_memory(int ordinal, size_t *free, size_t *total, wm_error_t *err);

// The ordinal of the device a stream belongs to: for the default streams that
// of the context current on this thread. WM_ERR_VALUE for none that we see.
WM_MUST_CHECK int
wm_device_of_stream(CUstream stream, int *ordinal, wm_error_t *err);

// Whether anybody in this process has the device's primary context active;
// makes none.
WM_MUST_CHECK int
wm_device_active(int ordinal, bool *active, wm_error_t *err);

// The device of this process's local rank, as the launcher's environment
// tells it (rank modulo visible devices; 0 outside a launcher), or -1 where
// there is no device.
int
wm_device_default(void);

// The device current on this thread, or -1 where no context is current.
int
wm_device_current(void);

// True in a process forked after CUDA was initialised in its parent; every
// entry point above that can fail then answers WM_ERR_STATE.
bool
wm_device_forked(void);

#endif

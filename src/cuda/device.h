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
    int major, minor; // its compute capability
    bool mps;         // MPS: processes share the device concurrently
    size_t total_memory;
} wm_device_t;

// The state that wm_device_leave() restores.
typedef struct {
    CUcontext previous;
    CUstreamCaptureMode mode;
    int ordinal;
    bool pushed;
    bool stayed; // nothing to restore: the thread was on this device
} wm_scope_t;

// Returns the number of devices; 0 without a driver.
int
wm_device_count(void);

// Finds a device, with its primary context retained. Borrowed, valid for ever.
// Fails with WM_ERR_VALUE for an unknown ordinal (the text tells the valid
// ones), and with WM_ERR_STATE in a child forked after CUDA was initialised.
WM_MUST_CHECK int
wm_device_get(int ordinal, const wm_device_t **device, wm_error_t *err);

// Finds a device without retaining its context (context may be NULL).
WM_MUST_CHECK int
wm_device_describe(int ordinal, const wm_device_t **device, wm_error_t *err);

// Makes the device's primary context current on this thread and relaxes the
// thread's stream capture mode, so that our calls do not spoil a capture
// anywhere. After success the same thread calls wm_device_leave once, which
// restores both.
WM_MUST_CHECK int
wm_device_enter(int ordinal, wm_scope_t *scope, wm_error_t *err);

void
wm_device_leave(const wm_scope_t *scope);

// Makes a driver call on a device:
// WM_CU_ON(device, err, EventSynchronize, event).
#define WM_CU_ON(device, err, name, ...)                                      \
    WM_CU_ON_OR(device, err, code_, name, __VA_ARGS__)

// The same; if the driver call fails, evaluates `failure`, such as
// wm_error_context(err, ...), and returns the code of the call, which is not
// known there without `err`.
#define WM_CU_ON_OR(device, err, failure, name, ...)                          \
    ({                                                                        \
        wm_scope_t scope_;                                                    \
        int code_ = wm_device_enter(device, &scope_, err);                    \
        if (code_ == 0) {                                                     \
            code_ = wm_cu_check(wm_cu.name(__VA_ARGS__),                      \
                                "cu" #name "(" #__VA_ARGS__ ")", err);        \
            wm_device_leave(&scope_);                                         \
            if (code_ < 0)                                                    \
                (void)!(failure);                                             \
        }                                                                     \
        code_;                                                                \
    })

// Between wm_device_stay() and wm_device_go() the thread remains on the first
// device that it leaves: to enter this device again costs one query. For a few
// calls in a row.
void
wm_device_stay(void);

void
wm_device_go(void);

// Sets the stream capture mode of this thread, and returns the one before, to
// which the caller sets it again. While it is relaxed, functions of others may
// free GPU memory without spoiling a capture. No-op without a driver.
CUstreamCaptureMode
wm_device_set_mode(CUstreamCaptureMode mode);

// Waits for all work on the device.
WM_MUST_CHECK int
wm_device_synchronize(int ordinal, wm_error_t *err);

// Sets *can to true if `device` can read and write the memory of `peer` (or is
// `peer`).
WM_MUST_CHECK int
wm_device_can_access(int device, int peer, bool *can, wm_error_t *err);

// Sets *linked to true if the device with the id `peer` is `device`, or has a
// link that keeps the bytes of a store together (NVLink). Sets false if this
// process does not see the peer.
WM_MUST_CHECK int
wm_device_is_linked(int device, const CUuuid *peer, bool *linked,
                    wm_error_t *err);

// Lets `device` reach memory of `peer` in this process; idempotent. No error
// if this is impossible: the driver then stages copies between them.
WM_MUST_CHECK int
wm_device_enable_peer(int device, int peer, wm_error_t *err);

// Writes the free and the total bytes of the device.
WM_MUST_CHECK int
wm_device_memory(int ordinal, size_t *free, size_t *total, wm_error_t *err);

// Returns the ordinal of the device that a context is on, or -1.
int
wm_device_of_context(CUcontext context);

// Sets *active to true if the device's primary context is active in this
// process. Makes no context.
WM_MUST_CHECK int
wm_device_active(int ordinal, bool *active, wm_error_t *err);

// Returns the device of this process's local rank, from the launcher's
// environment (rank modulo visible devices; 0 outside a launcher), or -1 if
// there is no device.
int
wm_device_default(void);

// Returns the device current on this thread, or -1 if no context is current.
int
wm_device_current(void);

#endif

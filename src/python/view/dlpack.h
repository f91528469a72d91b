// SPDX-License-Identifier: BSD-3-Clause
// The DLPack ABI, as declarations of our own: tensors that frameworks
// exchange, and the table of C functions that a tensor type may offer as the
// capsule `__dlpack_c_exchange_api__` (since DLPack 1.2). The standard fixes
// the layouts: dmlc.github.io/dlpack.
#ifndef WM_PYTHON_VIEW_DLPACK_H
#define WM_PYTHON_VIEW_DLPACK_H

#include <stdint.h>

// The version of these declarations. A higher minor version only adds type
// codes.
#define WM_DL_MAJOR 1
#define WM_DL_MINOR 3

enum {
    WM_DL_CPU = 1,
    WM_DL_CUDA = 2,
    WM_DL_CUDA_HOST = 3, // pinned
    WM_DL_CUDA_MANAGED = 13,
};

#define WM_DL_READ_ONLY 1u
#define WM_DL_COPIED 2u

typedef struct {
    uint32_t major;
    uint32_t minor;
} wm_dl_version_t;

typedef struct {
    int32_t type;
    int32_t id;
} wm_dl_device_t;

typedef struct {
    void *data;
    wm_dl_device_t device;
    int32_t ndim;
    struct {
        uint8_t code;
        uint8_t bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape;
    int64_t *strides; // elements; NULL means row-major
    uint64_t byte_offset;
} wm_dl_tensor_t;

// Before version 1: capsule "dltensor".
typedef struct wm_dl_managed {
    wm_dl_tensor_t tensor;
    void *context;
    void (*deleter)(struct wm_dl_managed *self); // may be NULL
} wm_dl_managed_t;

// Version 1: capsule "dltensor_versioned".
typedef struct wm_dl_versioned {
    wm_dl_version_t version;
    void *context;
    void (*deleter)(struct wm_dl_versioned *self); // may be NULL
    uint64_t flags;
    wm_dl_tensor_t tensor;
} wm_dl_versioned_t;

// A type's functions: capsule "dlpack_exchange_api". The caller holds the GIL;
// all set a Python exception when they return -1.
typedef struct wm_dl_exchange {
    wm_dl_version_t version;
    struct wm_dl_exchange *previous; // for an older major version, or NULL
    int (*allocate)(wm_dl_tensor_t *prototype, wm_dl_versioned_t **made,
                    void *error_context,
                    void (*set_error)(void *error_context, const char *kind,
                                      const char *message));
    // Neither function waits for a stream; the first gives ownership.
    int (*from_object)(void *object, wm_dl_versioned_t **made);
    int (*to_object)(wm_dl_versioned_t *tensor, void **made);
    // Borrowed from the object; NULL if not offered.
    int (*borrow)(void *object, wm_dl_tensor_t *tensor);
    int (*current_stream)(int32_t device_type, int32_t device_id,
                          void **stream);
} wm_dl_exchange_t;

#endif

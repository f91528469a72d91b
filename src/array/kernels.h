// SPDX-License-Identifier: BSD-3-Clause
// The kernels of each device, loaded once for each device, and the launchers
// of the copy and fill kernels. The build makes the image from src/kernels.
// Any thread; no GIL.
#ifndef WM_ARRAY_KERNELS_H
#define WM_ARRAY_KERNELS_H

#include "array/layout.h"

// Loads the module of all kernels on `device`; idempotent.
WM_MUST_CHECK int
wm_kernels_load(int device, wm_error_t *err);

// Finds a kernel by name in the module; loads the module if need be.
WM_MUST_CHECK int
wm_kernels_find(int device, const char *name, CUfunction *function,
                wm_error_t *err);

// Finds several kernels. Does nothing if the last of them was found before.
WM_MUST_CHECK int
wm_kernels_find_all(int device, const char *const *names, int count,
                    _Atomic(CUfunction) *functions, wm_error_t *err);

// Enqueue the strided copy, or fill every element at dst with the `itemsize`
// bytes at `value`. `device` can reach both sides.
WM_MUST_CHECK int
wm_kernels_copy(const wm_layout_t *layout, int device, CUstream stream,
                wm_error_t *err);

WM_MUST_CHECK int
wm_kernels_fill(const wm_layout_t *layout, const void *value, size_t itemsize,
                int device, CUstream stream, wm_error_t *err);

#endif

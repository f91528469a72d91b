// SPDX-License-Identifier: BSD-3-Clause
// The CUDA driver, opened at first use and never linked: one table of
// function pointers filled through cuGetProcAddress from one X-macro list
// (driver_list.h). WARPMPI_CUDA_DRIVER overrides the library's path.
// Filled once by any thread; a failure is latched and told each time.
#ifndef WM_CUDA_DRIVER_H
#define WM_CUDA_DRIVER_H

#include <cuda.h>
#include <cudaTypedefs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/error.h"

typedef struct {
#define X(name, version, need) PFN_cu##name##_v##version name;
#include "cuda/driver_list.h"
#undef X
} wm_driver_t;

// The table. Valid only after wm_driver_load() returned 0.
extern wm_driver_t wm_cu;

// Loads the driver and calls cuInit, once. WM_ERR_DRIVER says what is
// missing, WM_ERR_STATE that this is a forked child; without a driver this
// costs one failed dlopen per process.
WM_MUST_CHECK int
wm_driver_load(wm_error_t *err);

// The driver's version as CUDA gives it (13000 is 13.0), 0 without one.
int
wm_driver_version(void);

// Number of devices the driver sees; 0 without one, or where it has failed.
int
wm_driver_device_count(void);

// True in a process forked after the driver was initialised in its parent.
bool
wm_driver_forked(void);

// Whether anybody in this process has loaded the driver's library, and ours
// therefore is (or now was) usable. Where nobody has, no pointer can be
// CUDA's; costs 0.1 us then, and one atomic load afterwards.
bool
wm_driver_in_process(void);

// CUDA's name of a result, such as "CUDA_ERROR_INVALID_VALUE"; static text.
const char *
wm_cu_error_name(int result);

// Turns a CUresult into 0 or an error naming the call's own text and CUDA's
// text for the result. CUDA_ERROR_OUT_OF_MEMORY becomes WM_ERR_MEMORY.
// WARPMPI_LOG=cuda writes each call and its result to stderr.
WM_MUST_CHECK int
wm_cu_check(CUresult result, const char *call, wm_error_t *err);

// How every driver call is made: WM_CU(err, MemAlloc, &ptr, size).
#define WM_CU(err, name, ...)                                                 \
    wm_cu_check(wm_cu.name(__VA_ARGS__), "cu" #name "(" #__VA_ARGS__ ")", err)

#endif

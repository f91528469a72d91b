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

// The table; valid only after wm_driver_load() returned 0.
extern wm_driver_t wm_cu;

// Loads the driver and calls cuInit, once. Fails with WM_ERR_DRIVER, whose
// text says what is missing, and with WM_ERR_STATE in a forked child. Without
// a driver this costs one failed dlopen for each process.
WM_MUST_CHECK int
wm_driver_load(wm_error_t *err);

// Returns the driver's version as CUDA gives it (13000 is 13.0), 0 without a
// driver.
int
wm_driver_version(void);

// Returns the number of devices the driver sees; 0 without a driver, or if it
// failed.
int
wm_driver_device_count(void);

// Returns true in a process forked after the driver was initialised in its
// parent. Functions of this layer that can fail then fail with WM_ERR_STATE.
bool
wm_driver_forked(void);

// Returns true if any code in this process has loaded the driver's library and
// our table is usable; fills the table if need be. While no code has, no
// pointer is CUDA's; a call costs 0.1 us then, and one atomic load afterwards.
bool
wm_driver_in_process(void);

// Returns true if this host has no NVIDIA driver; asks the system, not CUDA.
bool
wm_driver_host_lacks(void);

// Returns true if no process of this host can use a GPU, not even a simulated
// one, for which WARPMPI_CUDA_DRIVER names the driver.
bool
wm_driver_is_absent(void);

// Returns CUDA's name of a result, such as "CUDA_ERROR_INVALID_VALUE"; static
// text.
const char *
wm_cu_error_name(int result);

// Turns a CUresult into 0 or an error with the text of the call and CUDA's
// text of the result. CUDA_ERROR_OUT_OF_MEMORY becomes WM_ERR_MEMORY.
// WARPMPI_LOG=cuda writes each call and its result to stderr.
WM_MUST_CHECK int
wm_cu_check(CUresult result, const char *call, wm_error_t *err);

// Makes a driver call: WM_CU(err, MemAlloc, &ptr, size).
#define WM_CU(err, name, ...)                                                 \
    wm_cu_check(wm_cu.name(__VA_ARGS__), "cu" #name "(" #__VA_ARGS__ ")", err)

#endif

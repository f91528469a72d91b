// SPDX-License-Identifier: BSD-3-Clause
// Errors, in a fixed buffer: no allocation, no Python, any thread. The first
// function that knows the cause writes the error, the others pass it on.
// Functions return 0 or a negative code; `err` may be NULL if the caller does
// not need the text.
#ifndef WM_CUDA_ERROR_H
#define WM_CUDA_ERROR_H

#include <stdarg.h>
#include <stddef.h>

#define WM_MUST_CHECK __attribute__((warn_unused_result))

typedef enum {
    WM_OK = 0,
    WM_ERR_CUDA = -1,     // wm.CudaError; err->detail is the CUresult
    WM_ERR_MEMORY = -2,   // wm.OutOfMemoryError (device) or MemoryError
    WM_ERR_DRIVER = -3,   // no usable driver: wm.CudaError
    WM_ERR_VALUE = -4,    // ValueError
    WM_ERR_TYPE = -5,     // TypeError
    WM_ERR_MPI = -6,      // MPI.Exception; err->detail is the MPI error code
    WM_ERR_SYSTEM = -7,   // OSError; err->detail is errno
    WM_ERR_STATE = -8,    // RuntimeError
    WM_ERR_TRUNCATE = -9, // MPI.Exception(MPI.ERR_TRUNCATE)
    WM_ERR_PYTHON = -10,  // a Python exception is already set
    WM_ERR_STAGING = -11, // wm.StagingError
} wm_code_t;

typedef struct {
    int code;   // a wm_code_t
    int detail; // CUresult, MPI error code or errno
    char text[500];
} wm_error_t;

// Writes code, detail and text; returns `code`, for use in a return statement.
int
wm_error_set(wm_error_t *err, int code, int detail, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

// Prepends the formatted text and ": " to the text of an error already
// written. Returns the error's code, WM_ERR_STATE if `err` is NULL: a caller
// whose callers need the code returns the code itself.
int
wm_error_context(wm_error_t *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

// Copies a text into `room` bytes, with its terminating zero. A text that does
// not fit is cut behind a whole word and ends in " ...".
void
wm_error_cut(const char *text, size_t room, char *cut);

#endif

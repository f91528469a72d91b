// SPDX-License-Identifier: BSD-3-Clause
// Element types: one table from which typestrings, DLPack codes and names
// are read. Values of a type are native byte order. Any thread.
#ifndef WM_ARRAY_DTYPE_H
#define WM_ARRAY_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/error.h"

typedef enum {
    WM_BOOL,
    WM_INT8,
    WM_INT16,
    WM_INT32,
    WM_INT64,
    WM_UINT8,
    WM_UINT16,
    WM_UINT32,
    WM_UINT64,
    WM_FLOAT16,
    WM_FLOAT32,
    WM_FLOAT64,
    WM_COMPLEX64,
    WM_COMPLEX128,
    WM_BFLOAT16,
    WM_DTYPES, // number of them
} wm_dtype_t;

typedef struct {
    const char *name;    // "float32"
    const char *typestr; // "<f4"; "|b1"; NULL for bfloat16
    uint8_t itemsize;    // bytes
    uint8_t dlpack_code; // kDLInt …
    uint8_t dlpack_bits;
} wm_dtype_info_t;

// Facts of a type; borrowed, static.
const wm_dtype_info_t *
wm_dtype_info(wm_dtype_t dtype);

// From an array-interface typestring ("<f4", "=i8", "|u1"); WM_ERR_TYPE for an
// unsupported one and for a foreign byte order, each told apart.
WM_MUST_CHECK int
wm_dtype_from_typestr(const char *typestr, wm_dtype_t *dtype, wm_error_t *err);

WM_MUST_CHECK int
wm_dtype_from_dlpack(uint8_t code, uint8_t bits, uint16_t lanes,
                     wm_dtype_t *dtype, wm_error_t *err);

#endif

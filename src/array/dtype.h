// SPDX-License-Identifier: BSD-3-Clause
// Element types: one table from which typestrings, DLPack codes and names
// are read. Values of a type are native byte order. Any thread.
#ifndef WM_ARRAY_DTYPE_H
#define WM_ARRAY_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/error.h"

// X(NAME, name, typestring (NULL: none), bytes, DLPack's code, format of the
// buffer protocol (NULL: none), MPI's type). Signed and unsigned integers are
// in order of size, in groups of four, and so are the three floats: code that
// reads letters and NumPy's numbers relies on this order (dtype.c asserts it).
#define WM_DTYPE_ROWS(X)                                                      \
    X(BOOL, "bool", "|b1", 1, BOOL, "?", MPI_C_BOOL)                          \
    X(INT8, "int8", "|i1", 1, INT, "b", MPI_INT8_T)                           \
    X(INT16, "int16", "<i2", 2, INT, "h", MPI_INT16_T)                        \
    X(INT32, "int32", "<i4", 4, INT, "i", MPI_INT32_T)                        \
    X(INT64, "int64", "<i8", 8, INT, "l", MPI_INT64_T)                        \
    X(UINT8, "uint8", "|u1", 1, UINT, "B", MPI_UINT8_T)                       \
    X(UINT16, "uint16", "<u2", 2, UINT, "H", MPI_UINT16_T)                    \
    X(UINT32, "uint32", "<u4", 4, UINT, "I", MPI_UINT32_T)                    \
    X(UINT64, "uint64", "<u8", 8, UINT, "L", MPI_UINT64_T)                    \
    X(FLOAT16, "float16", "<f2", 2, FLOAT, "e", MPI_DATATYPE_NULL)            \
    X(FLOAT32, "float32", "<f4", 4, FLOAT, "f", MPI_FLOAT)                    \
    X(FLOAT64, "float64", "<f8", 8, FLOAT, "d", MPI_DOUBLE)                   \
    X(COMPLEX64, "complex64", "<c8", 8, COMPLEX, "Zf", MPI_C_FLOAT_COMPLEX)   \
    X(COMPLEX128, "complex128", "<c16", 16, COMPLEX, "Zd",                    \
      MPI_C_DOUBLE_COMPLEX)                                                   \
    X(BFLOAT16, "bfloat16", NULL, 2, BFLOAT, NULL, MPI_DATATYPE_NULL)

typedef enum {
#define X(NAME, ...) WM_##NAME,
    WM_DTYPE_ROWS(X)
#undef X
        WM_DTYPES, // number of them
} wm_dtype_t;

typedef struct {
    const char *name;    // "float32"
    const char *typestr; // "<f4", "|b1"; NULL for types of ml_dtypes
    uint8_t itemsize;    // bytes
    uint8_t dlpack_code; // kDLInt …
    uint8_t dlpack_bits;
    const char *format; // format of the buffer protocol; NULL as above
} wm_dtype_info_t;

// Returns the facts of a type; borrowed, static.
const wm_dtype_info_t *
wm_dtype_info(wm_dtype_t dtype);

// Finds the type of an array-interface typestring ("<f4", "=i8", "|u1"). Fails
// with WM_ERR_TYPE for an unsupported type and, with another text, for a
// foreign byte order.
WM_MUST_CHECK int
wm_dtype_from_typestr(const char *typestr, wm_dtype_t *dtype, wm_error_t *err);

// Finds the type of a DLPack type. Fails with WM_ERR_TYPE for an unsupported
// one.
WM_MUST_CHECK int
wm_dtype_from_dlpack(uint8_t code, uint8_t bits, uint16_t lanes,
                     wm_dtype_t *dtype, wm_error_t *err);

#endif

// SPDX-License-Identifier: BSD-3-Clause
// MPI's reductions: operations, element types, and the parameters of the
// kernels wm_reduce_<name>. Shared by C and CUDA.
#ifndef WM_KERNELS_REDUCE_H
#define WM_KERNELS_REDUCE_H

#include <stdint.h>

#include "kernels/signal.h"

#define WM_REDUCE_SOURCES 64
#define WM_REDUCE_TARGETS 64

typedef enum {
    WM_REDUCE_SUM,
    WM_REDUCE_PROD,
    WM_REDUCE_MIN,
    WM_REDUCE_MAX,
    WM_REDUCE_LAND,
    WM_REDUCE_LOR,
    WM_REDUCE_LXOR,
    WM_REDUCE_BAND,
    WM_REDUCE_BOR,
    WM_REDUCE_BXOR,
    WM_REDUCE_MINLOC,
    WM_REDUCE_MAXLOC,
    WM_REDUCE_REPLACE, // result: the last source
    WM_REDUCE_NO_OP,   // result: the first source
    WM_REDUCE_AVG,     // not MPI's: the sum, divided by the number of sources
    WM_REDUCE_OPS,     // number of them

    // Operations that integer kernels use for signed elements.
    WM_REDUCE_MIN_SIGNED = WM_REDUCE_OPS,
    WM_REDUCE_MAX_SIGNED,
} wm_reduce_op_t;

// X(NAME, name, family): the types of array/dtype.h in their order, so that a
// wm_dtype_t is a valid type, then MPI's pairs of a value and an index. `name`
// is a row below; signed and unsigned integers share a row.
#define WM_REDUCE_TYPE_ROWS(X)                                                \
    X(BOOL, uint8, LOGICAL)                                                   \
    X(INT8, uint8, SIGNED)                                                    \
    X(INT16, uint16, SIGNED)                                                  \
    X(INT32, uint32, SIGNED)                                                  \
    X(INT64, uint64, SIGNED)                                                  \
    X(UINT8, uint8, UNSIGNED)                                                 \
    X(UINT16, uint16, UNSIGNED)                                               \
    X(UINT32, uint32, UNSIGNED)                                               \
    X(UINT64, uint64, UNSIGNED)                                               \
    X(FLOAT16, float16, FLOAT)                                                \
    X(FLOAT32, float32, FLOAT)                                                \
    X(FLOAT64, float64, FLOAT)                                                \
    X(COMPLEX64, complex64, COMPLEX)                                          \
    X(COMPLEX128, complex128, COMPLEX)                                        \
    X(BFLOAT16, bfloat16, FLOAT)                                              \
    X(FLOAT_INT, float_int, PAIR)                                             \
    X(DOUBLE_INT, double_int, PAIR)                                           \
    X(LONG_INT, long_int, PAIR)                                               \
    X(INT_INT, int_int, PAIR)                                                 \
    X(SHORT_INT, short_int, PAIR)

typedef enum {
#define X(NAME, ...) WM_REDUCE_##NAME,
    WM_REDUCE_TYPE_ROWS(X)
#undef X
        WM_REDUCE_TYPES, // number of them
} wm_reduce_type_t;

typedef struct {
    uint16_t bits;
} wm_float16_t;

typedef struct {
    uint16_t bits;
} wm_bfloat16_t;

typedef struct {
    float re, im;
} wm_complex64_t;

typedef struct {
    double re, im;
} wm_complex128_t;

// MPI's pairs; the padding is copied with the rest.
typedef struct {
    float value;
    int32_t index;
} wm_float_int_t;

typedef struct {
    double value;
    int32_t index, padding;
} wm_double_int_t;

typedef struct {
    int64_t value;
    int32_t index, padding;
} wm_long_int_t;

typedef struct {
    int32_t value, index;
} wm_int_int_t;

typedef struct {
    int16_t value, padding;
    int32_t index;
} wm_short_int_t;

// X(name, element type, type of computation): one kernel each.
#define WM_REDUCE_KERNEL_ROWS(X)                                              \
    X(uint8, uint8_t, uint8_t)                                                \
    X(uint16, uint16_t, uint16_t)                                             \
    X(uint32, uint32_t, uint32_t)                                             \
    X(uint64, uint64_t, uint64_t)                                             \
    X(float16, wm_float16_t, float)                                           \
    X(bfloat16, wm_bfloat16_t, float)                                         \
    X(float32, float, float)                                                  \
    X(float64, double, double)                                                \
    X(complex64, wm_complex64_t, wm_complex64_t)                              \
    X(complex128, wm_complex128_t, wm_complex128_t)                           \
    X(float_int, wm_float_int_t, wm_float_int_t)                              \
    X(double_int, wm_double_int_t, wm_double_int_t)                           \
    X(long_int, wm_long_int_t, wm_long_int_t)                                 \
    X(int_int, wm_int_int_t, wm_int_int_t)                                    \
    X(short_int, wm_short_int_t, wm_short_int_t)

// Kernels divide the sums of an average by this.
typedef struct {
    int32_t divisor;     // 0: no average; below 0: the elements have a sign
    uint64_t reciprocal; // 2^64 / |divisor|, rounded down
    double factor;       // 1 / |divisor|
} wm_average_t;

#define WM_REDUCE_VECTOR 16 // bytes

// The elements are `head` single ones, then `vectors` vectors, whose addresses
// WM_REDUCE_VECTOR divides on every side, then the rest of `singles`. A thread
// loads an element from all sources before it stores to a target, so that a
// target may be a source.
typedef struct {
    uint64_t vectors;
    uint64_t head;
    uint64_t singles; // before and after the vectors
    uint32_t op;
    wm_average_t average;
    uint32_t n;
    uint32_t targets;
    uint32_t aligned; // addresses suit the element type; else no vectors
    const char *src[WM_REDUCE_SOURCES];
    char *dst[WM_REDUCE_TARGETS];
    wm_signal_t signal;
} wm_reduce_params_t;

#define WM_FUSED_PARTS 32
#define WM_FUSED_POINTERS 320

// Several reductions with one operation and equal numbers of sources and
// targets. A part belongs to the blocks from `first` on; `at` is the index of
// its first pointer. Its targets follow its sources.
typedef struct {
    uint64_t vectors, head, singles;
    uint16_t first, at;
    uint32_t aligned;
} wm_fused_member_t;

typedef struct {
    uint32_t count, blocks, op, n, targets;
    wm_average_t average;
    wm_signal_t signal;
    wm_fused_member_t parts[WM_FUSED_PARTS];
    char *pointers[WM_FUSED_POINTERS];
} wm_fused_params_t;

#endif

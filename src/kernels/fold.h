// SPDX-License-Identifier: BSD-3-Clause
// Operations on elements: one source text for kernels (C++) and the host (C),
// compiled without contraction of products and sums, so that both give the
// same bits. Each row of WM_REDUCE_KERNEL_ROWS has four functions:
// wm_widen_<name> converts an element to the type it is computed in,
// wm_narrow_<name> converts back, wm_fold_<name> computes acc[i] = acc[i] op
// value[i] for i < n, and wm_divide_<name> divides acc[i] if an average is
// wanted. Nothing is divided by hardware: where that is a function call, all
// reductions would pay with registers.
#ifndef WM_KERNELS_FOLD_H
#define WM_KERNELS_FOLD_H

#include "kernels/narrow.h"

// The operation is chosen outside of the loop, which kernels unroll.
#define WM_FOLD(name, type_t, cases)                                          \
    WM_DEVICE void wm_fold_##name(uint32_t op, type_t *acc,                   \
                                  const type_t *value, int n)                 \
    {                                                                         \
        typedef type_t acc_t;                                                 \
        switch (op) {                                                         \
            cases                                                             \
        }                                                                     \
    }

#define WM_CASE(OP, result)                                                   \
    case WM_REDUCE_##OP:                                                      \
        WM_UNROLL                                                             \
        for (int i = 0; i < n; i++) {                                         \
            const acc_t a = acc[i], b = value[i];                             \
            acc[i] = result;                                                  \
        }                                                                     \
        break;

#define WM_DIVIDE(name, type_t, quotient)                                     \
    WM_DEVICE void wm_divide_##name(const wm_average_t *by, type_t *acc,      \
                                    int n)                                    \
    {                                                                         \
        if (by->divisor == 0)                                                 \
            return;                                                           \
        WM_UNROLL                                                             \
        for (int i = 0; i < n; i++) {                                         \
            const type_t a = acc[i];                                          \
            acc[i] = quotient;                                                \
        }                                                                     \
    }

#define WM_AS_IT_IS(name, type_t)                                             \
    WM_DEVICE type_t wm_widen_##name(type_t value)                            \
    {                                                                         \
        return value;                                                         \
    }                                                                         \
    WM_DEVICE type_t wm_narrow_##name(type_t value)                           \
    {                                                                         \
        return value;                                                         \
    }

WM_DEVICE uint32_t
wm_upper_uint32(uint32_t a, uint32_t b)
{
    return (uint32_t)((uint64_t)a * b >> 32);
}

WM_DEVICE uint64_t
wm_upper_uint64(uint64_t a, uint64_t b)
{
    return (uint64_t)((unsigned __int128)a * b >> 64);
}

// wide_t, uint32_t or uint64_t (`wide`), is unsigned after promotion, so that
// a product wraps. The upper half of a product with the reciprocal is the
// quotient, or 1 less.
#define WM_INTEGER(name, type_t, signed_t, wide, wide_t)                      \
    WM_AS_IT_IS(name, type_t)                                                 \
    WM_DEVICE type_t wm_quotient_##name(type_t a, const wm_average_t *by)     \
    {                                                                         \
        const int shift = 64 - 8 * (int)sizeof(wide_t);                       \
        const bool below = by->divisor < 0 && (signed_t)a < 0;                \
        const wide_t size = below ? (type_t)(0 - (wide_t)a) : a;              \
        const wide_t n = (wide_t)(by->divisor < 0 ? -by->divisor              \
                                                  : by->divisor);             \
        wide_t quotient = wm_upper_##wide(size,                               \
                                          (wide_t)(by->reciprocal >> shift)); \
        quotient += size - quotient * n >= n;                                 \
        return (type_t)(below ? 0 - quotient : quotient);                     \
    }                                                                         \
    WM_DIVIDE(name, type_t, wm_quotient_##name(a, by))                        \
    WM_FOLD(                                                                  \
        name, type_t,                                                         \
        WM_CASE(SUM, (acc_t)(a + b)) WM_CASE(PROD, (acc_t)((wide_t)a * b))    \
            WM_CASE(MIN, a < b ? a : b) WM_CASE(MAX, a > b ? a : b)           \
                WM_CASE(MIN_SIGNED, (signed_t)a < (signed_t)b ? a : b)        \
                    WM_CASE(MAX_SIGNED, (signed_t)a > (signed_t)b ? a : b)    \
                        WM_CASE(LAND, (acc_t)(a != 0 && b != 0))              \
                            WM_CASE(LOR, (acc_t)(a != 0 || b != 0))           \
                                WM_CASE(LXOR, (acc_t)((a != 0) != (b != 0)))  \
                                    WM_CASE(BAND, a &b) WM_CASE(BOR, a | b)   \
                                        WM_CASE(BXOR, a ^ b))

WM_INTEGER(uint8, uint8_t, int8_t, uint32, uint32_t)
WM_INTEGER(uint16, uint16_t, int16_t, uint32, uint32_t)
WM_INTEGER(uint32, uint32_t, int32_t, uint32, uint32_t)
WM_INTEGER(uint64, uint64_t, int64_t, uint64, uint64_t)

// MIN and MAX keep a NaN.
#define WM_FLOAT(name, type_t)                                                \
    WM_DIVIDE(name, type_t, (type_t)(a * by->factor))                         \
    WM_FOLD(name, type_t,                                                     \
            WM_CASE(SUM, a + b) WM_CASE(PROD, a *b)                           \
                WM_CASE(MIN, a < b || a != a ? a : b)                         \
                    WM_CASE(MAX, a > b || a != a ? a : b))

WM_AS_IT_IS(float32, float)
WM_AS_IT_IS(float64, double)
WM_FLOAT(float16, float)
WM_FLOAT(bfloat16, float)
WM_FLOAT(float32, float)
WM_FLOAT(float64, double)

#define WM_COMPLEX(name, type_t, part_t)                                      \
    WM_AS_IT_IS(name, type_t)                                                 \
    WM_DEVICE type_t wm_make_##name(part_t re, part_t im)                     \
    {                                                                         \
        type_t made = {re, im};                                               \
        return made;                                                          \
    }                                                                         \
    WM_DIVIDE(name, type_t,                                                   \
              wm_make_##name((part_t)(a.re * by->factor),                     \
                             (part_t)(a.im * by->factor)))                    \
    WM_FOLD(name, type_t,                                                     \
            WM_CASE(SUM, wm_make_##name(a.re + b.re, a.im + b.im))            \
                WM_CASE(PROD, wm_make_##name(a.re *b.re - a.im * b.im,        \
                                             a.re * b.im + a.im * b.re)))

WM_COMPLEX(complex64, wm_complex64_t, float)
WM_COMPLEX(complex128, wm_complex128_t, double)

// The lower index wins among equal values. A NaN wins over every number.
#define WM_PAIR_CASE(OP, ORDER, IS_NAN)                                       \
    WM_CASE(OP, b.value ORDER a.value || IS_NAN(b.value) > IS_NAN(a.value)    \
                        || (!(a.value ORDER b.value)                          \
                            && IS_NAN(a.value) == IS_NAN(b.value)             \
                            && b.index < a.index)                             \
                    ? b                                                       \
                    : a)
#define WM_PAIR(name, type_t, IS_NAN)                                         \
    WM_AS_IT_IS(name, type_t)                                                 \
    WM_DIVIDE(name, type_t, a)                                                \
    WM_FOLD(name, type_t,                                                     \
            WM_PAIR_CASE(MINLOC, <, IS_NAN) WM_PAIR_CASE(MAXLOC, >, IS_NAN))
#define WM_NEVER(value) 0
#define WM_IS_NAN(value) ((value) != (value))

WM_PAIR(float_int, wm_float_int_t, WM_IS_NAN)
WM_PAIR(double_int, wm_double_int_t, WM_IS_NAN)
WM_PAIR(long_int, wm_long_int_t, WM_NEVER)
WM_PAIR(int_int, wm_int_int_t, WM_NEVER)
WM_PAIR(short_int, wm_short_int_t, WM_NEVER)

#endif

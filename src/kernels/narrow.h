// SPDX-License-Identifier: BSD-3-Clause
// Conversions of element types that are computed in a wider type: one source
// text for kernels (C++) and the host (C), which give the same bits.
#ifndef WM_KERNELS_NARROW_H
#define WM_KERNELS_NARROW_H

#include "kernels/reduce.h"

#ifdef __cplusplus
#include "kernels/kernel.h"
#else
#define WM_DEVICE static inline
#define WM_UNROLL
#endif

WM_DEVICE uint32_t
wm_float_bits(float value)
{
    uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof(bits));
    return bits;
}

WM_DEVICE float
wm_float_of_bits(uint32_t bits)
{
    float value;
    __builtin_memcpy(&value, &bits, sizeof(value));
    return value;
}

WM_DEVICE float
wm_widen_float16(wm_float16_t value)
{
#ifdef __CUDA_ARCH__
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
    return wide;
#else
    const uint32_t sign = (uint32_t)(value.bits & 0x8000) << 16;
    const uint32_t rest = (uint32_t)(value.bits & 0x7fff) << 13;
    uint32_t wide = rest + (112u << 23); // the exponents' biases differ
    if (rest >= 0x7c00u << 13)
        wide = rest | 0x7f800000;  // infinite or NaN
    else if (rest < 0x0400u << 13) // subnormal: adds and subtracts 2^-14
        wide = wm_float_bits(wm_float_of_bits(rest + (113u << 23))
                             - wm_float_of_bits(113u << 23));
    return wm_float_of_bits(sign | wide);
#endif
}

// Rounds to the nearest, ties to even.
WM_DEVICE wm_float16_t
wm_narrow_float16(float value)
{
    wm_float16_t narrow;
#ifdef __CUDA_ARCH__
    uint32_t wide; // avoids stores of its bytes by F2I.U8.F16 in ptxas 13.0
    asm("{.reg .b16 h; cvt.rn.f16.f32 h, %1; mov.b32 %0, {h, 0};}"
        : "=r"(wide)
        : "f"(value));
    narrow.bits = (uint16_t)wide;
#else
    const uint32_t bits = wm_float_bits(value);
    const uint32_t rest = bits & 0x7fffffff;
    uint32_t half;
    if (rest >= 0x47800000) // 2^16
        half = 0x7c00;
    else if (rest >= 113u << 23) // may round up to infinity
        half = (rest - (112u << 23) + 0xfff + (rest >> 13 & 1)) >> 13;
    else // subnormal: + 0.5 leaves 2^-24 as the last bit
        half = wm_float_bits(wm_float_of_bits(rest) + 0.5f) - 0x3f000000;
    half |= bits >> 16 & 0x8000;
    narrow.bits = (uint16_t)(rest > 0x7f800000 ? 0x7fff : half);
#endif
    return narrow;
}

WM_DEVICE float
wm_widen_bfloat16(wm_bfloat16_t value)
{
    return wm_float_of_bits((uint32_t)value.bits << 16);
}

WM_DEVICE wm_bfloat16_t
wm_narrow_bfloat16(float value)
{
    const uint32_t bits = wm_float_bits(value);
    wm_bfloat16_t narrow;
    narrow.bits = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    if ((bits & 0x7fffffff) > 0x7f800000)
        narrow.bits = 0x7fff;
    return narrow;
}

#endif

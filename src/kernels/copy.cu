// SPDX-License-Identifier: BSD-3-Clause
// Strided copies and fills in units of 1 to 16 bytes.
#include "kernels/copy.h"
#include "kernels/kernel.h"

struct alignas(16) wm_unit16 {
    uint64_t part[2];
};

WM_DEVICE uint32_t
divide(uint32_t n, const wm_divisor_t &by)
{
    uint32_t high = (uint32_t)(((uint64_t)n * by.magic) >> 32);
    return (high + n) >> by.shift;
}

// Adds the offsets of unit `at` in both arrays, without 64-bit divisions.
WM_DEVICE void
locate_narrow(const wm_copy_params_t &p, uint32_t at, int64_t &dst,
              int64_t &src)
{
    for (int i = p.ndim - 1; i > 0; i--) {
        uint32_t outer = divide(at, p.divisors[i]);
        uint32_t index = at - outer * p.divisors[i].divisor;
        dst += index * p.dst_strides[i];
        src += index * p.src_strides[i];
        at = outer;
    }
    dst += at * p.dst_strides[0];
    src += at * p.src_strides[0];
}

WM_DEVICE void
locate_wide(const wm_copy_params_t &p, uint64_t at, int64_t &dst, int64_t &src)
{
    for (int i = p.ndim - 1; i > 0; i--) {
        uint64_t outer = at / p.shape[i];
        int64_t index = (int64_t)(at - outer * p.shape[i]);
        dst += index * p.dst_strides[i];
        src += index * p.src_strides[i];
        at = outer;
    }
    dst += (int64_t)at * p.dst_strides[0];
    src += (int64_t)at * p.src_strides[0];
}

template <typename unit_t>
WM_DEVICE void
copy(const wm_copy_params_t &p)
{
    for (size_t at = wm_thread(); at < p.count; at += wm_threads()) {
        int64_t dst = 0;
        int64_t src = 0;
        if (p.narrow)
            locate_narrow(p, (uint32_t)at, dst, src);
        else
            locate_wide(p, at, dst, src);
        *(unit_t *)(p.dst + dst) = *(const unit_t *)(p.src + src);
    }
}

template <typename unit_t>
WM_DEVICE void
fill(const wm_fill_params_t &p)
{
    for (size_t at = wm_thread(); at < p.count; at += wm_threads()) {
        size_t rest = at;
        int64_t dst = 0;
        size_t inside = 0;
        for (int i = p.ndim - 1; i >= 0; i--) {
            size_t outer = 0;
            if (i > 0) {
                outer = p.narrow ? divide((uint32_t)rest, p.divisors[i])
                                 : rest / p.shape[i];
            }
            size_t index = rest - outer * p.shape[i];
            dst += (int64_t)index * p.dst_strides[i];
            inside = i == p.ndim - 1 ? index : inside;
            rest = outer;
        }
        const char *pattern = (const char *)p.pattern;
        size_t offset = inside * sizeof(unit_t) % sizeof(p.pattern);
        *(unit_t *)(p.dst + dst) = *(const unit_t *)(pattern + offset);
    }
}

WM_KERNEL(wm_copy_1, wm_copy_params_t)
{
    copy<uint8_t>(p);
}

WM_KERNEL(wm_copy_2, wm_copy_params_t)
{
    copy<uint16_t>(p);
}

WM_KERNEL(wm_copy_4, wm_copy_params_t)
{
    copy<uint32_t>(p);
}

WM_KERNEL(wm_copy_8, wm_copy_params_t)
{
    copy<uint64_t>(p);
}

WM_KERNEL(wm_copy_16, wm_copy_params_t)
{
    copy<wm_unit16>(p);
}

WM_KERNEL(wm_fill_1, wm_fill_params_t)
{
    fill<uint8_t>(p);
}

WM_KERNEL(wm_fill_2, wm_fill_params_t)
{
    fill<uint16_t>(p);
}

WM_KERNEL(wm_fill_4, wm_fill_params_t)
{
    fill<uint32_t>(p);
}

WM_KERNEL(wm_fill_8, wm_fill_params_t)
{
    fill<uint64_t>(p);
}

WM_KERNEL(wm_fill_16, wm_fill_params_t)
{
    fill<wm_unit16>(p);
}

// SPDX-License-Identifier: BSD-3-Clause
// A wide line (kernels/ll.h) is eight lanes' business, each of which has 16
// bytes of it, the last one the flag. On the host one thread is each lane in
// turn, the last one last.
#ifndef WM_KERNELS_WIDE_LINE_H
#define WM_KERNELS_WIDE_LINE_H

#include "kernels/meet.h"

struct alignas(16) wm_wide_t {
    uint64_t part[2];
};

#ifdef __CUDACC__

WM_DEVICE uint32_t
wm_first_wide_lane()
{
    return threadIdx.x % 8;
}

WM_DEVICE uint32_t
wm_next_wide_lane(uint32_t)
{
    return 8; // none
}

// Lines that a warp has at once, and which of them this thread is of.
WM_DEVICE uint32_t
wm_wide_lines()
{
    return 4;
}

WM_DEVICE uint32_t
wm_wide_line()
{
    return threadIdx.x % 32 / 8;
}

// All lanes of the line write at once, and come together for it. Over NVLink
// and in the GPU's own memory it arrives in the order of its bytes, the flag
// last.
WM_DEVICE void
wm_store_wide(char *line, uint32_t lane, const wm_wide_t &value)
{
    asm volatile(
        "st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(line + lane * 16),
        "l"(value.part[0]), "l"(value.part[1])
        : "memory");
}

// The line's flag, which all its lanes read at once.
WM_DEVICE uint64_t
wm_load_wide_flag(const char *line)
{
    uint64_t flag;
    asm volatile("ld.volatile.global.u64 %0, [%1];"
                 : "=l"(flag)
                 : "l"(line + 7 * 16)
                 : "memory");
    return flag;
}

// After its flag was seen: what is read at the same time may be older.
WM_DEVICE wm_wide_t
wm_load_wide(const char *line, uint32_t lane)
{
    wm_wide_t value;
    asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(value.part[0]), "=l"(value.part[1])
                 : "l"(line + lane * 16)
                 : "memory");
    return value;
}

WM_DEVICE void
wm_warp_meets()
{
    __syncwarp();
}

WM_DEVICE bool
wm_warp_all(bool mine)
{
    return __all_sync(0xffffffffu, mine) != 0;
}

#else

WM_DEVICE uint32_t
wm_first_wide_lane()
{
    return 0;
}

WM_DEVICE uint32_t
wm_next_wide_lane(uint32_t lane)
{
    return lane + 1;
}

WM_DEVICE uint32_t
wm_wide_lines()
{
    return 1;
}

WM_DEVICE uint32_t
wm_wide_line()
{
    return 0;
}

WM_DEVICE void
wm_store_wide(char *line, uint32_t lane, const wm_wide_t &value)
{
    wm_wide_t *at = (wm_wide_t *)line + lane;
    at->part[1] = value.part[1];
    __atomic_store_n(&at->part[0], value.part[0], __ATOMIC_RELEASE);
}

WM_DEVICE uint64_t
wm_load_wide_flag(const char *line)
{
    const wm_wide_t *at = (const wm_wide_t *)line + 7;
    return __atomic_load_n(&at->part[0], __ATOMIC_ACQUIRE);
}

WM_DEVICE wm_wide_t
wm_load_wide(const char *line, uint32_t lane)
{
    return ((const wm_wide_t *)line)[lane];
}

WM_DEVICE void
wm_warp_meets()
{
}

WM_DEVICE bool
wm_warp_all(bool mine)
{
    return mine;
}

#endif

#define WM_EACH_WIDE_LANE(lane)                                               \
    for (uint32_t lane = wm_first_wide_lane(); lane < 8;                      \
         lane = wm_next_wide_lane(lane))

#endif

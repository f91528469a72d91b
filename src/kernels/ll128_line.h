// SPDX-License-Identifier: BSD-3-Clause
// LL128 protocol: 128-byte lines of 112 bytes of data and one flag of 16
// bytes; in NCCL's LL128 they are 120 and 8 (kernels/ll.h). Eight lanes load
// or store a line, 16 bytes each; the last lane has the flag. On the host one
// thread does the work of all lanes in turn, that of the last lane last.
#ifndef WM_KERNELS_LL128_LINE_H
#define WM_KERNELS_LL128_LINE_H

#include "kernels/peer_sync.h"

struct alignas(16) wm_ll128_t {
    uint64_t part[2];
};

#ifdef __CUDACC__

WM_DEVICE uint32_t
wm_ll128_first_lane()
{
    return threadIdx.x % 8;
}

WM_DEVICE uint32_t
wm_ll128_next_lane(uint32_t)
{
    return 8; // none
}

// Return the number of lines that a warp handles at once, and the index of
// this thread's line among them.
WM_DEVICE uint32_t
wm_ll128_lines()
{
    return 4;
}

WM_DEVICE uint32_t
wm_ll128_line()
{
    return threadIdx.x % 32 / 8;
}

// Stores a line. All lanes of the line call this together and write at once.
// Over NVLink and in the GPU's own memory the line arrives in the order of its
// bytes, the flag last.
WM_DEVICE void
wm_ll128_store(char *line, uint32_t lane, const wm_ll128_t &value)
{
    asm volatile(
        "st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(line + lane * 16),
        "l"(value.part[0]), "l"(value.part[1])
        : "memory");
}

// Loads the line's flag. All lanes of the line call this together.
WM_DEVICE uint64_t
wm_ll128_load_flag(const char *line)
{
    uint64_t flag;
    asm volatile("ld.volatile.global.u64 %0, [%1];"
                 : "=l"(flag)
                 : "l"(line + 7 * 16)
                 : "memory");
    return flag;
}

// Loads a lane's part of a line after its flag was seen: a part that is loaded
// together with the flag may be older.
WM_DEVICE wm_ll128_t
wm_ll128_load(const char *line, uint32_t lane)
{
    wm_ll128_t value;
    asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(value.part[0]), "=l"(value.part[1])
                 : "l"(line + lane * 16)
                 : "memory");
    return value;
}

WM_DEVICE void
wm_warp_sync()
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
wm_ll128_first_lane()
{
    return 0;
}

WM_DEVICE uint32_t
wm_ll128_next_lane(uint32_t lane)
{
    return lane + 1;
}

WM_DEVICE uint32_t
wm_ll128_lines()
{
    return 1;
}

WM_DEVICE uint32_t
wm_ll128_line()
{
    return 0;
}

WM_DEVICE void
wm_ll128_store(char *line, uint32_t lane, const wm_ll128_t &value)
{
    wm_ll128_t *at = (wm_ll128_t *)line + lane;
    at->part[1] = value.part[1];
    __atomic_store_n(&at->part[0], value.part[0], __ATOMIC_RELEASE);
}

WM_DEVICE uint64_t
wm_ll128_load_flag(const char *line)
{
    const wm_ll128_t *at = (const wm_ll128_t *)line + 7;
    return __atomic_load_n(&at->part[0], __ATOMIC_ACQUIRE);
}

WM_DEVICE wm_ll128_t
wm_ll128_load(const char *line, uint32_t lane)
{
    return ((const wm_ll128_t *)line)[lane];
}

WM_DEVICE void
wm_warp_sync()
{
}

WM_DEVICE bool
wm_warp_all(bool mine)
{
    return mine;
}

#endif

#define WM_EACH_LL128_LANE(lane)                                              \
    for (uint32_t lane = wm_ll128_first_lane(); lane < 8;                     \
         lane = wm_ll128_next_lane(lane))

#endif

// SPDX-License-Identifier: BSD-3-Clause
// A short copy and the word that tells of it, in one launch of one block.
#include "kernels/announce.h"
#include "kernels/kernel.h"

struct alignas(16) wm_announce_unit {
    uint64_t part[2];
};

template <typename unit_t>
WM_DEVICE void
copy_units(const wm_announce_params_t &p)
{
    const unit_t *src = (const unit_t *)p.src;
    unit_t *dst = (unit_t *)p.dst;
    for (size_t i = wm_thread(); i < p.nbytes / sizeof(unit_t);
         i += wm_threads())
        dst[i] = src[i];
}

WM_KERNEL(wm_copy_announce, wm_announce_params_t)
{
    if (p.unit == 16)
        copy_units<wm_announce_unit>(p);
    else if (p.unit == 4)
        copy_units<uint32_t>(p);
    else
        copy_units<char>(p);
    if (wm_block_ended())
        wm_store_system(p.word, p.value);
}

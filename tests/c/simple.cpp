// SPDX-License-Identifier: BSD-3-Clause
// A block that reduces, and passes on what comes of it, has no memory of its
// own rank to write to. On the host one thread is all blocks, so here one is
// asked alone: where its channel has nothing in a step it goes on.
#include <cassert>

#include "kernels/simple.cu"

wm_host_kernel *wm_host_kernels;
thread_local size_t wm_host_thread, wm_host_threads, wm_host_block_threads;
thread_local bool wm_host_any;

int
main()
{
    static wm_simple_own_t own;
    static wm_simple_params_t p;
    p.own = &own;
    p.rank = 1;
    p.size = 3;
    p.from = WM_SIMPLE_NOBODY;
    p.onto = 0;
    p.channels = 4;
    p.slots = 2;
    p.slot_bytes = p.unit = WM_SIMPLE_ALIGN;
    for (uint32_t from = 0; from < p.size; from++)
        p.takes[from].nbytes = WM_SIMPLE_ALIGN;
    assert(wm_simple_folder<wm_rule_float32>().take(p, 1, 0));
    return 0;
}

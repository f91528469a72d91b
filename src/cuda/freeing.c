// SPDX-License-Identifier: BSD-3-Clause
#include "cuda/freeing.h"

#include <stdatomic.h>

static _Atomic int count;

void
wm_freeing_begin(void)
{
    atomic_fetch_add(&count, 1);
}

void
wm_freeing_end(void)
{
    atomic_fetch_sub(&count, 1);
}

bool
wm_freeing_any(void)
{
    return atomic_load(&count) > 0;
}

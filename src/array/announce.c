// SPDX-License-Identifier: BSD-3-Clause
#include "kernels/announce.h"

#include <pthread.h>
#include <stdatomic.h>

#include "array/copy.h"
#include "array/kernels.h"

#define BLOCK 512

static _Atomic(CUfunction) functions[WM_MAX_DEVICES];

static int
find(int device, CUfunction *function, wm_error_t *err)
{
    *function = atomic_load(&functions[device]);
    if (*function != NULL)
        return 0;
    int code = wm_kernels_find(device, "wm_copy_announce", function, err);
    if (code == 0)
        atomic_store(&functions[device], *function);
    return code;
}

static uint32_t
widest_unit(const wm_announce_params_t *params)
{
    uintptr_t all = (uintptr_t)params->dst | (uintptr_t)params->src
                    | (uintptr_t)params->nbytes;
    return all % 16 == 0 ? 16 : all % 4 == 0 ? 4 : 1;
}

int
wm_copy_announce(int device, void *dst, const void *src, size_t nbytes,
                 _Atomic uint32_t *word, uint32_t value, CUstream stream,
                 wm_error_t *err)
{
    CUfunction function;
    wm_scope_t scope;
    wm_announce_params_t params = {
        .dst = dst,
        .src = src,
        .nbytes = nbytes,
        .word = (uint32_t *)word,
        .value = value,
    };
    params.unit = widest_unit(&params);
    int code = find(device, &function, err);
    if (code == 0)
        code = wm_device_enter(device, &scope, err);
    if (code < 0)
        return code;
    void *arguments[] = {&params};
    code = WM_CU(err, LaunchKernel, function, 1, 1, 1, BLOCK, 1, 1, 0, stream,
                 arguments, NULL);
    wm_device_leave(&scope);
    return code;
}

// SPDX-License-Identifier: BSD-3-Clause
#include "array/pull.h"

#include <stdatomic.h>

#include "array/kernels.h"

#define BLOCK 512

static _Atomic(CUfunction) functions[WM_MAX_DEVICES];

int
wm_pull_prepare(int device, wm_error_t *err)
{
    CUfunction function;
    if (atomic_load(&functions[device]) != NULL)
        return 0;
    int code = wm_kernels_find(device, "wm_pull", &function, err);
    if (code == 0)
        atomic_store(&functions[device], function);
    return code;
}

static uint32_t
widest_unit(const wm_pull_t *pull)
{
    uintptr_t all = (uintptr_t)pull->dst | (uintptr_t)pull->src | pull->nbytes;
    return all % 16 == 0 ? 16 : all % 4 == 0 ? 4 : 1;
}

int
wm_pull_launch(int device, wm_pull_params_t *params, CUstream stream,
               wm_error_t *err)
{
    wm_scope_t scope;
    int code = wm_pull_prepare(device, err);
    if (code == 0)
        code = wm_device_enter(device, &scope, err);
    if (code < 0)
        return code;
    for (uint32_t i = 0; i < params->count; ++i)
        params->pulls[i].unit = widest_unit(&params->pulls[i]);
    code = WM_CU(err, LaunchKernel, atomic_load(&functions[device]),
                 params->count, 1, 1, BLOCK, 1, 1, 0, stream,
                 (void *[]){params}, NULL);
    wm_device_leave(&scope);
    return code;
}

// SPDX-License-Identifier: BSD-3-Clause
#include "array/mail.h"

#include <stdbool.h>

#include "array/kernels.h"

// A small block finds room soon on a busy GPU, a large one copies more at
// once.
#define SMALL_BLOCK 256
#define LARGE_BLOCK 512
#define SMALL_BYTES 16384

static _Atomic(CUfunction) functions[WM_MAX_DEVICES];

_Static_assert(WM_MAIL_BOX_BYTES *WM_LINE_PAYLOAD
                   == WM_MAIL_BYTES * WM_LINE_BYTES,
               "a mailbox holds the longest message");

int
wm_mail_prepare(int device, wm_error_t *err)
{
    CUfunction function;
    if (atomic_load(&functions[device]) != NULL)
        return 0;
    int code = wm_kernels_find(device, "wm_mail", &function, err);
    if (code == 0)
        atomic_store(&functions[device], function);
    return code;
}

static uint32_t
widest_unit(const void *user, size_t nbytes)
{
    uintptr_t both = (uintptr_t)user | nbytes;
    return both % 8 == 0 ? 8 : both % 4 == 0 ? 4 : 1;
}

int
wm_mail_clear(int device, void *boxes, size_t size, CUstream stream,
              wm_error_t *err)
{
    wm_scope_t scope;
    int code = wm_device_enter(device, &scope, err);
    if (code < 0)
        return code;
    code = WM_CU(err, MemsetD8Async, (CUdeviceptr)boxes, 0, size, stream);
    wm_device_leave(&scope);
    return code;
}

static void
fill(wm_mail_params_t *params, const wm_mail_t *posts, int post_count,
     const wm_mail_t *fetches, int fetch_count)
{
    for (int i = 0; i < post_count; ++i)
        params->post[i] = (wm_mail_post_t){
            .box = posts[i].box,
            .src = posts[i].user,
            .nbytes = posts[i].nbytes,
            .ready = (uint32_t *)posts[i].word,
            .ready_value = posts[i].value,
            .flag = posts[i].flag,
            .unit = widest_unit(posts[i].user, posts[i].nbytes),
        };
    for (int i = 0; i < fetch_count; ++i)
        params->fetch[i] = (wm_mail_fetch_t){
            .dst = fetches[i].user,
            .box = fetches[i].box,
            .nbytes = fetches[i].nbytes,
            .taken = (uint32_t *)fetches[i].word,
            .status = (uint32_t *)fetches[i].status,
            .stop = (const uint32_t *)fetches[i].stop,
            .taken_value = fetches[i].value,
            .flag = fetches[i].flag,
            .unit = widest_unit(fetches[i].user, fetches[i].nbytes),
        };
    params->posts = (uint32_t)post_count;
}

static bool
any_long(const wm_mail_t *mails, int count)
{
    bool any = false;
    for (int i = 0; i < count; ++i)
        any |= mails[i].nbytes > SMALL_BYTES;
    return any;
}

int
wm_mail_launch(int device, const wm_mail_t *posts, int post_count,
               const wm_mail_t *fetches, int fetch_count, uint32_t patience_us,
               CUstream stream, wm_error_t *err)
{
    wm_mail_params_t params;
    wm_scope_t scope;
    int code = wm_mail_prepare(device, err);
    if (code == 0)
        code = wm_device_enter(device, &scope, err);
    if (code < 0)
        return code;
    fill(&params, posts, post_count, fetches, fetch_count);
    params.patience_us = patience_us;
    unsigned int block = any_long(posts, post_count)
                                 || any_long(fetches, fetch_count)
                             ? LARGE_BLOCK
                             : SMALL_BLOCK;
    unsigned int grid = (unsigned int)(post_count + fetch_count);
    code = WM_CU(err, LaunchKernel, atomic_load(&functions[device]), grid, 1,
                 1, block, 1, 1, 0, stream, (void *[]){&params}, NULL);
    wm_device_leave(&scope);
    return code;
}

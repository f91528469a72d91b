// SPDX-License-Identifier: BSD-3-Clause
#include "array/mail.h"

#include "array/kernels.h"

// A small block finds room soon on a busy GPU, a large one copies more at
// once.
#define SMALL_BLOCK 256
#define LARGE_BLOCK 512
#define SMALL_BYTES 16384

typedef struct {
    const char *name;
    _Atomic(CUfunction) functions[WM_MAX_DEVICES];
} kernel_t;

static kernel_t post = {.name = "wm_mail_post"};
static kernel_t fetch = {.name = "wm_mail_fetch"};

_Static_assert(WM_MAIL_BOX_BYTES *WM_LINE_PAYLOAD
                   == WM_MAIL_BYTES * WM_LINE_BYTES,
               "a mailbox holds the longest message");

static int
find(int device, kernel_t *kernel, CUfunction *function, wm_error_t *err)
{
    *function = atomic_load(&kernel->functions[device]);
    if (*function != NULL)
        return 0;
    int code = wm_kernels_find(device, kernel->name, function, err);
    if (code == 0)
        atomic_store(&kernel->functions[device], *function);
    return code;
}

int
wm_mail_prepare(int device, wm_error_t *err)
{
    CUfunction unused;
    int code = find(device, &post, &unused, err);
    return code < 0 ? code : find(device, &fetch, &unused, err);
}

static int
launch(int device, kernel_t *kernel, void *params, const wm_mail_t *mails,
       int count, CUstream stream, wm_error_t *err)
{
    unsigned int block = SMALL_BLOCK;
    for (int i = 0; i < count; ++i)
        if (mails[i].nbytes > SMALL_BYTES)
            block = LARGE_BLOCK;
    wm_scope_t scope;
    CUfunction function;
    int code = find(device, kernel, &function, err);
    if (code == 0)
        code = wm_device_enter(device, &scope, err);
    if (code < 0)
        return code;
    code = WM_CU(err, LaunchKernel, function, (unsigned int)count, 1, 1, block,
                 1, 1, 0, stream, (void *[]){params}, NULL);
    wm_device_leave(&scope);
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

int
wm_mail_post(int device, const wm_mail_t *mails, int count, CUstream stream,
             wm_error_t *err)
{
    wm_mail_post_params_t params;
    for (int i = 0; i < count; ++i)
        params.mails[i] = (wm_mail_post_t){
            .box = mails[i].box,
            .src = mails[i].user,
            .nbytes = mails[i].nbytes,
            .ready = (uint32_t *)mails[i].word,
            .ready_value = mails[i].value,
            .flag = mails[i].flag,
            .unit = widest_unit(mails[i].user, mails[i].nbytes),
        };
    return launch(device, &post, &params, mails, count, stream, err);
}

int
wm_mail_fetch(int device, const wm_mail_t *mails, int count,
              uint32_t patience_us, CUstream stream, wm_error_t *err)
{
    wm_mail_fetch_params_t params;
    params.patience_us = patience_us;
    for (int i = 0; i < count; ++i)
        params.mails[i] = (wm_mail_fetch_t){
            .dst = mails[i].user,
            .box = mails[i].box,
            .nbytes = mails[i].nbytes,
            .taken = (uint32_t *)mails[i].word,
            .status = (uint32_t *)mails[i].status,
            .stop = (const uint32_t *)mails[i].stop,
            .taken_value = mails[i].value,
            .flag = mails[i].flag,
            .unit = widest_unit(mails[i].user, mails[i].nbytes),
        };
    return launch(device, &fetch, &params, mails, count, stream, err);
}

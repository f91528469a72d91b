// SPDX-License-Identifier: BSD-3-Clause
#define _GNU_SOURCE
#include "array/kernels.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "cuda/lock.h"

// Made by the build, in a library of its own (_kernels.so): a fat binary for
// each file of src/kernels. A NULL ends the list.
extern const struct {
    const char *file;
    const void *image;
} wm_kernels_images[];

#define MOST_MODULES 16
#define UNITS 5 // 1, 2, 4, 8 and 16 bytes
#define BLOCK 256
#define BLOCKS_PER_SM 8

typedef struct {
    _Atomic bool loaded;
    int count;
    CUmodule modules[MOST_MODULES];
} kernels_t;

static kernels_t kernels[WM_MAX_DEVICES];
static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;

// The device is current.
static int
find_function(const kernels_t *loaded, const char *file, const char *name,
              CUfunction *function, wm_error_t *err)
{
    int i = 0;
    while (i < loaded->count && strcmp(wm_kernels_images[i].file, file) != 0)
        ++i;
    if (i == loaded->count)
        return wm_error_set(err, WM_ERR_CUDA, CUDA_ERROR_NOT_FOUND,
                            "there is no %s.cu", file);
    return WM_CU(err, ModuleGetFunction, function, loaded->modules[i], name);
}

// The rows of families, behind the prefix.
#define X(name, ...) #name,
static const char *const COPY_ROWS[] = {
    "copy_1", "copy_2", "copy_4", "copy_8", "copy_16",
    "fill_1", "fill_2", "fill_4", "fill_8", "fill_16",
};
static const char *const FEW_ROWS[] = {"_few", ""};
static const char *const PAIR_ROWS[] = {"_pair", ""};
static const char *const ONE_ROW[] = {""};
static const char *const HALO_ROWS[] = {"_lines", ""};
static const char *const PEER_ROWS[] = {"signal", "wait", "barrier"};
static const char *const REDUCE_ROWS[] = {WM_REDUCE_KERNEL_ROWS(X)};
static const char *const MOVE_ROWS[] = {WM_REDUCE_KERNEL_ROWS(X) "move"};
#undef X

static const struct {
    const char *file, *prefix;
    const char *const *rows;
    int count;
} families[WM_KERNEL_FAMILY_COUNT] = {
#define X(FAMILY, file, prefix, rows)                                         \
    {file, prefix, rows, sizeof rows / sizeof *rows},
    WM_KERNEL_FAMILIES(X)
#undef X
};

static _Atomic(CUfunction) functions[WM_MAX_DEVICES][WM_KERNEL_FAMILY_COUNT]
                                    [WM_KERNEL_ROWS];

// The device is current.
static int
find_family(int device, wm_kernel_family_t family, wm_error_t *err)
{
    int code = 0;
    for (int i = 0; i < families[family].count && code == 0; i++) {
        CUfunction function;
        char name[48];
        snprintf(name, sizeof(name), "%s%s", families[family].prefix,
                 families[family].rows[i]);
        code = find_function(&kernels[device], families[family].file, name,
                             &function, err);
        if (code == 0)
            atomic_store(&functions[device][family][i], function);
        else
            (void)wm_error_context(err, "kernel %s", name);
    }
    return code;
}

// Refuses a driver that would say only that an image is invalid.
static int
check_driver(wm_error_t *err)
{
    const int version = wm_driver_version();
    if (version / 1000 >= wm_kernels_cuda / 1000)
        return 0;
    return wm_error_set(err, WM_ERR_DRIVER, 0,
                        "warpmpi's kernels were compiled by CUDA %d.%d, and "
                        "the driver is for CUDA %d.%d: update the NVIDIA "
                        "driver, or build warpmpi with a toolkit of CUDA %d "
                        "(WARPMPI_CUDA=/path/to/cuda)",
                        wm_kernels_cuda / 1000, wm_kernels_cuda % 1000 / 10,
                        version / 1000, version % 1000 / 10, version / 1000);
}

static int
load_lock_held(int device, wm_error_t *err)
{
    kernels_t *loaded = &kernels[device];
    wm_scope_t scope;
    int status = check_driver(err);
    if (status == 0)
        status = wm_device_enter(device, &scope, err);
    if (status < 0)
        return status;
    while (status == 0 && loaded->count < MOST_MODULES
           && wm_kernels_images[loaded->count].image != NULL) {
        status = WM_CU(err, ModuleLoadData, &loaded->modules[loaded->count],
                       wm_kernels_images[loaded->count].image);
        loaded->count += status == 0;
    }
    if (status == 0) // the first copy may come when nothing may be loaded
        status = find_family(device, WM_KERNELS_COPY, err);
    wm_device_leave(&scope);
    if (status < 0)
        return wm_error_context(err, "loading the kernels on cuda:%d", device);
    atomic_store(&loaded->loaded, true);
    return 0;
}

static int
kernels_load(int device, wm_error_t *err)
{
    if (atomic_load_explicit(&kernels[device].loaded, memory_order_acquire))
        return 0;
    wm_lock(&load_lock);
    int status = kernels[device].loaded ? 0 : load_lock_held(device, err);
    pthread_mutex_unlock(&load_lock);
    return status;
}

int
wm_kernels_prepare(int device, wm_kernel_family_t family, wm_error_t *err)
{
    wm_scope_t scope;
    if (device < 0 || device >= WM_MAX_DEVICES)
        return wm_error_set(err, WM_ERR_VALUE, 0, "no device %d", device);
    int last = families[family].count - 1;
    if (atomic_load(&functions[device][family][last]) != NULL)
        return 0;
    int code = kernels_load(device, err);
    if (code == 0)
        code = wm_device_enter(device, &scope, err);
    if (code < 0)
        return code;
    code = find_family(device, family, err);
    wm_device_leave(&scope);
    return code;
}

int
wm_kernels_launch(int device, wm_kernel_family_t family, int row,
                  uint32_t blocks, uint32_t threads, void *params,
                  CUstream stream, wm_error_t *err)
{
    CUfunction function = atomic_load(&functions[device][family][row]);
    return WM_CU_ON(device, err, LaunchKernel, function, blocks, 1, 1, threads,
                    1, 1, 0, stream, (void *[]){params}, NULL);
}

void
wm_kernels_divisor(wm_divisor_t *divisor, uint32_t by)
{
    uint32_t shift = 0;
    while (shift < 31 && (1u << shift) < by)
        shift++;
    uint64_t one = 1;
    divisor->divisor = by;
    divisor->shift = shift;
    divisor->magic = (uint32_t)(((one << 32) * ((one << shift) - by)) / by
                                + 1);
}

static int
launch_units(int row, uint64_t count, void *params, int device,
             CUstream stream, wm_error_t *err)
{
    const wm_device_t *facts;
    int status = wm_device_get(device, &facts, err);
    if (status < 0)
        return status;
    uint64_t blocks = (count + BLOCK - 1) / BLOCK;
    uint64_t most = (uint64_t)facts->multiprocessors * BLOCKS_PER_SM;
    if (blocks > most && most > 0)
        blocks = most;
    return wm_kernels_launch(device, WM_KERNELS_COPY, row, (uint32_t)blocks,
                             BLOCK, params, stream, err);
}

static uint64_t
count_units(const wm_copy_params_t *params)
{
    uint64_t count = 1;
    for (int i = 0; i < params->ndim; i++)
        count *= params->shape[i];
    return count;
}

// Describes the innermost dimensions of the layout, from `first` on, and the
// run as a dimension of units.
static void
params_init(wm_copy_params_t *params, const wm_layout_t *layout, int first,
            int unit)
{
    memset(params, 0, sizeof(*params));
    int n = 0;
    for (int i = first; i < layout->ndim; i++, n++) {
        params->shape[n] = (uint64_t)layout->shape[i];
        params->dst_strides[n] = layout->dst_strides[i];
        params->src_strides[n] = layout->src_strides[i];
    }
    params->shape[n] = (uint64_t)(layout->run / unit);
    params->dst_strides[n] = unit;
    params->src_strides[n] = unit;
    params->ndim = n + 1;
    params->dst = layout->dst;
    params->src = layout->src;
    params->count = count_units(params);
    params->narrow = params->count < (uint64_t)1 << 31;
    for (int i = 0; params->narrow && i < params->ndim; i++)
        wm_kernels_divisor(&params->divisors[i], (uint32_t)params->shape[i]);
}

// Drops the dimension of a run of one unit.
static void
drop_single_run(wm_copy_params_t *params)
{
    if (params->ndim > 1 && params->shape[params->ndim - 1] == 1)
        params->ndim--;
}

// Launches a copy or, with a pattern, a fill.
static int
launch_one(wm_copy_params_t *params, int unit, const char *pattern, int device,
           CUstream stream, wm_error_t *err)
{
    int index = __builtin_ctz((unsigned)unit);
    if (pattern == NULL) {
        drop_single_run(params);
        return launch_units(index, params->count, params, device, stream, err);
    }
    wm_fill_params_t fill = {
        .dst = params->dst,
        .count = params->count,
        .ndim = params->ndim,
        .narrow = params->narrow,
    };
    memcpy(fill.shape, params->shape, sizeof(fill.shape));
    memcpy(fill.dst_strides, params->dst_strides, sizeof(fill.dst_strides));
    memcpy(fill.divisors, params->divisors, sizeof(fill.divisors));
    memcpy(fill.pattern, pattern, sizeof(fill.pattern));
    return launch_units(UNITS + index, fill.count, &fill, device, stream, err);
}

// Launches one kernel for the innermost dimensions that fit its parameters,
// and repeats this for each index of the outer ones (hardly ever any).
static int
launch_each(const wm_layout_t *layout, const char *pattern, int device,
            CUstream stream, wm_error_t *err)
{
    int unit = wm_layout_unit(layout);
    int outer = layout->ndim - (WM_COPY_NDIM - 1);
    outer = outer > 0 ? outer : 0;
    wm_copy_params_t params;
    params_init(&params, layout, outer, unit);
    int64_t index[WM_MAX_NDIM] = {0};
    int at;
    int status = wm_kernels_prepare(device, WM_KERNELS_COPY, err);
    do {
        wm_copy_params_t one = params;
        for (int i = 0; i < outer; i++) {
            one.dst += index[i] * layout->dst_strides[i];
            one.src += index[i] * layout->src_strides[i];
        }
        if (status == 0)
            status = launch_one(&one, unit, pattern, device, stream, err);
        for (at = outer - 1; at >= 0; at--) {
            if (++index[at] < layout->shape[at])
                break;
            index[at] = 0;
        }
    } while (at >= 0 && status == 0);
    return status;
}

int
wm_kernels_copy(const wm_layout_t *layout, int device, CUstream stream,
                wm_error_t *err)
{
    return launch_each(layout, NULL, device, stream, err);
}

int
wm_kernels_fill(const wm_layout_t *layout, const void *value, size_t itemsize,
                int device, CUstream stream, wm_error_t *err)
{
    char pattern[sizeof(((wm_fill_params_t *)0)->pattern)];
    for (size_t i = 0; i < sizeof(pattern); i += itemsize)
        memcpy(pattern + i, value, itemsize);
    return launch_each(layout, pattern, device, stream, err);
}

// SPDX-License-Identifier: BSD-3-Clause
// The ordering rule around a copy or a fill, however the bytes are moved.
#include "array/copy.h"

#include "array/kernels.h"

static int
check_match(const wm_array_t *dst, const wm_array_t *src, wm_error_t *err)
{
    bool same = dst->ndim == src->ndim;
    for (int i = 0; same && i < dst->ndim; i++)
        same = dst->shape[i] == src->shape[i];
    if (!same) {
        return wm_error_set(err, WM_ERR_VALUE, 0,
                            "cannot copy between arrays of different shapes");
    }
    if (dst->dtype != src->dtype) {
        return wm_error_set(
            err, WM_ERR_TYPE, 0,
            "cannot copy elements of %s into %s: convert the array first",
            wm_dtype_info(src->dtype)->name, wm_dtype_info(dst->dtype)->name);
    }
    return 0;
}

// The work of one operation: its stream, and the producers it is ordered with.
typedef struct {
    int device;
    CUstream stream;
    bool pooled;    // the stream is the pool's
    bool capturing; // a graph holds the order, and nothing is remembered
    const wm_producer_t *dst;
    const wm_producer_t *src; // NULL for a fill
} work_t;

static int
work_begin(work_t *work, wm_error_t *err)
{
    int status = 0;
    work->pooled = work->stream == NULL;
    work->capturing = false;
    if (work->pooled) {
        status = wm_stream_acquire(work->device, &work->stream, err);
    }
    else {
        status = wm_stream_is_capturing(work->device, work->stream,
                                        &work->capturing, err);
    }
    if (status < 0)
        return status;
    if (work->src != NULL)
        status = wm_producer_before_on(work->src, false, work->device,
                                       work->stream, work->capturing, err);
    if (status == 0)
        status = wm_producer_before_on(work->dst, true, work->device,
                                       work->stream, work->capturing, err);
    if (status < 0 && work->pooled)
        wm_stream_release(work->device, work->stream);
    return status;
}

// Leaves nothing in flight that is not remembered, also after a failure.
static int
work_end(const work_t *work, int status, bool blocking, wm_error_t *err)
{
    if (status == 0 && !blocking) {
        if (work->src != NULL)
            status = wm_producer_after_on(work->src, false, work->device,
                                          work->stream, work->capturing, err);
        if (status == 0)
            status = wm_producer_after_on(work->dst, true, work->device,
                                          work->stream, work->capturing, err);
    }
    else if (status == 0 && !work->capturing) {
        status = wm_stream_synchronize(work->device, work->stream, err);
    }
    if (status < 0 && !work->capturing)
        (void)!wm_stream_synchronize(work->device, work->stream, NULL);
    if (work->pooled)
        wm_stream_release(work->device, work->stream);
    return status;
}

static int
copy_host(const wm_array_t *dst, const wm_producer_t *dst_producer,
          const wm_array_t *src, const wm_producer_t *src_producer,
          wm_error_t *err)
{
    int status = wm_producer_wait(src_producer, false, err);
    if (status == 0)
        status = wm_producer_wait(dst_producer, true, err);
    if (status == 0)
        status = wm_copy_enqueue(dst, src, -1, NULL, err);
    return status;
}

int
wm_copy_ordered(const wm_array_t *dst, const wm_producer_t *dst_producer,
                const wm_array_t *src, const wm_producer_t *src_producer,
                int device, CUstream stream, bool blocking, wm_error_t *err)
{
    wm_pointer_t to, from;
    int status = check_match(dst, src, err);
    if (status < 0 || wm_array_count(dst) == 0)
        return status;
    status = wm_array_memory(dst, &to, err);
    if (status == 0)
        status = wm_array_memory(src, &from, err);
    if (status < 0)
        return status;
    if (to.device < 0 && from.device < 0)
        return copy_host(dst, dst_producer, src, src_producer, err);
    if (device < 0)
        device = to.device >= 0 ? to.device : from.device;
    work_t work = {.device = device,
                   .stream = stream,
                   .dst = dst_producer,
                   .src = src_producer};
    status = work_begin(&work, err);
    if (status < 0)
        return status;
    status = wm_copy_enqueue(dst, src, device, work.stream, err);
    // No order remembers a write into pageable memory.
    blocking |= to.kind == WM_MEMORY_HOST;
    return work_end(&work, status, blocking, err);
}

static bool
is_uniform(const void *value, size_t size)
{
    const unsigned char *bytes = value;
    for (size_t i = 1; i < size; i++)
        if (bytes[i] != bytes[0])
            return false;
    return true;
}

static int
fill_enqueue(const wm_layout_t *layout, const void *value, size_t itemsize,
             int device, CUstream stream, wm_error_t *err)
{
    if (!wm_layout_is_contiguous(layout) || !is_uniform(value, itemsize))
        return wm_kernels_fill(layout, value, itemsize, device, stream, err);
    return WM_CU_ON(device, err, MemsetD8Async, (CUdeviceptr)layout->dst,
                    *(const unsigned char *)value, (size_t)layout->run,
                    stream);
}

int
wm_fill(const wm_array_t *dst, const void *value, CUstream stream,
        bool blocking, wm_error_t *err)
{
    if (wm_array_count(dst) == 0)
        return 0;
    wm_pointer_t memory;
    wm_producer_t producer;
    wm_layout_t layout;
    int status = wm_array_memory(dst, &memory, err);
    if (status < 0)
        return status;
    size_t itemsize = wm_dtype_info(dst->dtype)->itemsize;
    wm_array_producer(dst, &producer);
    wm_layout_init(&layout, dst, dst);
    if (memory.device < 0) {
        status = wm_producer_wait(&producer, true, err);
        if (status == 0)
            wm_layout_fill_host(&layout, value, itemsize);
        return status;
    }
    work_t work = {
        .device = memory.device, .stream = stream, .dst = &producer};
    status = work_begin(&work, err);
    if (status < 0)
        return status;
    status = fill_enqueue(&layout, value, itemsize, memory.device, work.stream,
                          err);
    return work_end(&work, status, blocking, err);
}

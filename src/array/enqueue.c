// SPDX-License-Identifier: BSD-3-Clause
// The route of a copy: one plain copy, one 2-D or 3-D copy, one kernel, or a
// detour through contiguous temporaries.
#include <stdlib.h>

#include "array/copy.h"
#include "array/kernels.h"

// The copy engine is slower than a kernel for rows narrower than this.
#define MIN_ROW 64
// The pitch of a 2-D copy that every device takes (CUDA's limit is 2^31-1).
#define MAX_PITCH 0x7fffffff

// One copy under way: its stream, and the memory of both sides.
typedef struct {
    int device;
    CUstream stream;
    wm_pointer_t dst;
    wm_pointer_t src;
} route_t;

// Finds out whether kernels on `device` can reach the memory.
static int
is_reachable(int device, const wm_pointer_t *memory, bool *reachable,
             wm_error_t *err)
{
    bool on_device = memory->kind == WM_MEMORY_DEVICE;
    *reachable = on_device ? memory->device == device
                           : memory->kind != WM_MEMORY_HOST;
    if (!on_device || *reachable || !wm_memory_is_reached(memory, device))
        return 0;
    int status = wm_device_can_access(device, memory->device, reachable, err);
    if (status == 0 && *reachable)
        status = wm_device_enable_peer(device, memory->device, err);
    return status;
}

static bool
enqueue_is_host(const wm_pointer_t *memory)
{
    return memory->device < 0;
}

static CUmemorytype
memory_type(const wm_pointer_t *memory)
{
    return enqueue_is_host(memory) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
}

// Returns true if rows, or planes of rows, describe the layout. Such copies
// are for links: on one GPU a kernel takes 0.4 to 0.9 times as long (measured,
// H100).
static bool
is_pitched(const wm_layout_t *layout)
{
    if (layout->ndim < 1 || layout->ndim > 2 || layout->run < MIN_ROW)
        return false;
    int row = layout->ndim - 1;
    int64_t to = layout->dst_strides[row];
    int64_t from = layout->src_strides[row];
    if (to < layout->run || from < layout->run || to > MAX_PITCH
        || from > MAX_PITCH)
        return false;
    if (layout->ndim == 1)
        return true;
    int64_t rows = layout->shape[1];
    return layout->dst_strides[0] % to == 0
           && layout->src_strides[0] % from == 0
           && layout->dst_strides[0] / to >= rows
           && layout->src_strides[0] / from >= rows;
}

static int
copy_2d(const wm_layout_t *layout, const route_t *route, wm_error_t *err)
{
    CUDA_MEMCPY2D copy = {
        .srcMemoryType = memory_type(&route->src),
        .srcHost = layout->src,
        .srcDevice = (CUdeviceptr)layout->src,
        .srcPitch = (size_t)layout->src_strides[0],
        .dstMemoryType = memory_type(&route->dst),
        .dstHost = layout->dst,
        .dstDevice = (CUdeviceptr)layout->dst,
        .dstPitch = (size_t)layout->dst_strides[0],
        .WidthInBytes = (size_t)layout->run,
        .Height = (size_t)layout->shape[0],
    };
    return WM_CU_ON(route->device, err, Memcpy2DAsync, &copy, route->stream);
}

static int
copy_3d(const wm_layout_t *layout, const route_t *route, wm_error_t *err)
{
    size_t src_pitch = (size_t)layout->src_strides[1];
    size_t dst_pitch = (size_t)layout->dst_strides[1];
    CUDA_MEMCPY3D copy = {
        .srcMemoryType = memory_type(&route->src),
        .srcHost = layout->src,
        .srcDevice = (CUdeviceptr)layout->src,
        .srcPitch = src_pitch,
        .srcHeight = (size_t)layout->src_strides[0] / src_pitch,
        .dstMemoryType = memory_type(&route->dst),
        .dstHost = layout->dst,
        .dstDevice = (CUdeviceptr)layout->dst,
        .dstPitch = dst_pitch,
        .dstHeight = (size_t)layout->dst_strides[0] / dst_pitch,
        .WidthInBytes = (size_t)layout->run,
        .Height = (size_t)layout->shape[1],
        .Depth = (size_t)layout->shape[0],
    };
    return WM_CU_ON(route->device, err, Memcpy3DAsync, &copy, route->stream);
}

static int
copy_pitched(const wm_layout_t *layout, const route_t *route, wm_error_t *err)
{
    return layout->ndim == 1 ? copy_2d(layout, route, err)
                             : copy_3d(layout, route, err);
}

static int
copy_contiguous(const wm_layout_t *layout, const route_t *route,
                wm_error_t *err)
{
    int other = route->dst.device == route->device ? route->src.device
                                                   : route->dst.device;
    if (other >= 0 && other != route->device) {
        // Without peer access the driver stages through the host.
        int status = wm_device_enable_peer(route->device, other, err);
        if (status < 0)
            return status;
    }
    return wm_memory_copy(route->device, layout->dst, layout->src,
                          (size_t)layout->run, route->stream, err);
}

static bool
is_of_host(const void *pointer)
{
    wm_pointer_t memory;
    return wm_pointer_describe(pointer, &memory, NULL) == 0
           && enqueue_is_host(&memory);
}

int
wm_copy_layout(const wm_layout_t *layout, int device, CUstream stream,
               wm_error_t *err)
{
    wm_pointer_t here = {.kind = WM_MEMORY_DEVICE, .device = device};
    route_t route = {
        .device = device, .stream = stream, .dst = here, .src = here};
    if (wm_layout_is_contiguous(layout))
        return copy_contiguous(layout, &route, err);
    return is_pitched(layout)
                   && (is_of_host(layout->dst) || is_of_host(layout->src))
               ? copy_pitched(layout, &route, err)
               : wm_kernels_copy(layout, device, stream, err);
}

static int
copy_by_kernel(const wm_layout_t *layout, const route_t *route,
               wm_error_t *err)
{
    return wm_kernels_copy(layout, route->device, route->stream, err);
}

// Copies on a stream of another device, in order with the stream of `route`.
static int
copy_aside(const wm_layout_t *layout, int device, const route_t *route,
           int (*copy)(const wm_layout_t *layout, const route_t *route,
                       wm_error_t *err),
           wm_error_t *err)
{
    route_t aside = *route;
    aside.device = device;
    int status = wm_stream_acquire(device, &aside.stream, err);
    if (status < 0)
        return status;
    status = wm_stream_follow(device, aside.stream, route->device,
                              route->stream, err);
    if (status == 0)
        status = copy(layout, &aside, err);
    if (status == 0) {
        status = wm_stream_follow(route->device, route->stream, device,
                                  aside.stream, err);
    }
    wm_stream_release(device, aside.stream);
    return status;
}

// Copies within one memory, with strides: on the host at once, or on the
// memory's device, on a stream of its own or that of `route`, with the order
// kept.
static int
copy_within(const wm_layout_t *layout, const wm_pointer_t *memory,
            const route_t *route, wm_error_t *err)
{
    if (enqueue_is_host(memory)) {
        wm_layout_copy_host(layout);
        return 0;
    }
    return memory->device == route->device
               ? copy_by_kernel(layout, route, err)
               : copy_aside(layout, memory->device, route, copy_by_kernel,
                            err);
}

// Returns true if copies on the device reach both sides.
static bool
reaches_both(int device, const route_t *route)
{
    return wm_memory_is_reached(&route->dst, device)
           && wm_memory_is_reached(&route->src, device);
}

// Finds the device whose copies reach both sides, that of `route` if possible.
// Returns false if there is none: each side is in a pool of its own device.
static bool
find_device(const route_t *route, int *device)
{
    const int devices[] = {route->device, route->dst.device,
                           route->src.device};
    for (int i = 0; i < 3; ++i) {
        *device = devices[i];
        if (*device >= 0 && reaches_both(*device, route))
            return true;
    }
    return false;
}

static int
copy_contiguous_aside(const wm_layout_t *layout, int device,
                      const route_t *route, wm_error_t *err)
{
    bool capturing;
    int status = wm_stream_is_capturing(route->device, route->stream,
                                        &capturing, err);
    if (status < 0)
        return status;
    if (capturing) // the stream of the pool is given to others
        return wm_error_set(err, WM_ERR_STATE, 0,
                            "cuda:%d does not reach the memory pool of "
                            "cuda:%d: capture this copy on a stream of "
                            "cuda:%d",
                            route->device, device, device);
    return copy_aside(layout, device, route, copy_contiguous, err);
}

// Makes a contiguous array like `like`, in the kind of `memory`. Host memory
// is pageable: to pin memory of any size would cost more than it saves.
static int
temporary_new(const wm_array_t *like, const wm_pointer_t *memory,
              const route_t *route, wm_array_t *made, wm_error_t *err)
{
    bool capturing;
    int status = wm_stream_is_capturing(route->device, route->stream,
                                        &capturing, err);
    if (status < 0)
        return status;
    if (capturing) {
        return wm_error_set(err, WM_ERR_STATE, 0,
                            "this copy needs a temporary, which a captured "
                            "graph cannot keep: make one side contiguous, or "
                            "both of one device");
    }
    return wm_array_new(enqueue_is_host(memory) ? -1 : memory->device, false,
                        like->dtype, like->ndim, like->shape, made, err);
}

// Frees device memory in stream order, and host memory once the stream has
// finished with it.
static int
temporary_free(wm_array_t *temporary, const route_t *route, int status,
               wm_error_t *err)
{
    wm_order_t *order = temporary->storage->order;
    int ended;
    if (order != NULL)
        ended = wm_order_after_write(order, route->device, route->stream, err);
    else
        ended = wm_stream_synchronize(route->device, route->stream, err);
    wm_array_clear(temporary);
    return status < 0 ? status : ended;
}

static int
enqueue(const wm_array_t *dst, const wm_array_t *src, const route_t *route,
        wm_error_t *err);

static int
through_packed_src(const wm_array_t *dst, const wm_array_t *src,
                   const route_t *route, wm_error_t *err)
{
    wm_array_t packed;
    wm_layout_t layout;
    int status = temporary_new(src, &route->src, route, &packed, err);
    if (status < 0)
        return status;
    wm_layout_init(&layout, &packed, src);
    status = copy_within(&layout, &route->src, route, err);
    if (status == 0) {
        route_t rest = *route;
        rest.src = packed.storage->memory;
        status = enqueue(dst, &packed, &rest, err);
    }
    return temporary_free(&packed, route, status, err);
}

static int
through_packed_dst(const wm_array_t *dst, const wm_array_t *src,
                   const route_t *route, wm_error_t *err)
{
    wm_array_t packed;
    wm_layout_t layout;
    int status = temporary_new(dst, &route->dst, route, &packed, err);
    if (status < 0)
        return status;
    route_t first = *route;
    first.dst = packed.storage->memory;
    status = enqueue(&packed, src, &first, err);
    if (status == 0 && enqueue_is_host(&route->dst))
        status = wm_stream_synchronize(route->device, route->stream, err);
    if (status == 0) {
        wm_layout_init(&layout, dst, &packed);
        status = copy_within(&layout, &route->dst, route, err);
    }
    return temporary_free(&packed, route, status, err);
}

static int
enqueue(const wm_array_t *dst, const wm_array_t *src, const route_t *route,
        wm_error_t *err)
{
    wm_layout_t layout;
    bool dst_near, src_near;
    int device;
    wm_layout_init(&layout, dst, src);
    if (wm_layout_is_contiguous(&layout)) {
        if (!find_device(route, &device))
            return through_packed_src(dst, src, route, err);
        return device == route->device
                   ? copy_contiguous(&layout, route, err)
                   : copy_contiguous_aside(&layout, device, route, err);
    }
    int status = is_reachable(route->device, &route->dst, &dst_near, err);
    if (status == 0)
        status = is_reachable(route->device, &route->src, &src_near, err);
    if (status < 0)
        return status;
    bool staged = (!dst_near && !enqueue_is_host(&route->dst))
                  || (!src_near && !enqueue_is_host(&route->src));
    bool linked = enqueue_is_host(&route->dst) || enqueue_is_host(&route->src)
                  || route->dst.device != route->src.device;
    if (!staged && linked && is_pitched(&layout))
        return copy_pitched(&layout, route, err);
    if (dst_near && src_near)
        return wm_kernels_copy(&layout, route->device, route->stream, err);
    if (!wm_array_is_contiguous(src))
        return through_packed_src(dst, src, route, err);
    return through_packed_dst(dst, src, route, err);
}

static bool
overlap(const wm_array_t *a, const wm_array_t *b)
{
    char *a_low, *b_low;
    size_t a_length, b_length;
    wm_array_extent(a, &a_low, &a_length);
    wm_array_extent(b, &b_low, &b_length);
    return a_low < b_low + b_length && b_low < a_low + a_length;
}

static bool
is_same_view(const wm_array_t *a, const wm_array_t *b)
{
    bool same = a->data == b->data;
    for (int i = 0; same && i < a->ndim; i++)
        same = a->strides[i] == b->strides[i] || a->shape[i] == 1;
    return same;
}

static int
enqueue_copy_on_host(const wm_array_t *dst, const wm_array_t *src,
                     wm_error_t *err)
{
    wm_layout_t layout;
    if (!overlap(dst, src)) {
        wm_layout_init(&layout, dst, src);
        wm_layout_copy_host(&layout);
        return 0;
    }
    wm_array_t packed;
    int status = wm_array_new(-1, false, src->dtype, src->ndim, src->shape,
                              &packed, err);
    if (status == 0) {
        wm_layout_init(&layout, &packed, src);
        wm_layout_copy_host(&layout);
        wm_layout_init(&layout, dst, &packed);
        wm_layout_copy_host(&layout);
        wm_array_clear(&packed);
    }
    return status;
}

int
wm_copy_enqueue(const wm_array_t *dst, const wm_array_t *src, int device,
                CUstream stream, wm_error_t *err)
{
    if (wm_array_count(dst) == 0 || is_same_view(dst, src))
        return 0;
    route_t route = {.device = device, .stream = stream};
    int status = wm_array_memory(dst, &route.dst, err);
    if (status == 0)
        status = wm_array_memory(src, &route.src, err);
    if (status < 0)
        return status;
    if (enqueue_is_host(&route.dst) && enqueue_is_host(&route.src)) {
        // Pinned memory may have work pending on the stream that orders it.
        bool pinned = route.dst.kind != WM_MEMORY_HOST
                      || route.src.kind != WM_MEMORY_HOST;
        if (pinned && device >= 0)
            status = wm_stream_synchronize(device, stream, err);
        return status < 0 ? status : enqueue_copy_on_host(dst, src, err);
    }
    if (device < 0) {
        return wm_error_set(err, WM_ERR_VALUE, 0,
                            "a copy of device memory without a device");
    }
    if (overlap(dst, src))
        return through_packed_src(dst, src, &route, err);
    return enqueue(dst, src, &route, err);
}

// SPDX-License-Identifier: BSD-3-Clause
// Facts about pointers, and driver calls on memory that we do not manage:
// peers' mappings, registered host memory, copies.
#define _GNU_SOURCE
#include <string.h>

#include "cuda/memory.h"

// The driver's answers. Wide and zeroed, since it writes one, four or eight
// bytes.
typedef struct {
    uint64_t type;
    uint64_t managed;
    uint64_t ordinal;
    uint64_t buffer_id;
    uint64_t start;
    uint64_t size;
    uint64_t exportable;
} answers_t;

// How many answers are asked for, in the order of the attributes.
enum { ID_ALONE = 1, ALL = 7 };

static CUresult
pointer_ask(const void *ptr, unsigned count, answers_t *answers)
{
    static const CUpointer_attribute attributes[ALL] = {
        CU_POINTER_ATTRIBUTE_BUFFER_ID,
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        CU_POINTER_ATTRIBUTE_IS_MANAGED,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
    };
    memset(answers, 0, sizeof(*answers));
    void *data[ALL] = {
        &answers->buffer_id,  &answers->type,  &answers->managed,
        &answers->ordinal,    &answers->start, &answers->size,
        &answers->exportable,
    };
    return wm_cu.PointerGetAttributes(count, (CUpointer_attribute *)attributes,
                                      data, (CUdeviceptr)ptr);
}

// Asks under any existing context: without a current context some drivers
// answer CUDA_ERROR_INVALID_CONTEXT.
static CUresult
ask_in_any_context(const void *ptr, unsigned asked, answers_t *answers)
{
    int count = wm_device_count();
    CUresult result = CUDA_ERROR_INVALID_CONTEXT;
    for (int i = 0; i < count && result == CUDA_ERROR_INVALID_CONTEXT; i++) {
        bool active;
        wm_scope_t scope;
        if (wm_device_active(i, &active, NULL) == 0 && active
            && wm_device_enter(i, &scope, NULL) == 0) {
            result = pointer_ask(ptr, asked, answers);
            wm_device_leave(&scope);
        }
    }
    return result;
}

static wm_memory_kind_t
pointer_kind_of(const answers_t *answers)
{
    if (answers->managed != 0)
        return WM_MEMORY_MANAGED;
    switch ((CUmemorytype)answers->type) {
    case CU_MEMORYTYPE_HOST:
        return WM_MEMORY_PINNED;
    case CU_MEMORYTYPE_DEVICE:
    case CU_MEMORYTYPE_ARRAY:
    case CU_MEMORYTYPE_UNIFIED:
        return WM_MEMORY_DEVICE;
    default:
        return WM_MEMORY_HOST;
    }
}

// Returns CUDA_ERROR_INVALID_VALUE for memory that CUDA does not know, and if
// the driver cannot be asked.
static CUresult
pointer_facts(const void *ptr, unsigned asked, answers_t *answers)
{
    if (ptr == NULL || !wm_driver_in_process() || wm_driver_forked())
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = pointer_ask(ptr, asked, answers);
    return result == CUDA_ERROR_INVALID_CONTEXT
               ? ask_in_any_context(ptr, asked, answers)
               : result;
}

int
wm_pointer_describe(const void *ptr, wm_pointer_t *pointer, wm_error_t *err)
{
    wm_pointer_t host = {.kind = WM_MEMORY_HOST, .device = -1};
    answers_t answers;
    CUresult result = pointer_facts(ptr, ALL, &answers);
    if (result == CUDA_ERROR_INVALID_CONTEXT
        || result == CUDA_ERROR_INVALID_VALUE) {
        *pointer = host; // no context, or memory unknown to CUDA
        return 0;
    }
    if (result != CUDA_SUCCESS) {
        (void)!wm_cu_check(result, "cuPointerGetAttributes(ptr)", err);
        return wm_error_context(err, "describing the pointer %p", ptr);
    }
    wm_memory_kind_t kind = pointer_kind_of(&answers);
    if (kind == WM_MEMORY_HOST) {
        *pointer = host;
        return 0;
    }
    bool device = kind != WM_MEMORY_PINNED;
    *pointer = (wm_pointer_t){
        .kind = kind,
        .device = device ? (int)answers.ordinal : -1,
        .base = (uintptr_t)answers.start,
        .size = (size_t)answers.size,
        .buffer_id = device ? answers.buffer_id : 0,
        .exportable = kind == WM_MEMORY_DEVICE && answers.exportable != 0,
    };
    return 0;
}

int
wm_pointer_home(const void *ptr)
{
    answers_t answers;
    return pointer_facts(ptr, ALL, &answers) == CUDA_SUCCESS
                   && pointer_kind_of(&answers) != WM_MEMORY_HOST
                   && answers.ordinal < (uint64_t)wm_device_count()
               ? (int)answers.ordinal
               : -1;
}

uint64_t
wm_pointer_buffer_id(uintptr_t base)
{
    answers_t answers;
    CUresult result = pointer_facts((const void *)base, ID_ALONE, &answers);
    return result == CUDA_SUCCESS ? answers.buffer_id : 0;
}

int
wm_memory_export(int device, uintptr_t base, CUipcMemHandle *handle,
                 wm_error_t *err)
{
    CUipcMemHandle made;
    int status = WM_CU_ON_OR(
        device, err,
        wm_error_context(err, "exporting the memory at 0x%zx of cuda:%d",
                         (size_t)base, device),
        IpcGetMemHandle, &made, (CUdeviceptr)base);
    if (status == 0)
        *handle = made;
    return status;
}

int
wm_memory_map(int device, const CUipcMemHandle *handle, void **ptr,
              wm_error_t *err)
{
    CUdeviceptr mapped;
    int status = WM_CU_ON_OR(
        device, err,
        wm_error_context(err, "mapping a peer's memory for cuda:%d", device),
        IpcOpenMemHandle, &mapped, *handle,
        CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (status == 0)
        *ptr = (void *)mapped;
    return status;
}

void
wm_memory_unmap(int device, void *ptr)
{
    (void)!WM_CU_ON(device, NULL, IpcCloseMemHandle, (CUdeviceptr)ptr);
}

int
wm_host_register(int device, void *ptr, size_t size, wm_error_t *err)
{
    return WM_CU_ON_OR(
        device, err,
        wm_error_context(err, "page-locking %zu bytes at %p", size, ptr),
        MemHostRegister, ptr, size,
        CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
}

void
wm_host_unregister(int device, void *ptr)
{
    (void)!WM_CU_ON(device, NULL, MemHostUnregister, ptr);
}

int
wm_memory_copy(int device, void *dst, const void *src, size_t size,
               CUstream stream, wm_error_t *err)
{
    return size == 0 ? 0
                     : WM_CU_ON_OR(
                         device, err,
                         wm_error_context(err,
                                          "copying %zu bytes from %p to %p on "
                                          "cuda:%d",
                                          size, src, dst, device),
                         MemcpyAsync, (CUdeviceptr)dst, (CUdeviceptr)src, size,
                         stream);
}

int
wm_memory_copy_now(int device, void *dst, const void *src, size_t size,
                   wm_error_t *err)
{
    CUstream stream;
    int code = wm_stream_acquire(device, &stream, err);
    if (code < 0)
        return code;
    if (src != NULL)
        code = wm_memory_copy(device, dst, src, size, stream, err);
    else
        code = WM_CU_ON(device, err, MemsetD8Async, (CUdeviceptr)dst, 0, size,
                        stream);
    if (code == 0)
        code = wm_stream_synchronize(device, stream, err);
    wm_stream_release(device, stream);
    return code;
}

// SPDX-License-Identifier: BSD-3-Clause
#include "cuda/word.h"

#include <string.h>

int
wm_word_write(int device, CUstream stream, _Atomic uint32_t *word,
              uint32_t value, wm_error_t *err)
{
    return WM_CU_ON(device, err, StreamWriteValue32, stream, (CUdeviceptr)word,
                    value, CU_STREAM_WRITE_VALUE_DEFAULT);
}

int
wm_word_wait(int device, CUstream stream, _Atomic uint32_t *word,
             uint32_t value, wm_error_t *err)
{
    return WM_CU_ON(device, err, StreamWaitValue32, stream, (CUdeviceptr)word,
                    value, CU_STREAM_WAIT_VALUE_GEQ);
}

// A batch of one: the driver's list then needs no further function. The
// members, and their offsets, are the same for both operations.
static int
enqueue_long(int device, CUstream stream, bool waits,
             const unsigned long long *word, uint64_t value, wm_error_t *err)
{
    CUstreamBatchMemOpParams params = {0};
    params.waitValue.operation = waits ? CU_STREAM_MEM_OP_WAIT_VALUE_64
                                       : CU_STREAM_MEM_OP_WRITE_VALUE_64;
    params.waitValue.address = (CUdeviceptr)word;
    params.waitValue.value64 = value;
    params.waitValue.flags = waits ? CU_STREAM_WAIT_VALUE_GEQ
                                   : CU_STREAM_WRITE_VALUE_DEFAULT;
    return WM_CU_ON(device, err, StreamBatchMemOp, stream, 1, &params, 0);
}

int
wm_word_write_long(int device, CUstream stream, const unsigned long long *word,
                   uint64_t value, wm_error_t *err)
{
    return enqueue_long(device, stream, false, word, value, err);
}

int
wm_word_wait_long(int device, CUstream stream, const unsigned long long *word,
                  uint64_t value, wm_error_t *err)
{
    return enqueue_long(device, stream, true, word, value, err);
}

int
wm_word_batch(int device, CUstream stream, const wm_word_op_t *ops, int count,
              wm_error_t *err)
{
    CUstreamBatchMemOpParams params[WM_WORD_OPS]; // 12 KiB
    memset(params, 0, (size_t)count * sizeof *params);
    for (int i = 0; i < count; ++i) {
        // The members, and their offsets, are the same for both operations.
        params[i].writeValue.operation = ops[i].waits
                                             ? CU_STREAM_MEM_OP_WAIT_VALUE_32
                                             : CU_STREAM_MEM_OP_WRITE_VALUE_32;
        params[i].writeValue.address = (CUdeviceptr)ops[i].word;
        params[i].writeValue.value = ops[i].value;
        params[i].writeValue.flags = ops[i].waits
                                         ? CU_STREAM_WAIT_VALUE_GEQ
                                         : CU_STREAM_WRITE_VALUE_DEFAULT;
    }
    return WM_CU_ON(device, err, StreamBatchMemOp, stream, (unsigned)count,
                    params, 0);
}

bool
wm_word_reached(_Atomic uint32_t *word, uint32_t value)
{
    uint32_t now = atomic_load_explicit(word, memory_order_acquire);
    return (int32_t)(now - value) >= 0;
}

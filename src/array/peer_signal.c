// SPDX-License-Identifier: BSD-3-Clause
#include "array/peer_signal.h"

#include <stdatomic.h>

#include "array/kernels.h"
#include "cuda/memory.h"
#include "cuda/stream.h"
#include "cuda/word.h"

#define WARP 32

int
wm_peer_signal_prepare(int device, wm_error_t *err)
{
    return wm_kernels_prepare(device, WM_KERNELS_PEER, err);
}

int
wm_peer_signal_poison(int device, void *dst, int byte, size_t nbytes,
                      wm_error_t *err)
{
    CUstream stream;
    int code = wm_stream_acquire(device, &stream, err);
    if (code < 0)
        return code;
    code = WM_CU_ON(device, err, MemsetD8Async, (CUdeviceptr)dst,
                    (unsigned char)byte, nbytes, stream);
    wm_stream_release(device, stream);
    return code;
}

int
wm_peer_signal_enqueue(int device, const wm_shared_t *shared, int rank,
                       int counter, uint64_t value, CUstream stream,
                       wm_error_t *err)
{
    wm_peer_signal_params_t params = {
        .shared = *shared,
        .rank = rank,
        .counter = counter,
        .value = value,
    };
    return wm_kernels_launch(device, WM_KERNELS_PEER, WM_KERNEL_SIGNAL, 1, 1,
                             &params, stream, err);
}

int
wm_peer_wait_enqueue(int device, const wm_shared_t *shared,
                     wm_shared_word_t *own, int counter, uint64_t value,
                     bool takes, bool spins, CUstream stream, wm_error_t *err)
{
    wm_peer_wait_params_t params = {
        .shared = *shared,
        .counter = counter,
        .takes = takes,
        .value = value,
    };
    if (!spins && shared->writers == 1) {
        int code = wm_word_wait_long(device, stream, own + counter, value,
                                     err);
        if (code < 0 || !takes)
            return code;
    }
    return wm_kernels_launch(device, WM_KERNELS_PEER, WM_KERNEL_WAIT, 1, 1,
                             &params, stream, err);
}

static int
barrier_launch(int device, const wm_shared_t *shared, bool raises, bool waits,
               CUstream stream, wm_error_t *err)
{
    wm_peer_barrier_params_t params = {
        .shared = *shared,
        .raises = raises,
        .waits = waits,
    };
    uint32_t threads = (uint32_t)shared->size;
    threads = (threads + WARP - 1) / WARP * WARP;
    if (threads > WM_PEER_SIGNAL_RANKS)
        threads = WM_PEER_SIGNAL_RANKS;
    return wm_kernels_launch(device, WM_KERNELS_PEER, WM_KERNEL_BARRIER, 1,
                             threads, &params, stream, err);
}

int
wm_peer_barrier_enqueue(int device, const wm_shared_t *shared,
                        wm_shared_word_t *own, bool spins, CUstream stream,
                        wm_error_t *err)
{
    if (spins || shared->writers > 1)
        return barrier_launch(device, shared, true, true, stream, err);
    int code = barrier_launch(device, shared, true, false, stream, err);
    for (int rank = 0; rank < shared->size && code == 0; ++rank)
        if (rank != shared->rank)
            code = wm_word_wait_long(device, stream,
                                     own + shared->slots + rank, 1, err);
    return code < 0 ? code
                    : barrier_launch(device, shared, false, true, stream, err);
}

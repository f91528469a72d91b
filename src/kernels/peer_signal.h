// SPDX-License-Identifier: BSD-3-Clause
// Signals between ranks on a stream: the calls of warpmpi/shared.cuh, one
// kernel each, so that a stream or a graph can make them. Shared by C and
// CUDA.
#ifndef WM_KERNELS_PEER_SIGNAL_H
#define WM_KERNELS_PEER_SIGNAL_H

#include <stdint.h>

#include <warpmpi/shared.cuh>

#define WM_PEER_SIGNAL_RANKS 512 // most ranks of a barrier: a thread each

typedef struct {
    wm_shared_t shared;
    int rank, counter;
    uint64_t value;
} wm_peer_signal_params_t;

// A wait that does not take leaves the value for a later one.
typedef struct {
    wm_shared_t shared;
    int counter;
    uint32_t takes;
    uint64_t value;
} wm_peer_wait_params_t;

// The two halves of a barrier, one or both.
typedef struct {
    wm_shared_t shared;
    uint32_t raises, waits;
} wm_peer_barrier_params_t;

#endif

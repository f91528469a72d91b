// SPDX-License-Identifier: BSD-3-Clause
// Symmetric memory: memory of each rank that the GPUs of all ranks of a
// communicator reach, and facts about these GPUs. It is GPU memory or, if GPUs
// do not reach each other, pinned symmetric memory of the rank's segment. All
// ranks make it in one call. GIL released by the caller, engine lock not held.
#ifndef WM_COMM_COLL_STREAM_SYMM_MEMORY_H
#define WM_COMM_COLL_STREAM_SYMM_MEMORY_H

#include "comm/comm/comm.h"
#include "comm/node/mapping.h"

typedef struct {
    int device, size;
    size_t nbytes; // bytes of each rank
    bool on_host;
    // Blocks of 512 threads of a kernel that run at once on all GPUs, for the
    // kernels of all ranks. 0 if processes share a GPU in turns, as a kernel
    // would wait for one that does not run.
    int blocks;
    bool linked;       // all GPUs are linked to all (wm_device_is_linked)
    wm_block_t *block; // NULL: pinned symmetric memory
    int pinned_symm;   // index of the pinned symmetric memory; -1: none
    struct {
        wm_mapping_t *mapping; // NULL: our own memory
        char *memory;          // address in this process
    } ranks[];
} wm_symm_memory_t;

// Clears memory before others see it.
typedef int (*wm_symm_memory_clear_t)(const wm_symm_memory_t *symm,
                                      char *memory, wm_error_t *err);

// Makes `nbytes` of each rank for streams of `device`; on the host at most
// WM_PINNED_SYMM_BYTES. *unreached becomes true on all ranks, and nothing is
// made, if a rank does not reach another's memory. If one rank fails, all
// raise.
WM_MUST_CHECK int
wm_symm_memory_make(wm_comm_t *comm, int device, bool on_host, size_t nbytes,
                    wm_symm_memory_clear_t clear, wm_symm_memory_t **made,
                    bool *unreached, wm_error_t *err);

// Frees the memory when no kernel uses it any more. NULL: no-op.
void
wm_symm_memory_free(wm_symm_memory_t *symm);

// Exchanges flags; called by all ranks. Raises on all ranks if one has failed
// (`code`). *any becomes true if it is on any rank; *all, unless NULL, if it
// is on all ranks.
WM_MUST_CHECK int
wm_symm_memory_exchange(wm_comm_t *comm, int code, bool *any, bool *all,
                        wm_error_t *err);

#endif

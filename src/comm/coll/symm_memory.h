// SPDX-License-Identifier: BSD-3-Clause
// Memory of each rank that the GPUs of all ranks of a communicator reach: GPU
// memory, or, if the GPUs do not reach each other, pinned symmetric memory of
// the rank's segment; and what is known of these GPUs. Made by all ranks in
// one call; GIL released by the caller, engine lock not held.
#ifndef WM_COMM_COLL_SYMM_MEMORY_H
#define WM_COMM_COLL_SYMM_MEMORY_H

#include "comm/comm/comm.h"
#include "comm/node/mapping.h"

typedef struct {
    int device, size;
    size_t nbytes; // of each rank's
    bool on_host;
    // Of a kernel of each rank, so many blocks of 512 threads find room on all
    // GPUs at once; 0 where processes share one and have it in turn, as each
    // would wait out its turn.
    int blocks;
    bool linked;       // wm_device_is_linked, all of them to all
    wm_block_t *block; // NULL: pinned symmetric memory
    int pinned_symm;   // its index; -1: none
    struct {
        wm_mapping_t *mapping; // NULL: ours
        char *memory;          // as this rank sees it
    } ranks[];
} wm_symm_memory_t;

// Makes memory ready before others see it.
typedef int (*wm_symm_memory_clear_t)(const wm_symm_memory_t *symm,
                                      char *memory, wm_error_t *err);

// For streams of `device` here, `nbytes` of each rank, on the host up to
// WM_PINNED_SYMM_BYTES. `unreached`: a rank does not reach another's memory,
// as all ranks learn, and nothing is made; if one rank fails all raise.
WM_MUST_CHECK int
wm_symm_memory_make(wm_comm_t *comm, int device, bool on_host, size_t nbytes,
                    wm_symm_memory_clear_t clear, wm_symm_memory_t **made,
                    bool *unreached, wm_error_t *err);

// NULL: nothing. When no kernel uses it any more.
void
wm_symm_memory_free(wm_symm_memory_t *symm);

// By all ranks: where one has failed (`code`) all raise; of `any`, and of
// `all`, which may be NULL, all learn whether it is true on any, or all.
WM_MUST_CHECK int
wm_symm_memory_exchange(wm_comm_t *comm, int code, bool *any, bool *all,
                        wm_error_t *err);

#endif

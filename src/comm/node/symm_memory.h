// SPDX-License-Identifier: BSD-3-Clause
// Symmetric memory: memory of each rank of a group that the GPUs of all ranks
// reach. It is GPU memory or, if GPUs do not reach each other or a rank has
// none, host memory: pinned symmetric memory of the rank's segment (node.h),
// or a file of its own. All ranks of the group make it in one call. Its
// content and its layout are the user's. GIL released by the caller, engine
// lock not held.
#ifndef WM_COMM_NODE_SYMM_MEMORY_H
#define WM_COMM_NODE_SYMM_MEMORY_H

#include "comm/node/mapping.h"

// The ranks that make the memory together, all on this host, and how they
// exchange data: given by the user, and needed until the memory is made.
typedef struct wm_symm_group {
    int rank, size;
    const char *call; // name of the call, for errors
    size_t least;     // bytes that each rank has at least
    bool has_files;   // host memory is a file, which any number may have
    wm_peer_t *const *peers; // by rank
    void *context;           // the user's
    // Gathers `nbytes` of each rank, or raises on all ranks if one has failed
    // (`code`, with its error in *err): see wm_coll_exchange().
    int (*exchange)(const struct wm_symm_group *group, int code,
                    const void *mine, size_t nbytes, void *all,
                    wm_error_t *err);
    // Sets the error that a rank has told impossible numbers.
    int (*damaged)(const struct wm_symm_group *group, int rank,
                   wm_error_t *err);
} wm_symm_group_t;

typedef struct {
    int device, size; // device -1: this rank has no GPU
    size_t nbytes;    // bytes of this rank
    bool on_host;
    // Multiprocessors that the kernels of each rank can have at once, on any
    // of the GPUs. 0 if processes share a GPU in turns: then a kernel must not
    // wait for another rank's, which may not run.
    int multiprocessors;
    bool linked;       // all GPUs are linked to all (wm_device_is_linked)
    wm_block_t *block; // NULL: host memory
    int pinned_symm;   // index of the pinned symmetric memory; -1: none
    int file;          // number of our file; -1: none
    struct {
        wm_mapping_t *mapping; // NULL: our own memory
        char *memory;          // address in this process
        size_t nbytes;
        void *file;         // its file, mapped; NULL: none
        bool is_own;        // the file is ours
        bool is_registered; // the file is page-locked
    } ranks[];
} wm_symm_memory_t;

// Clears memory before others see it; NULL: all becomes zero.
typedef int (*wm_symm_memory_clear_t)(const wm_symm_memory_t *symm,
                                      char *memory, wm_error_t *err);

// Makes `nbytes` of this rank, which may differ by rank, for streams of
// `device`; -1 with `on_host`: for this rank's CPU alone. On the host, more
// than WM_PINNED_SYMM_BYTES is a file. *unreached becomes true on all ranks,
// and nothing is made, if a rank does not reach another's memory. If one rank
// fails, all raise.
WM_MUST_CHECK int
wm_symm_memory_make(const wm_symm_group_t *group, int device, bool on_host,
                    size_t nbytes, wm_symm_memory_clear_t clear,
                    wm_symm_memory_t **made, bool *unreached, wm_error_t *err);

// Frees the memory when no kernel uses it any more: this rank's, and its
// mappings of the others'. No rank waits for another. NULL: no-op.
void
wm_symm_memory_free(wm_symm_memory_t *symm);

#endif

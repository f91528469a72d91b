// SPDX-License-Identifier: BSD-3-Clause
// The data that links move: chunks of payloads, which both ends give, and
// memory of windows, which one end reads and writes by itself. Engine lock
// held.
#ifndef WM_COMM_LINK_CARRY_H
#define WM_COMM_LINK_CARRY_H

#include <mpi.h>

#include "comm/node/node.h"

// The way of a chunk of a payload that a link carries.
typedef struct {
    wm_peer_t *peer;
    MPI_Comm data; // MPI's messages of payloads
    int rank;      // of the peer in `data`
    // The payload has this number at both ends, and no other payload has.
    uint32_t number;
    uint32_t index; // of the chunk, from 0; all but the last have one length
    int device;     // of the memory; -1: it is host memory
    const wm_pointer_t *memory; // facts about device memory
} wm_carry_t;

// A chunk that is under way, for one end.
typedef union {
    MPI_Request mpi;
    void *own;
} wm_flight_t;

// Memory of a process that peers read and write by a link, with no work of the
// process itself. The functions of a link that does so: all, or none.
typedef struct {
    // Makes memory of ours, which lies in one allocation, accessible. Writes
    // the key for peers if it fits into `room` bytes, and returns its length;
    // 0: the link does not reach this memory.
    size_t (*expose)(void *memory, size_t nbytes, const wm_pointer_t *about,
                     void *key, size_t room, void **exposed);
    // Ends that, before the memory is freed, when no peer accesses it any
    // more. Returns false while a peer that died, or with `failed` any, may
    // still do so: call it again.
    bool (*conceal)(void *exposed, bool failed);
    // Opens memory of a peer by its key, until close().
    int (*open)(wm_peer_t *peer, const void *key, size_t nbytes, void **opened,
                wm_error_t *err);
    void (*close)(void *opened);
    // Returns true if put() and get() take so many bytes of this memory of
    // ours, and are no slower than a message.
    bool (*takes)(const wm_peer_t *peer, const wm_pointer_t *memory,
                  size_t nbytes);
    // Begin to copy contiguous memory of ours to the peer's, `offset` behind
    // its first byte, or from there. An error: nothing has begun. When test()
    // has returned 1, our memory is free, or has the data.
    int (*put)(const wm_carry_t *to, const void *memory, size_t nbytes,
               void *opened, uint64_t offset, wm_flight_t *flight,
               wm_error_t *err);
    int (*get)(const wm_carry_t *from, void *memory, size_t nbytes,
               void *opened, uint64_t offset, wm_flight_t *flight,
               wm_error_t *err);
    // Begins to wait for all puts before it: when test() has returned 1, they
    // are in the peer's memory.
    int (*flush)(wm_peer_t *peer, wm_flight_t *flight, wm_error_t *err);
} wm_link_access_t;

#endif

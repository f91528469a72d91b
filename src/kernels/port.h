// SPDX-License-Identifier: BSD-3-Clause
// Ports: messages in CUDA graphs. A port is what a GPU knows of one end of a
// message that is sent again in each replay: it counts the messages there, as
// the nodes of a graph are the same in each replay. The two ends meet once, by
// their hosts; then kernels write into the other end's memory. Shared by C and
// CUDA. Traces show the names of the kernels, wm_port and wm_port_few.
#ifndef WM_KERNELS_PORT_H
#define WM_KERNELS_PORT_H

#include <stdint.h>

#include "kernels/eager_ll.h"

#define WM_PORT_OPS 96    // most ends in a kernel
#define WM_PORT_FEW_OPS 4 // most in wm_port_few, which has few parameters

// Up to so many bytes are a short message. They go in LL lines; each part of
// 512 lines is done by one block, with a thread for each line.
#define WM_PORT_LL_BYTES 65536
#define WM_PORT_BLOCK_LINES 512
#define WM_PORT_LL_BLOCKS                                                     \
    (WM_PORT_LL_BYTES / WM_LINE_PAYLOAD / WM_PORT_BLOCK_LINES)

// Facts about the other end, which never change. A short message goes in LL
// lines, into a slot behind the receiver's port. A long one goes, as the
// receiver's host chooses, directly into the receiver's memory, or staged:
// into a slot.
typedef struct {
    uint32_t matched;      // written last: not 0
    uint32_t slots;        // their number
    uint64_t nbytes;       // of the message
    uint64_t slot_bytes;   // of a slot; 0: the message goes directly
    char *memory;          // the slots or, directly, the receiver's memory
    uint32_t *tells;       // `heard` of the other end
    const uint32_t *asked; // a sender's: `asks` of the receiver
} wm_port_place_t;

#define WM_PORT_BEAT_BITS 16 // of a beat, which change in one wait

// In page-locked memory: what the host tells the kernels before their first
// message, and what they tell the host.
typedef struct {
    wm_port_place_t place; // until the port itself has it
    uint32_t stop;         // not 0: the kernels wait no longer
    uint32_t failed;       // not 0: a kernel has not passed its message
    // Changes while a kernel waits; the bits above: for another message.
    uint32_t beat;
} wm_port_late_t;

// In GPU memory of its end; the slots follow. Messages are counted modulo
// 2^32.
typedef struct {
    wm_port_place_t place; // copied from wm_port_late_t by the first kernel
    uint32_t closed;       // not 0: no message passes any more
    uint32_t counts[WM_PORT_LL_BLOCKS]; // short ones whose part has ended
    // Long messages that have begun, if they are received, and ended.
    uint32_t begun __attribute__((aligned(128)));
    uint32_t ended;
    // The number of the latest message that kernels have come to, and left.
    uint32_t active, left;
    uint32_t early; // a long send has ended before the kernel that ends it
    // Counted within a kernel; 0 between kernels: blocks that have ended, and
    // those of them that have stopped; for sends that are not required, the
    // required operations that have ended, and the blocks that have left
    // (words of the first such send); when the send is done, from 1.
    uint32_t blocks, others, step;
    // Written by the other end, read here: the number of the latest message
    // whose part a receiver has taken out of its slot; or, first word, of the
    // long one that has come.
    uint32_t heard[WM_PORT_LL_BLOCKS] __attribute__((aligned(128)));
    // Written here, read by the other end: the number of the long message for
    // which the receiver's memory is free.
    uint32_t asks __attribute__((aligned(128)));
} wm_port_t;

#define WM_PORT_BYTES 512 // of a wm_port_t

// Bits of an operation.
enum {
    WM_PORT_SENDS = 1,
    WM_PORT_BEGINS =
        2, // Start: a short message is written, a long one asked for
    WM_PORT_ENDS = 4,    // Wait: a long one is written; any one is taken
    WM_PORT_SYNCS = 8,   // a synchronous send: its Wait awaits the receiver
    WM_PORT_MAPPED = 16, // a receive: a long message comes directly
};

// One end of a message, by `blocks` blocks. All that are not required have the
// same blocks, behind those of the required ones.
typedef struct {
    wm_port_t *port;
    wm_port_late_t *late;
    char *user; // memory to send, or to receive into
    uint64_t nbytes;
    uint32_t what, blocks;
} wm_port_op_t;

// The first operations are required. The others are long sends that have
// begun, and that no kernel has ended yet: they are done if their receivers
// come before the required ones have ended, which may wait for these
// receivers.
typedef struct {
    uint32_t count, required;
    wm_port_op_t ops[WM_PORT_OPS];
} wm_port_params_t;

typedef struct {
    uint32_t count, required;
    wm_port_op_t ops[WM_PORT_FEW_OPS];
} wm_port_few_params_t;

#endif

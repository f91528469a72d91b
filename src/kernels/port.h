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

#define WM_PORT_OPS 48    // most ends in a kernel
#define WM_PORT_FEW_OPS 4 // most in wm_port_few, which has few parameters

// Up to so many bytes go in LL lines, through a mailbox at the receiver.
#define WM_PORT_LL_BYTES 65536

// The way of the payload, which the receiver's host chooses.
enum {
    WM_PORT_UNMATCHED = 0,
    WM_PORT_LL,     // in LL lines, through the mailbox
    WM_PORT_STAGED, // through the mailbox, with a count behind it
    WM_PORT_DIRECT, // into the receiver's memory
    WM_PORT_CLOSED, // no message passes any more
};

// Facts about the other end. `way` is written last.
typedef struct {
    uint32_t way;
    uint32_t slots;        // of the mailbox
    uint64_t nbytes;       // of the message
    uint64_t slot_bytes;   // of a slot of the mailbox
    char *memory;          // the mailbox or, DIRECT, the receiver's memory
    uint32_t *tells;       // `heard` of the other end
    const uint32_t *asked; // a sender's: `asks` of the receiver
} wm_port_place_t;

// In page-locked memory: what the host tells the kernels before their first
// message, and what they tell the host.
typedef struct {
    wm_port_place_t place; // until the port itself has it
    uint32_t stop;         // not 0: the kernels wait no longer
    uint32_t failed;       // not 0: a kernel has not passed its message
} wm_port_late_t;

// In GPU memory of its end; the mailbox follows.
typedef struct {
    wm_port_place_t place; // copied from wm_port_late_t by the first kernel
    uint32_t begun, ended; // messages, modulo 2^32
    uint32_t active;       // the number of the latest: a kernel is in it
    // Counted within a kernel; 0 between kernels: blocks that have ended;
    // other operations that have; the first block's verdict, for the others.
    uint32_t blocks, others, verdict;
    // Written by the other end, read here: the number of the latest message
    // that the receiver has taken out of its mailbox, or that has come.
    uint32_t heard __attribute__((aligned(128)));
    // Written here, read by the other end: the number of the message for which
    // the receiver's memory is free.
    uint32_t asks __attribute__((aligned(128)));
} wm_port_t;

#define WM_PORT_BYTES 512 // of a wm_port_t

// Bits of an operation.
enum {
    WM_PORT_SENDS = 1,
    WM_PORT_BEGINS = 2, // Start: a short message is written
    WM_PORT_ENDS = 4,   // Wait: a long one is written; any one is taken
    WM_PORT_SYNCS = 8,  // a synchronous send: its Wait awaits the receiver
};

// One end of a message, by `blocks` blocks.
typedef struct {
    wm_port_t *port;
    wm_port_late_t *late;
    char *user; // memory to send, or to receive into
    uint32_t what, blocks;
} wm_port_op_t;

// The first operations are required. The others are sends that have begun, and
// that no kernel has ended yet: they are done if their receivers come before
// the required ones have ended, which may wait for these receivers.
typedef struct {
    uint32_t count, required;
    wm_port_op_t ops[WM_PORT_OPS];
} wm_port_params_t;

typedef struct {
    uint32_t count, required;
    wm_port_op_t ops[WM_PORT_FEW_OPS];
} wm_port_few_params_t;

#endif

// SPDX-License-Identifier: BSD-3-Clause
// The words of one end of a message in CUDA graphs, in the segment of its
// process (protocol/captured.h). The other end's host answers there; kernels
// of this process read what their host tells them. An end has the words for
// itself until both ends are closed.
#ifndef WM_COMM_NODE_PORT_WORDS_H
#define WM_COMM_NODE_PORT_WORDS_H

#include <stdatomic.h>

#include "comm/node/rkey.h"
#include "kernels/port.h"

#define WM_PORTS 1024 // ends of messages in graphs, of a process

// Why a message is refused.
enum {
    WM_PORT_FITS_NOT = 1,
    WM_PORT_ALONE, // kernels of both ends cannot run at once
};

// The receiver's answer to a sender that it has matched.
typedef struct {
    uint32_t index;      // of the receiver's words
    uint32_t refused;    // WM_PORT_…; the rest is 0 then
    uint32_t slots;      // of its mailbox; 0: it was closed before
    uint64_t slot_bytes; // 0: the message goes directly
    wm_rkey_t port;      // its wm_port_t; the mailbox follows
    wm_rkey_t target;    // its memory, if the message goes directly
} wm_port_answer_t;

typedef struct {
    _Alignas(64) wm_port_late_t late;
    // The number of a sender, until either the receiver answers or the sender
    // gives up, so that a late answer comes to nobody else.
    _Alignas(64) _Atomic uint32_t serial;
    // Written by the other end:
    _Atomic uint32_t answered; // `answer` is valid
    _Atomic uint32_t closed;   // it touches our memory no more
    // With WARPMPI_CHECK: 1 more than the messages that it has passed; 0: it
    // has not told.
    _Atomic uint32_t passed;
    wm_port_answer_t answer;
} wm_port_words_t;

#endif

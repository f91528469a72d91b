// SPDX-License-Identifier: BSD-3-Clause
// The account of a process: the call in which it waits, and the exception that
// ends it. Peers read it in the shared segment of the process. The call is
// written only when a peer asks, which a peer does after a long wait (hang.h);
// otherwise it costs nothing.
#ifndef WM_COMM_NODE_ACCOUNT_H
#define WM_COMM_NODE_ACCOUNT_H

#include <stdatomic.h>
#include <stdint.h>

enum {
    WM_WAITS_OTHER = 0,
    WM_WAITS_TO_RECEIVE,
    WM_WAITS_TO_SEND,
    WM_WAITS_IN_COLLECTIVE,
};

typedef struct {
    int64_t when;        // time of writing; microseconds of the host's clock
    uint64_t comm;       // wm_comm_t.id
    uint32_t kind;       // WM_WAITS_…
    uint8_t awaited[16]; // id of the other process of a message; 0: any
    char call[32];
    char text[256]; // description in words
} wm_waiting_t;

typedef struct {
    _Atomic uint32_t asked;   // number of requests so far
    _Atomic uint32_t version; // odd while the rest is being written
    wm_waiting_t waiting;
    _Atomic uint32_t raised; // 1: `exception` is written
    char exception[160];     // one line
} wm_account_t;

#endif

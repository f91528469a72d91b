// SPDX-License-Identifier: BSD-3-Clause
// What a process waits for, as its peers read it in its shared segment. It is
// written only when one of them asks, which one does that has waited for long
// (hang.h): it costs nothing otherwise.
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
    int64_t when;        // written; microseconds of the host's clock
    uint64_t comm;       // wm_comm_t.id
    uint32_t kind;       // WM_WAITS_…
    uint8_t awaited[16]; // a receive's or send's other process; 0: any
    char call[32];
    char text[256]; // in words
} wm_waiting_t;

typedef struct {
    _Atomic uint32_t asked;   // how often, ever
    _Atomic uint32_t version; // odd while the rest is being written
    wm_waiting_t waiting;
} wm_account_t;

#endif

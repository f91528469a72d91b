// SPDX-License-Identifier: BSD-3-Clause
// How offered device memory gets across. A slot that is NULL means "cannot".
// One const array gives the order of preference, one function chooses, in
// one place (transport.c). Engine lock held throughout; no Python.
#ifndef WM_COMM_TRANSPORT_H
#define WM_COMM_TRANSPORT_H

#include "comm/op.h"

struct wm_transport {
    const char *name;
    // Pulls from the sender's own memory, so a stream of the user's can.
    bool direct;
    // Whether `peer`'s memory offered to a buffer can come this way; the
    // reason, either way, is one sentence.
    bool (*reach)(const wm_peer_t *peer, const wm_pointer_t *into,
                  char *reason, size_t room);
    // Receiver: makes op->pieces ready to be pulled (0), or has to be called
    // again (1), or fails.
    int (*accept)(wm_op_t *op, wm_error_t *err);
    // Counts a message that has come this way.
    void (*count)(const wm_op_t *op);
};

extern const wm_transport_t wm_transport_self;
extern const wm_transport_t wm_transport_ipc;
extern const wm_transport_t wm_transport_host;

// The first of the transports that reaches; `host` always does.
const wm_transport_t *
wm_transport_choose(const wm_peer_t *peer, const wm_pointer_t *into,
                    char *reason, size_t room);

// WARPMPI_TRANSPORT: NULL where unset. WM_ERR_VALUE for an unknown name.
WM_MUST_CHECK int
wm_transport_forced(const wm_transport_t **forced, wm_error_t *err);

// Receiver: one step of pulling; 1 when all has been taken, 0 when not yet.
int
wm_pieces_pull(wm_op_t *op, wm_error_t *err);

// Sender: one step of filling a ring.
int
wm_pieces_feed(wm_op_t *op, wm_error_t *err);

// The payload on the data communicator (payload.c), in chunks, by either end;
// 1 when all is across, 0 when not yet.
int
wm_payload_send(wm_op_t *op, wm_error_t *err);

int
wm_payload_receive(wm_op_t *op, wm_error_t *err);

// Sender: tells the receiver that no more comes.
void
wm_payload_abandon(wm_op_t *op);

#endif

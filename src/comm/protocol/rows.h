// SPDX-License-Identifier: BSD-3-Clause
// The rows of all protocols, for table.c and for protocols that hand over to
// each other.
#ifndef WM_COMM_PROTOCOL_ROWS_H
#define WM_COMM_PROTOCOL_ROWS_H

#include "comm/message/protocol.h"

extern const wm_sending_t wm_sending_inline;       // with the header
extern const wm_sending_t wm_sending_device_eager; // a kernel hands it off
extern const wm_sending_t wm_sending_self;         // copied in this process
extern const wm_sending_t wm_sending_plain;        // the receiver copies
extern const wm_sending_t wm_sending_handoff;      // handed off in fragments
extern const wm_sending_t wm_sending_staged; // the receiver asks for a ring
extern const wm_sending_t wm_sending_chunks; // a link carries them
// Offers that the receiver has answered come to these:
extern const wm_sending_t wm_sending_pushed;       // copied by the sender
extern const wm_sending_t wm_sending_staging_ring; // staged in shared memory
extern const wm_sending_t wm_sending_by_mpi;       // chunks of the link mpi

extern const wm_receiving_t wm_receiving_inline;       // behind the header
extern const wm_receiving_t wm_receiving_chunks;       // by a link
extern const wm_receiving_t wm_receiving_offer;        // by one of the next
extern const wm_receiving_t wm_receiving_pushed;       // copied by the sender
extern const wm_receiving_t wm_receiving_by_host;      // by this thread
extern const wm_receiving_t wm_receiving_stream_eager; // by the user's stream
extern const wm_receiving_t wm_receiving_stream;       // likewise
extern const wm_receiving_t wm_receiving_device_eager; // by a kernel
extern const wm_receiving_t wm_receiving_pull;         // by a stream of ours

#endif

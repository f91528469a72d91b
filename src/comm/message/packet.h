// SPDX-License-Identifier: BSD-3-Clause
// Packets: what MPI matches and carries of a message, header and payload, if
// that is short. Any thread.
#ifndef WM_COMM_MESSAGE_PACKET_H
#define WM_COMM_MESSAGE_PACKET_H

#include "comm/message/header.h"

// Header, eager payload and, of a receive into a device, the status word of
// the kernel that fetches a device eager message.
#define WM_PACKET_BYTES (sizeof(wm_header_t) + WM_EAGER_BYTES)
#define WM_STATUS_BYTES 64

// Host memory for a packet, kept for the next; NULL without memory.
char *
wm_packet_take(void);
void
wm_packet_give(char *packet);

// Page-locked memory, which a stream may read or write.
WM_MUST_CHECK int
wm_packet_take_pinned(char **packet, wm_error_t *err);
void
wm_packet_give_pinned(char *packet);

#endif

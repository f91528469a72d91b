// SPDX-License-Identifier: BSD-3-Clause
// Packets: the header of a message and, if it is short, its payload, as MPI
// matches and carries them. Any thread.
#ifndef WM_COMM_MESSAGE_PACKET_H
#define WM_COMM_MESSAGE_PACKET_H

#include "comm/message/header.h"

// Bytes for the header and the eager payload. After them, a receive into a
// device has the status word of the kernel that fetches a device eager
// message.
#define WM_PACKET_BYTES (sizeof(wm_header_t) + WM_EAGER_BYTES)
#define WM_PACKET_ROOM (WM_PACKET_BYTES + 64)

// Returns host memory for a packet, from a pool; NULL: out of memory.
char *
wm_packet_get(void);
void
wm_packet_put(char *packet);

#endif

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
#define WM_STATUS_BYTES 64

// Returns host memory for a packet, from a pool; NULL: out of memory.
char *
wm_packet_take(void);
void
wm_packet_give(char *packet);

// Takes page-locked memory, which a stream may read or write.
WM_MUST_CHECK int
wm_packet_take_pinned(char **packet, wm_error_t *err);
void
wm_packet_give_pinned(char *packet);

#endif

// SPDX-License-Identifier: BSD-3-Clause
// All protocols, in order of preference. A row to which others alone hand over
// is not here: its own file makes the change (wm_send_become).
#include "comm/message/protocol.h"
#include "comm/protocol/batch.h"
#include "comm/protocol/eager.h"
#include "comm/protocol/inline.h"
#include "comm/protocol/rows.h"

static const wm_sending_t *const sending[] = {
    &wm_sending_inline, // host memory up to 4 KiB, or nothing
    &wm_sending_device_eager,
    &wm_sending_packed, // gaps, copies; around one of the others
    &wm_sending_self,         &wm_sending_plain, &wm_sending_handoff,
    &wm_sending_staged, // serves every message with a slot
    &wm_sending_chunks, // serves every message
};

static const wm_receiving_t *const receiving[] = {
    &wm_receiving_inline,
    &wm_receiving_offer,
    &wm_receiving_pushed, // from here on, rows that accept an offer
    &wm_receiving_chunks, // headers as well
    &wm_receiving_by_host,
    &wm_receiving_stream_eager,
    &wm_receiving_stream,
    &wm_receiving_device_eager,
    &wm_receiving_pull, // takes every offer
    NULL,
};

const wm_protocols_t wm_protocols = {
    .sending = sending,
    .receiving = receiving,
    .fits_inline = wm_inline_fits,
    .send_inline = wm_inline_send,
    .copies = wm_eager_copies,
    .flush = wm_batch_flush,
};

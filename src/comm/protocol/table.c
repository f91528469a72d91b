// SPDX-License-Identifier: BSD-3-Clause
// All protocols, in order of preference. A row to which others alone hand over
// is not here: its own file makes the change (wm_send_become).
#include "comm/message/protocol.h"
#include "comm/node/mapping.h"
#include "comm/protocol/batch.h"
#include "comm/protocol/chunks.h"
#include "comm/protocol/eager.h"
#include "comm/protocol/staging_ring.h"
#include "comm/protocol/device_eager.h"
#include "comm/protocol/offer.h"
#include "comm/protocol/fragments.h"
#include "comm/protocol/handoff.h"
#include "comm/protocol/inline.h"
#include "comm/protocol/rows.h"

static void
table_drop(wm_end_t *end)
{
    if (end->pull.side != NULL)
        wm_stream_release(end->access.device, end->pull.side);
    end->pull.side = NULL;
    if (end->mapping != NULL)
        wm_mapping_release(end->mapping);
    end->mapping = NULL;
    wm_eager_drop(end);
    wm_handoff_drop(end);
    wm_chunks_drop(end);
    wm_staging_ring_drop(end);
    // A slot or an eager LL buffer leaks if a stream of ours may still write
    // it.
    bool quiet = end->slot != NULL && wm_fragments_begun_are_ready(end);
    wm_device_eager_drop(end, quiet);
    if (end->slot_index >= 0 && quiet)
        wm_slot_release(end->slot_index);
    end->slot_index = -1;
    end->slot = NULL;
}

static const wm_sending_t *const sending[] = {
    &wm_sending_inline, // host memory up to 4 KiB, or nothing
    &wm_sending_device_eager,
    &wm_sending_packed, // around one of the others
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
    .flush = wm_batch_flush,
    .drop = table_drop,
};

// SPDX-License-Identifier: BSD-3-Clause
// All protocols: which one a message's bytes are sent by, which receiver a
// header asks for. Of what is offered, offer.c and take.c choose.
#include "comm/message/protocol.h"
#include "comm/node/mapping.h"
#include "comm/protocol/batch.h"
#include "comm/protocol/chunks.h"
#include "comm/protocol/eager.h"
#include "comm/protocol/staging_ring.h"
#include "comm/protocol/device_eager.h"
#include "comm/protocol/offer.h"
#include "comm/protocol/fragments.h"
#include "comm/protocol/ring.h"
#include "comm/protocol/rows.h"
#include "comm/protocol/transport.h"

// A payload that is not short is offered where the peer can look; where all
// slots are taken it goes as it goes to other hosts: a send never waits for
// another to begin.
const wm_sending_t *
wm_sending_choose(wm_end_t *end)
{
    size_t nbytes = end->buffer.nbytes;
    bool device = wm_buffer_on_device(&end->buffer);
    if (nbytes == 0 || (!device && nbytes <= WM_EAGER_BYTES))
        return NULL;
    end->chunks.carried = device && wm_transport_is_carried(end->peer);
    return wm_offer_begin(end) ? &wm_sending_direct : &wm_sending_chunks;
}

const wm_receiving_t *
wm_receiving_find(const wm_header_t *header)
{
    switch (header->kind) {
    case WM_MESSAGE_EAGER:
        return &wm_receiving_inline;
    case WM_MESSAGE_DATA:
        return &wm_receiving_chunks;
    case WM_MESSAGE_OFFER:
        return &wm_receiving_offer;
    default:
        return NULL;
    }
}

void
wm_protocols_flush(void)
{
    wm_batch_flush();
}

void
wm_protocols_drop(wm_end_t *end)
{
    if (end->pull.side != NULL)
        wm_stream_release(end->access.device, end->pull.side);
    end->pull.side = NULL;
    if (end->mapping != NULL)
        wm_mapping_release(end->mapping);
    end->mapping = NULL;
    wm_eager_drop(end);
    wm_ring_drop(end);
    wm_chunks_drop(end);
    wm_staging_ring_drop(end);
    // A slot or eager LL buffer that a stream of ours may still write leaks.
    bool quiet = end->slot != NULL && wm_fragments_are_ready(end);
    wm_device_eager_drop(end, quiet);
    if (end->slot_index >= 0 && quiet)
        wm_slot_release(end->slot_index);
    end->slot_index = -1;
    end->slot = NULL;
}

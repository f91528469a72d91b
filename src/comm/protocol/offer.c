// SPDX-License-Identifier: BSD-3-Clause
#include "comm/protocol/offer.h"

#include <string.h>

#include "comm/comm/failure.h"
#include "comm/comm/require.h"
#include "comm/engine/stats.h"
#include "comm/link/link.h"
#include "comm/message/protocol.h"
#include "comm/protocol/batch.h"
#include "comm/protocol/eager.h"
#include "comm/protocol/fragments.h"
#include "comm/protocol/staging_ring.h"
#include "cuda/word.h"

#define LOOKS 256 // looks at words until we ask the driver for errors
#define LOOKS_FOR_PEER 16

// A payload is offered where the peer can look into our segment. A send never
// waits for another to begin: where all slots are taken it goes as to other
// hosts.
bool
wm_offer_open(wm_end_t *end, const char **why)
{
    wm_header_t *header = &end->header;
    *why = NULL;
    if (end->slot != NULL)
        return true;
    if (!wm_buffer_on_device(&end->buffer))
        *why = "host memory";
    else if (wm_link_offers(end->peer, why)
             && (end->slot_index = wm_slot_acquire()) < 0)
        *why = "all slots are in use";
    if (*why != NULL)
        return false;
    end->slot = wm_node_slot(wm_node_self(), end->slot_index);
    wm_slot_begin(end->slot, &header->ready_base, &header->taken_base);
    header->kind = WM_MESSAGE_OFFER;
    header->slot = end->slot_index;
    header->fragment = header->nbytes;
    header->fragments = header->ring = 1;
    wm_fragments_set(end, NULL);
    return true;
}

bool
wm_offer_open_mapped(wm_end_t *end, const char **why)
{
    if (!wm_offer_open(end, why))
        return false;
    if (end->peer->self)
        *why = "the same process";
    else if (wm_link_is_asked(&wm_link_host))
        *why = "WARPMPI_TRANSPORT=host";
    return *why == NULL;
}

int
wm_offer_export(wm_end_t *end, char *into, const wm_pointer_t *memory,
                wm_error_t *err)
{
    int code = wm_node_register(wm_node_self(), false, end->access.device,
                                err);
    return code < 0 ? code
                    : wm_rkey_export(into, memory, &end->header.place, err);
}

const char *
wm_offer_note(wm_end_t *end, const wm_error_t *err)
{
    static char text[sizeof err->text]; // engine lock
    end->header.stage_only = err->code == WM_ERR_MEMORY
                                 ? WM_STAGE_NOW
                                 : WM_STAGE_UNEXPORTABLE;
    wm_error_cut(err->text, sizeof text, text);
    return text;
}

void
wm_offer_hand_off(wm_end_t *end, char *into)
{
    wm_fragments_set(end, into);
    wm_stat_add(WM_STAT_handed_off_bytes, (int64_t)end->header.nbytes);
}

bool
wm_offer_is_handed_off(const wm_end_t *end)
{
    return end->fragments.next == end->fragments.count && wm_end_is_quiet(end);
}

int
wm_offer_describe(wm_end_t *end, wm_stage_t stage, wm_error_t *err)
{
    wm_header_t *header = &end->header;
    const wm_device_t *device;
    int code = wm_device_describe(end->access.device, &device, err);
    if (code < 0)
        return code;
    header->device = device->ordinal;
    memcpy(header->uuid, &device->uuid, sizeof header->uuid);
    header->stage_only = stage;
    return 0;
}

void
wm_offer_posted(wm_end_t *end)
{
    wm_slot_set_posted(end->slot, end->fragments.ready_base + 1);
}

int
wm_offer_look(wm_end_t *end, wm_error_t *err)
{
    bool refused = atomic_load(&end->slot->answer) == WM_ANSWER_ERROR;
    int code = end->peer->dead || refused
                   ? wm_failure_look(end->op.comm, end->rank, err)
                   : 0;
    if (code < 0 || !refused)
        return code;
    return end->slot->error_code == WM_ERR_STAGING
               ? wm_require_hear("receiver", end->rank, end->slot->error, err)
               : wm_error_set(err, WM_ERR_CUDA, 0,
                              "the receiver, rank %d, failed: %.179s",
                              end->rank, end->slot->error);
}

// Lets the user's stream, which sends, go on when the receiver's stream has
// taken the data. That stream may wait for a held send of ours before.
static int
follow_receiver(wm_end_t *end, wm_error_t *err)
{
    int device = end->access.user_device;
    wm_batch_flush_posts(device, end->access.user_stream);
    int code = wm_node_register(wm_node_self(), false, device, err);
    if (code == 0)
        code = wm_word_wait(device, end->access.user_stream, &end->slot->taken,
                            end->fragments.taken_base + 1, err);
    return code < 0 ? code : wm_end_leave_stream(end, err);
}

int
wm_offer_ended(wm_end_t *end, bool pushed, wm_error_t *err)
{
    int code = 0;
    bool ready = wm_end_is_quiet(end);
    if (ready && wm_fragments_are_taken(end)) {
        end->access.idle |= pushed; // of our own copy nothing is pending
        end->peer->copied = !pushed;
        return 1;
    }
    if (++end->looks % LOOKS == 0 && (!ready || pushed))
        code = wm_event_look_for_errors(end->access.device, err);
    if (code == 0 && end->looks % LOOKS_FOR_PEER == 0)
        code = wm_failure_look(end->op.comm, end->rank, err);
    return code;
}

void
wm_offer_become(wm_end_t *end, const wm_sending_t *row, const char *why)
{
    wm_route_t route;
    wm_route_begin(&route);
    wm_route_decline(&route, end->sending->name, why);
    wm_send_become(end, row);
    wm_end_route(end, &route, row->name);
}

int
wm_offer_begin_step(wm_end_t *end, wm_error_t *err)
{
    int code = wm_offer_look(end, err);
    return code < 0 ? code : wm_eager_step(end, err);
}

int
wm_offer_end_step(wm_end_t *end, wm_error_t *err)
{
    int code = 0;
    if (atomic_load(&end->slot->answer) == WM_ANSWER_HOST)
        code = wm_staging_ring_begin(end, err);
    if (code != 0)
        return code < 0 ? code : end->sending->step(end, err);
    if (atomic_load(&end->slot->submitted) == end->fragments.taken_base + 1
        && end->access.user_device >= 0 && !atomic_load(&end->op.done)
        && end->fragments.count == 1 && (code = follow_receiver(end, err)) < 0)
        return code;
    return wm_offer_ended(end, false, err);
}

int
wm_offer_step(wm_end_t *end, wm_error_t *err)
{
    int code = wm_offer_begin_step(end, err);
    return code < 0 ? code : wm_offer_end_step(end, err);
}

// Returns true if the message comes in spite of the failure: it was posted,
// and the receiver's stream may wait for it already.
static bool
is_on_its_way(const wm_end_t *end)
{
    const wm_fragments_t *fragments = &end->fragments;
    return atomic_load(&end->slot->claim) != WM_CLAIM_WITHDRAWN
           && fragments->count == 1
           && wm_word_reached(&end->slot->posted, fragments->ready_base + 1)
           && (wm_fragment_is_ready(end, 0)
               || wm_event_look_for_errors(end->access.device, NULL) == 0);
}

static void
offer_end_waits(wm_end_t *end)
{
    if (atomic_load(&end->slot->answer) == WM_ANSWER_ERROR)
        wm_offer_peer_died(end); // our user's stream may wait for it
}

bool
wm_offer_fail(wm_end_t *end)
{
    wm_slot_fail(end->slot, end->op.error.text);
    offer_end_waits(end);
    return false;
}

bool
wm_offer_fail_posted(wm_end_t *end)
{
    if (!is_on_its_way(end))
        return wm_offer_fail(end);
    offer_end_waits(end);
    return true;
}

bool
wm_offer_fail_handed_off(wm_end_t *end)
{
    (void)wm_offer_fail_posted(end);
    return false;
}

void
wm_offer_peer_died(wm_end_t *end)
{
    wm_slot_set_taken(end->slot,
                      end->fragments.taken_base + end->fragments.count);
}

// The slot is not used again, as the receiver may still look at it.
bool
wm_offer_is_abandoned(wm_end_t *end)
{
    if (++end->looks % LOOKS_FOR_PEER != 0
        || wm_failure_look(end->op.comm, end->rank, NULL) == 0)
        return false;
    bool abandoned = end->peer->dead;
    if (!abandoned) {
        wm_slot_fail(end->slot, end->op.error.text);
        abandoned = wm_slot_take_back(end->slot);
    }
    if (end->peer->dead)
        wm_offer_peer_died(end);
    if (abandoned)
        end->slot_index = -1;
    return abandoned;
}

bool
wm_offer_heard(wm_end_t *end)
{
    if (wm_offer_is_abandoned(end))
        return true;
    uint32_t answer = atomic_load(&end->slot->answer);
    bool lost = end->looks % LOOKS == 0 && !wm_end_is_quiet(end)
                && wm_event_look_for_errors(end->access.device, NULL) < 0;
    // The receiver waits for data that will not come.
    if ((answer == WM_ANSWER_HOST || lost) && !atomic_load(&end->slot->failed))
        wm_slot_fail(end->slot, end->op.error.text);
    return answer == WM_ANSWER_ERROR || wm_fragments_are_taken(end);
}

// SPDX-License-Identifier: BSD-3-Clause
#include "comm/protocol/take.h"

#include <stdio.h>
#include <string.h>

#include "array/eager_ll.h"
#include "comm/comm/failure.h"
#include "comm/comm/require.h"
#include "comm/engine/engine.h"
#include "comm/link/link.h"
#include "comm/message/pack.h"
#include "comm/node/mapping.h"
#include "comm/protocol/eager.h"
#include "comm/protocol/fragments.h"
#include "comm/protocol/rows.h"
#include "comm/protocol/staging_ring.h"

#define BESIDE_BYTES ((uint64_t)4 << 20)
#define LOOKS_FOR_PEER 16 // looks at words until we ask if the peer lives
#define PATIENCE_US 10000

bool
wm_take_is_on_same_gpu(const wm_end_t *end)
{
    const wm_device_t *device;
    return wm_device_describe(end->access.device, &device, NULL) < 0
           || memcmp(&device->uuid, end->header.uuid, sizeof end->header.uuid)
                  == 0;
}

// Returns true for one fragment that is the message, or a ring of several.
static bool
is_sound_offer(const wm_header_t *header)
{
    uint64_t nbytes = header->nbytes, fragment = header->fragment;
    if (nbytes == 0 || (header->flag != 0 && nbytes > WM_EAGER_LL_BYTES))
        return false;
    if (header->fragments == 1)
        return header->ring == 1 && fragment == nbytes && !header->ramped;
    return header->ramped && header->flag == 0 && header->ring > 0
           && header->ring <= header->fragments && fragment >= 4
           && fragment < nbytes && nbytes / fragment < INT32_MAX
           && header->fragments == wm_fragments_count_ramped(nbytes, fragment);
}

static bool
take_check(wm_end_t *end)
{
    end->slot = wm_node_slot(end->peer, end->header.slot);
    return end->slot != NULL && is_sound_offer(&end->header);
}

// Returns true if another process, as far as we have seen, receives long
// messages on this GPU, too: kernels of two processes take turns, copies do
// not.
static bool
is_shared(int device)
{
    const wm_device_t *facts;
    uint64_t gpu;
    if (wm_device_describe(device, &facts, NULL) < 0)
        return true;
    memcpy(&gpu, &facts->uuid, sizeof gpu);
    return wm_node_takes_on(gpu);
}

bool
wm_take_is_beside(const wm_end_t *end)
{
    if (end->header.nbytes < BESIDE_BYTES || wm_take_is_on_same_gpu(end)
        || is_shared(end->access.device))
        return false;
    for (wm_op_t *op = wm_engine_first(); op != NULL; op = op->next) {
        const wm_end_t *other = (wm_end_t *)op;
        if (wm_end_is_receive(op) && other->link != NULL
            && other->link->import != NULL && other->peer != end->peer
            && !other->peer->self && !wm_take_is_on_same_gpu(other)
            && other->header.nbytes >= BESIDE_BYTES
            && other->buffer.memory.device == end->buffer.memory.device)
            return true;
    }
    return false;
}

static const wm_link_t *
choose(wm_end_t *end)
{
    if (end->peer->self)
        return &wm_link_self;
    if (end->header.stage_only == WM_STAGE_UNEXPORTABLE)
        wm_peer_refuse(end->peer, WM_LINK_ipc,
                       "CUDA IPC could not export the peer's GPU memory");
    if (end->header.stage_only)
        return &wm_link_host;
    return wm_link_for_offer(end->peer, &end->buffer.memory);
}

// The time when it was left to a thread of the program.
WM_STATE(int64_t, left_since, first_state)

// Returns true if the progress thread leaves it to a thread of the program,
// which may close mappings that are in the way, and usually comes soon.
static bool
is_left_to_program(wm_end_t *end)
{
    if (!wm_engine_is_background() || !wm_mapping_is_closing_wanted())
        return false;
    int64_t now = wm_engine_now(), *since = left_since(end);
    if (*since == 0)
        *since = now;
    return now - *since < PATIENCE_US || wm_require_is_on(end->op.comm);
}

// Returns true if this process does not see the sender's GPU.
static bool
is_hidden(const wm_end_t *end)
{
    const wm_device_t *device;
    bool hidden = true;
    for (int i = 0; i < wm_device_count() && hidden; ++i)
        hidden = wm_device_describe(i, &device, NULL) < 0
                 || memcmp(&device->uuid, end->header.uuid,
                           sizeof end->header.uuid)
                        != 0;
    return hidden;
}

// Returns the error of a receive that cannot reach the sender's memory.
static int
refuse_to_stage(const wm_end_t *end, wm_error_t *err)
{
    const char *why = "";
    const char *cure = "see wm.transport() and `python -m warpmpi doctor`";
    (void)wm_link_tell(end->peer, &end->buffer.memory, &why);
    if (!wm_buffer_on_device(&end->buffer)) {
        why = "the receive buffer is host memory";
        cure = "receive into a GPU array, or send a copy in host memory";
    }
    else if (end->header.stage_only == WM_STAGE_FORCED
             || wm_link_is_asked(&wm_link_host)) {
        why = "WARPMPI_TRANSPORT=host";
        cure = "unset it";
    }
    else if (end->header.stage_only == WM_STAGE_NOW)
        why = "a GPU is short of memory";
    else if (is_hidden(end)) {
        why = "this process does not see the sender's GPU";
        cure = "no srun --gpus-per-task, no CUDA_VISIBLE_DEVICES for a rank";
    }
    return wm_require_refuse(why, cure, err);
}

// Maps the memory that is offered, or has the sender stage it. Returns 0 if
// the fragments can be taken; 1 if it must be called again; or an error.
static int
reach_fragments(wm_end_t *end, wm_error_t *err)
{
    const wm_header_t *header = &end->header;
    bool device = wm_buffer_on_device(&end->buffer);
    if (end->link->import == NULL)
        return wm_require_is_on(end->op.comm)
                   ? refuse_to_stage(end, err)
                   : wm_staging_ring_accept(end, err);
    if (!device)
        end->access.device = header->device;
    uint64_t nbytes = header->flag != 0 ? WM_EAGER_LL_BUFFER_BYTES
                                        : header->fragment * header->ring;
    if (!end->peer->self && !wm_rkey_holds(&header->place, nbytes))
        return wm_error_set(err, WM_ERR_STATE, 0,
                            "the header of the message names bytes outside "
                            "the sender's memory");
    char *at;
    int code = end->link->import(end->peer, &header->place, header->device,
                                 device ? end->buffer.memory.device
                                        : end->access.device,
                                 &end->mapping, &at, err);
    if (code == 0)
        wm_fragments_set(end, at);
    return code;
}

// Makes the offered memory reachable. Returns 1 when it is, 0 if not yet.
static int
take_reach(wm_end_t *end, wm_error_t *err)
{
    int code = reach_fragments(end, err);
    if (code < 0 && is_left_to_program(end))
        return 0;
    if (code < 0 && end->link != &wm_link_host) {
        end->link = &wm_link_host;
        code = reach_fragments(end, err);
    }
    if (code != 0)
        return code < 0 ? code : 0;
    wm_link_count(end->link, end->header.nbytes,
                  end->link->import == NULL
                      && wm_buffer_on_device(&end->buffer));
    return 1;
}

static void
tell_route(const wm_end_t *end, const wm_route_t *route)
{
    char row[64];
    if (!route->wanted)
        return;
    snprintf(row, sizeof row, "%s by %s", end->receiving->name,
             end->link->name);
    wm_end_route(end, route, row);
}

// Gives the offer to a row that takes it.
static int
take_by(wm_end_t *end, const wm_receiving_t *row, const wm_route_t *route,
        wm_error_t *err)
{
    wm_receive_become(end, row);
    tell_route(end, route);
    bool gaps = end->buffer.pattern != NULL;
    bool unpacks = gaps && row->unpacks != NULL && row->unpacks(end);
    int code = gaps ? wm_unpack_reserve(end, unpacks, err) : 0;
    return code < 0 ? code : 1;
}

// Gives the offer to the first row that accepts it. Returns 1 when one has, 0
// if the memory cannot be reached yet.
static int
take_choose(wm_end_t *end, wm_error_t *err)
{
    wm_route_t route;
    bool reached = false;
    const wm_receiving_t *const *row = wm_protocols.receiving;
    wm_route_begin(&route);
    for (;; ++row) {
        const char *why = "";
        if ((*row)->accept == NULL)
            continue;
        if ((*row)->reads && !reached) {
            int code = take_reach(end, err);
            if (code <= 0)
                return code;
            reached = true;
        }
        if ((*row)->accept(end, &why))
            return take_by(end, *row, &route, err);
        wm_route_decline(&route, (*row)->name, why);
    }
}

static int
take_step(wm_end_t *end, wm_error_t *err)
{
    // Claims first: work on a user's stream cannot be taken back.
    wm_eager_claim(end);
    int code = atomic_load(&end->slot->failed) ? 0 : take_choose(end, err);
    return code <= 0 ? wm_take_watch(end, code, err)
                     : end->receiving->step(end, err);
}

static int
take_match(wm_end_t *end, bool refused, wm_error_t *err)
{
    if (refused) { // the sender completes; nothing is taken
        wm_slot_set_taken(end->slot,
                          end->header.taken_base + end->header.fragments);
        return 1;
    }
    int code = end->buffer.pattern != NULL ? wm_unpack_match(end, err) : 0;
    end->link = choose(end);
    return code < 0 ? code : take_step(end, err);
}

// Returns true if the slot is still this message's. When all fragments are
// taken, the sender may give it to another.
static bool
holds_slot(const wm_end_t *end)
{
    return end->slot != NULL
           && (end->fragments.count == 0 || !wm_fragments_are_taken(end));
}

bool
wm_take_has_lost(wm_end_t *end, wm_error_t *err)
{
    return ++end->looks % LOOKS_FOR_PEER == 0
           && wm_failure_look(end->op.comm, end->op.result.source, err) < 0;
}

// If the sender is dead, as another message has found out, we have set
// `failed`, and there is no text.
int
wm_take_sender_failed(wm_end_t *end, wm_error_t *err)
{
    if (!atomic_load(&end->slot->failed) || !holds_slot(end))
        return 0;
    int code = end->peer->dead
                   ? wm_failure_look(end->op.comm, end->op.result.source, err)
                   : 0;
    return code < 0 ? code
                    : wm_error_set(err, WM_ERR_CUDA, 0,
                                   "the sender, rank %d, failed: %.179s",
                                   end->op.result.source, end->slot->error);
}

int
wm_take_watch(wm_end_t *end, int code, wm_error_t *err)
{
    if (code != 0)
        return code;
    return wm_take_has_lost(end, err) ? WM_ERR_MPI
                                      : wm_take_sender_failed(end, err);
}

int
wm_take_stop(wm_end_t *end)
{
    const wm_access_t *access = &end->access;
    return access->opened
               ? wm_stream_synchronize(access->device, access->stream, NULL)
               : 0;
}

void
wm_take_answer(wm_end_t *end, const wm_error_t *err)
{
    if (holds_slot(end))
        wm_slot_answer_error(end->slot, err->code, wm_require_told(err));
}

bool
wm_take_fail(wm_end_t *end, const wm_error_t *err)
{
    (void)wm_take_stop(end);
    wm_take_answer(end, err);
    return false;
}

void
wm_take_peer_died(wm_end_t *end)
{
    wm_slot_fail_for_sender(end->slot);
}

bool
wm_take_is_mapped_whole(const wm_end_t *end)
{
    return end->link->import != NULL && end->fragments.count == 1
           && (!end->peer->self || end->header.device == end->access.device);
}

const wm_receiving_t wm_receiving_offer = {
    .name = "offer",
    .kind = WM_MESSAGE_OFFER,
    .check = take_check,
    .match = take_match,
    .step = take_step,
    .fail = wm_take_fail,
    .peer_died = wm_take_peer_died,
};

// SPDX-License-Identifier: BSD-3-Clause
#include "comm/protocol/eager.h"

#include "comm/comm/require.h"
#include "comm/engine/engine.h"
#include "comm/engine/modules.h"
#include "comm/engine/stats.h"
#include "comm/link/link.h"
#include "comm/message/protocol.h"
#include "comm/protocol/fragments.h"
#include "cuda/settings.h"

#define PATIENCE_US 10              // a waiting receiver claims sooner
#define PATIENCE_WITH_PARTS_US 1000 // one that unpickles and allocates, too
#define MORE_PATIENCE_US 10000      // until memory may be free again

static size_t limit;

// The copy with which a blocking send need not wait.
typedef struct {
    wm_block_t *block; // on the buffer's device; NULL: see `host`
    void *host;        // page-locked, if the device had no memory
    CUstream stream;
    bool unmoved;  // the offer stays where it is
    int64_t since; // time when the offer began to wait, microseconds
} copy_t;

WM_STATE(copy_t, copy_of, first_state)

static int
eager_configure(wm_error_t *err)
{
    return wm_setting_bytes(WM_SETTING_EAGER_LIMIT, &limit, err);
}

// Nobody may be in our code until the receiver comes, so the progress thread
// must not sleep without an end.
void
wm_eager_report(wm_end_t *end)
{
    wm_op_complete(&end->op);
    wm_engine_notify();
}

static bool
copy_is_begun(const wm_end_t *end)
{
    return copy_of(end)->block != NULL || copy_of(end)->host != NULL;
}

static void *
copy_pointer(const wm_end_t *end)
{
    return copy_of(end)->block != NULL ? wm_block_pointer(copy_of(end)->block)
                                       : copy_of(end)->host;
}

// Takes memory for the copy, of the device or else of the host. Without any, a
// short message tries again later; an embedded array fails, as its receiver
// may wait in a send, too.
static int
take_memory(wm_end_t *end, wm_error_t *err)
{
    size_t nbytes = end->buffer.nbytes;
    if (wm_block_alloc(end->access.device, nbytes, &copy_of(end)->block, err)
        == 0)
        return 0;
    if (wm_pinned_alloc(nbytes, &copy_of(end)->host, NULL) == 0) {
        wm_stat_add(WM_STAT_staged_bytes, (int64_t)nbytes);
        return 0;
    }
    copy_of(end)->since += MORE_PATIENCE_US;
    if (!end->eager)
        return 0;
    // The receiver must find `failed` when it claims in vain.
    wm_slot_fail(end->slot, err->text);
    (void)wm_slot_take_back(end->slot);
    return err->code;
}

// Begins the copy. If anything fails but for memory, the sender waits: a
// receiver may be taking the buffer at this moment.
static int
begin_copy(wm_end_t *end, wm_error_t *err)
{
    int device = end->access.device;
    int code = take_memory(end, err);
    if (code < 0 || !copy_is_begun(end))
        return code;
    copy_of(end)->unmoved =
        wm_stream_acquire(device, &copy_of(end)->stream, NULL) < 0
        || wm_producer_before(&end->access.producer, false, device,
                              copy_of(end)->stream, NULL)
               < 0
        || wm_memory_copy(device, copy_pointer(end), end->buffer.data,
                          end->buffer.nbytes, copy_of(end)->stream, NULL)
               < 0;
    return 0;
}

// Moves the offer to the finished copy, unless it was claimed. Memory of the
// host has the size 0: the receiver asks to stage it.
static void
publish(wm_end_t *end)
{
    wm_pointer_t memory = {.kind = WM_MEMORY_PINNED, .device = -1};
    wm_rkey_t place = {0};
    copy_of(end)->unmoved = true;
    if (copy_of(end)->block != NULL)
        wm_block_describe(copy_of(end)->block, &memory);
    char *copy = copy_pointer(end);
    if (end->header.stage_only != WM_STAGE_NOT || end->peer->self
        || copy_of(end)->host != NULL)
        wm_rkey_set(copy, &memory, &place);
    else if (wm_rkey_export(copy, &memory, &place, NULL) < 0)
        return;
    if (!wm_slot_move(end->slot, &place))
        return;
    end->buffer.data = copy;
    end->buffer.memory = memory;
    end->access.producer = (wm_producer_t){0};
    end->buffer.order = NULL;
    if (copy_of(end)->block != NULL)
        wm_stat_add(WM_STAT_handed_off_bytes, (int64_t)end->header.nbytes);
    wm_eager_report(end);
}

int
wm_eager_report_copied(wm_end_t *end, wm_error_t *err)
{
    bool ended;
    if (copy_of(end)->unmoved
        || atomic_load(&end->slot->claim) != WM_CLAIM_NONE)
        return 0;
    if (!copy_is_begun(end)) {
        int64_t now = wm_engine_now();
        if (copy_of(end)->since == 0)
            copy_of(end)->since = now;
        if (now - copy_of(end)->since
            >= (end->eager ? PATIENCE_WITH_PARTS_US : PATIENCE_US))
            return begin_copy(end, err);
    }
    else if (wm_stream_spin(end->access.device, copy_of(end)->stream, 1,
                            &ended, NULL)
             < 0)
        copy_of(end)->unmoved = true;
    else if (ended) {
        wm_stream_release_idle(end->access.device, copy_of(end)->stream);
        copy_of(end)->stream = NULL;
        publish(end);
    }
    return 0;
}

static bool
is_eager(const wm_end_t *end)
{
    return !end->synchronous && (end->buffer.nbytes <= limit || end->eager)
           && !wm_require_is_on(end->op.comm);
}

bool
wm_eager_applies(const wm_end_t *end)
{
    return end->blocking && end->access.user_device < 0 && is_eager(end);
}

bool
wm_eager_copies(const wm_end_t *end)
{
    return end->access.user_device >= 0 && wm_buffer_on_device(&end->buffer)
           && is_eager(end);
}

int
wm_eager_step(wm_end_t *end, wm_error_t *err)
{
    if (!wm_eager_applies(end) || atomic_load(&end->op.done)
        || atomic_load(&end->slot->answer) != WM_ANSWER_NONE)
        return 0;
    const wm_sending_t *row = end->around != NULL ? end->around : end->sending;
    return row->report_early(end, err);
}

void
wm_eager_claim(wm_end_t *end)
{
    if (!wm_slot_claim(end->slot, &end->header.place))
        return;
    end->header.pushes = 0; // its sender has gone on
    if (end->header.place.size == 0 && !end->peer->self)
        end->link = &wm_link_host;
}

void
wm_eager_drop(wm_end_t *end)
{
    CUevent event;
    int device = end->access.device, count = 0;
    if (!copy_is_begun(end))
        return;
    if (copy_of(end)->stream != NULL && copy_of(end)->block != NULL
        && wm_event_acquire(device, &event, NULL) == 0) {
        count = 1;
        if (wm_event_record(device, event, copy_of(end)->stream, NULL) < 0) {
            wm_event_release(device, event);
            count = 0;
        }
    }
    // Without an event, we wait.
    if (copy_of(end)->stream != NULL && count == 0)
        (void)!wm_stream_synchronize(device, copy_of(end)->stream, NULL);
    if (copy_of(end)->block != NULL)
        wm_block_free(copy_of(end)->block, count, &event, &device);
    else
        wm_pinned_free(copy_of(end)->host);
    if (copy_of(end)->stream != NULL)
        wm_stream_release(device, copy_of(end)->stream);
    copy_of(end)->block = NULL;
    copy_of(end)->host = NULL;
    copy_of(end)->stream = NULL;
}

const wm_module_t wm_eager_module = {.configure = eager_configure};

// SPDX-License-Identifier: BSD-3-Clause
// Pulling pieces out of a ring, and feeding one: the sender writes piece i
// and then `ready`, the receiver takes it and then writes `taken`, which
// frees its place in the ring. A plain offer is a ring of one piece.
#include "comm/way/pieces.h"

#include <string.h>

#include "comm/message/pack.h"
#include "comm/way/batch.h"
#include "comm/way/offer.h"
#include "comm/way/transport.h"
#include "cuda/word.h"

#define SYNC_BYTES 262144
// How long a kernel waits for data that were announced, microseconds.
#define PATIENCE_US 100
#define LOOKS 256 // at words, before the driver is asked for errors

uint32_t
wm_pieces_count_ramped(uint64_t nbytes, uint64_t piece)
{
    uint64_t short_ones = piece / 4 + piece / 2;
    return (uint32_t)(2 + (nbytes - short_ones + piece - 1) / piece);
}

// Where in the message a piece begins. The first ones of a ring are shorter:
// nothing can be taken before they are in it.
static uint64_t
piece_start(const wm_pieces_t *pieces, uint32_t index)
{
    uint64_t piece = pieces->piece;
    if (!pieces->ramped)
        return index * piece;
    return index == 0   ? 0
           : index == 1 ? piece / 4
                        : piece / 4 + piece / 2 + (index - 2) * piece;
}

static uint64_t
piece_length(const wm_end_t *end, uint32_t index)
{
    uint64_t until = piece_start(&end->pieces, index + 1);
    return (until < end->header.nbytes ? until : end->header.nbytes)
           - piece_start(&end->pieces, index);
}

bool
wm_pieces_are_boxed(const wm_end_t *end)
{
    return end->header.flag != 0 && end->transport == &wm_transport_ipc;
}

bool
wm_pieces_on_same_gpu(const wm_end_t *end)
{
    const wm_device_t *device;
    return wm_device_describe(end->access.device, &device, NULL) < 0
           || memcmp(&device->uuid, end->header.uuid, sizeof end->header.uuid)
                  == 0;
}

// Whether the kernel that takes them should be there before them. Not on the
// sender's own device: where processes take turns on it, one would wait
// through its turn for the other.
static bool
may_wait_in_kernel(const wm_end_t *end)
{
    return !end->late && !wm_pieces_on_same_gpu(end);
}

// A user's stream is not given what waits for a sender who may yet fail.
static bool
is_posted(const wm_end_t *end)
{
    return wm_word_reached(&end->slot->posted, end->pieces.ready_base + 1);
}

static _Atomic uint32_t *
status_of(const wm_end_t *end)
{
    return (_Atomic uint32_t *)(end->packet + WM_PACKET_BYTES);
}

static wm_mail_t
mail_of(const wm_end_t *end)
{
    return (wm_mail_t){
        .box = end->pieces.remote,
        .user = end->buffer.data,
        .strided = wm_pack_by_mail(end),
        .nbytes = end->header.nbytes,
        .flag = end->header.flag,
        .word = &end->slot->taken,
        .value = end->pieces.taken_base + 1,
    };
}

// The user's stream has been given what takes the data.
static int
submitted(wm_end_t *end, wm_error_t *err)
{
    // Ours, where the user may destroy the stream.
    int code = wm_event_record(end->access.user_device, end->event,
                               end->access.user_stream, err);
    if (code == 0 && end->buffer.order != NULL)
        code = wm_order_after_write(end->buffer.order, end->access.user_device,
                                    end->access.user_stream, err);
    if (code < 0)
        return code;
    end->recorded = true;
    wm_slot_set_submitted(end->slot, end->pieces.taken_base + 1);
    wm_op_complete(&end->op);
    return 0;
}

// A batch tells how launching a kernel went; the next step raises.
static void
tell_failure(wm_end_t *end, const wm_error_t *failure)
{
    wm_op_fail(&end->op, failure);
    atomic_store(status_of(end), WM_MAIL_FAILED);
}

static void
fetch_launched(wm_end_t *end, const wm_error_t *failure)
{
    if (failure != NULL)
        tell_failure(end, failure);
}

static void
fetch_on_stream_launched(wm_end_t *end, const wm_error_t *failure)
{
    wm_error_t err;
    if (failure != NULL)
        tell_failure(end, failure);
    else if ((!wm_unpack_is_direct(end)
              && wm_unpack_enqueue(end, end->buffer.data,
                                   end->access.user_device,
                                   end->access.user_stream, &err)
                     < 0)
             || submitted(end, &err) < 0)
        tell_failure(end, &err);
}

static int
fetch_on_stream(wm_end_t *end, wm_error_t *err)
{
    int device = end->access.user_device;
    int code = wm_mail_prepare(device, err);
    // A stream that waits for a word takes longer than a kernel that does.
    if (code == 0 && !may_wait_in_kernel(end))
        code = wm_word_wait(device, end->access.user_stream, &end->slot->ready,
                            end->pieces.ready_base + 1, err);
    if (code < 0)
        return code;
    wm_mail_t mail = mail_of(end);
    mail.stop = &end->slot->failed;
    wm_batch_add(&(wm_batch_t){.device = device,
                               .stream = end->access.user_stream,
                               .patience_us = WM_MAIL_FOR_EVER},
                 &mail, end, fetch_on_stream_launched);
    return 0;
}

static int
copy_on_stream(wm_end_t *end, wm_error_t *err)
{
    int device = end->access.user_device;
    CUstream stream = end->access.user_stream;
    int code = wm_word_wait(device, stream, &end->slot->ready,
                            end->pieces.ready_base + 1, err);
    bool direct = wm_unpack_is_direct(end);
    const char *from = direct ? end->pieces.remote : end->buffer.data;
    if (code == 0 && !direct)
        code = wm_memory_copy(device, end->buffer.data, end->pieces.remote,
                              end->header.nbytes, stream, err);
    if (code == 0)
        code = wm_unpack_enqueue(end, from, device, stream, err);
    if (code == 0)
        code = wm_slot_enqueue_taken(end->slot, device, stream,
                                     end->pieces.taken_base + 1, err);
    return code < 0 ? code : submitted(end, err);
}

// The user's stream takes the piece: nothing is waited for here.
static int
pull_on_stream(wm_end_t *end, wm_error_t *err)
{
    int device = end->access.user_device;
    atomic_store(status_of(end), 0);
    end->on_stream = true;
    end->pieces.next = 1;
    int code = wm_event_acquire(device, &end->event, err);
    if (code == 0)
        code = wm_node_register(end->peer, false, device, err);
    if (code == 0)
        code = wm_producer_before(&end->access.producer, true, device,
                                  end->access.user_stream, err);
    if (code == 0)
        code = wm_pieces_are_boxed(end) ? fetch_on_stream(end, err)
                                        : copy_on_stream(end, err);
    return code;
}

// Words tell the end for nothing, but no errors: now and then the driver is
// asked for those.
static int
look_for_errors(wm_end_t *end, wm_error_t *err)
{
    bool unused;
    if (++end->asks % LOOKS != 0)
        return 0;
    if (!end->on_stream)
        return wm_stream_spin(end->access.device, end->access.stream, 1,
                              &unused, err);
    // The caller has gone on: only what is lost for good is to be told.
    int code = wm_event_done(end->access.user_device, end->event, &unused,
                             err);
    return code < 0
                   && wm_event_look_for_errors(end->access.user_device, NULL)
                          < 0
               ? code
               : 0;
}

static int
pull_on_stream_ended(wm_end_t *end, wm_error_t *err)
{
    if (atomic_load(status_of(end)) == WM_MAIL_FAILED) {
        *err = end->op.error;
        return err->code;
    }
    return wm_word_reached(&end->slot->taken, end->pieces.taken_base + 1)
               ? 1
               : look_for_errors(end, err);
}

// Pieces are copied by this thread: host memory to host memory.
static int
pull_on_host(wm_end_t *end)
{
    wm_pieces_t *pieces = &end->pieces;
    while (pieces->next < pieces->pieces
           && wm_word_reached(&end->slot->ready,
                              pieces->ready_base + pieces->next + 1)) {
        uint32_t at = pieces->next++;
        memcpy(end->buffer.data + piece_start(pieces, at),
               pieces->remote + at % pieces->ring * pieces->piece,
               piece_length(end, at));
        wm_slot_set_taken(end->slot, pieces->taken_base + pieces->next);
    }
    return pieces->next == pieces->pieces;
}

static int
fetch(wm_end_t *end, wm_error_t *err)
{
    int code = wm_end_open_stream(end, err);
    if (code == 0)
        code = wm_node_register(end->peer, false, end->access.device, err);
    if (code < 0)
        return code;
    wm_mail_t mail = mail_of(end);
    mail.status = status_of(end);
    atomic_store(mail.status, 0);
    end->fetching = true;
    end->access.idle = false;
    end->pieces.next = 1;
    wm_batch_add(&(wm_batch_t){.device = end->access.device,
                               .stream = end->access.stream,
                               .patience_us = PATIENCE_US},
                 &mail, end, fetch_launched);
    return 0;
}

// 1 when the data are there; they may be late, and are then waited for by the
// host.
static int
fetch_ended(wm_end_t *end, wm_error_t *err)
{
    switch (atomic_load(status_of(end))) {
    case WM_MAIL_TAKEN:
        return 1;
    case WM_MAIL_LATE:
        end->fetching = false;
        end->late = true;
        end->pieces.next = 0;
        return 0;
    case WM_MAIL_FAILED:
        *err = end->op.error;
        return err->code;
    default:
        return look_for_errors(end, err);
    }
}

static int
pull_box(wm_end_t *end, wm_error_t *err)
{
    if (end->fetching) {
        int code = fetch_ended(end, err);
        end->access.idle = code > 0;
        return code;
    }
    bool ready = wm_word_reached(&end->slot->ready,
                                 end->pieces.ready_base + 1);
    return ready || may_wait_in_kernel(end) ? fetch(end, err) : 0;
}

// Pieces take turns on two streams, so that one is on its way while the
// other's words are written; the last is on end->access.stream, behind all
// others.
static int
stream_of_piece(wm_end_t *end, uint32_t at, CUstream *stream, CUstream *other,
                wm_error_t *err)
{
    int code = 0;
    *stream = end->access.stream;
    *other = NULL;
    if (end->pieces.pieces == 1)
        return 0;
    if (end->side == NULL) {
        code = wm_stream_acquire(end->access.device, &end->side, err);
        if (code == 0)
            code = wm_stream_follow(end->access.device, end->side,
                                    end->access.device, end->access.stream,
                                    err);
    }
    bool aside = (end->pieces.pieces - 1 - at) % 2 == 1;
    *stream = aside ? end->side : end->access.stream;
    *other = aside ? end->access.stream : end->side;
    return code;
}

static int
copy_piece(wm_end_t *end, uint32_t at, CUstream stream, wm_error_t *err)
{
    const wm_pieces_t *pieces = &end->pieces;
    if (wm_unpack_is_direct(end))
        return wm_unpack_enqueue(end, pieces->remote, end->access.device,
                                 stream, err);
    return wm_memory_copy(end->access.device,
                          end->buffer.data + piece_start(pieces, at),
                          pieces->remote + at % pieces->ring * pieces->piece,
                          piece_length(end, at), stream, err);
}

static int
submit_piece(wm_end_t *end, wm_error_t *err)
{
    wm_pieces_t *pieces = &end->pieces;
    uint32_t at = pieces->next++;
    bool last = at + 1 == pieces->pieces;
    CUstream stream, other;
    int code = wm_end_open_stream(end, err);
    end->signals = last && !end->blocking;
    if (code == 0 && (!last || end->signals))
        code = wm_node_register(end->peer, false, end->access.device, err);
    end->access.idle = false;
    if (code == 0)
        code = stream_of_piece(end, at, &stream, &other, err);
    if (code == 0)
        code = copy_piece(end, at, stream, err);
    // The words tell of all pieces up to one.
    if (code == 0 && other != NULL)
        code = wm_stream_follow(end->access.device, stream, end->access.device,
                                other, err);
    // What came packed goes to its places behind the last one.
    if (code == 0 && last && !wm_unpack_is_direct(end))
        code = wm_unpack_enqueue(end, end->buffer.data, end->access.device,
                                 stream, err);
    if (code == 0 && (!last || end->signals))
        code = wm_slot_enqueue_taken(end->slot, end->access.device, stream,
                                     pieces->taken_base + at + 1, err);
    return code;
}

// Short copies that are ready together share a kernel: an engine and a stream
// of its own take each of them longer than its bytes do.
static bool
may_share(const wm_end_t *end)
{
    return !end->blocking && !end->alone && end->access.user_device < 0
           && end->buffer.pattern == NULL && end->pieces.pieces == 1
           && end->pieces.next == 0 && end->header.nbytes <= WM_MAIL_BYTES
           && end->transport->direct && wm_buffer_on_device(&end->buffer)
           && end->buffer.memory.device == end->access.device
           && (!end->peer->self || end->header.device == end->access.device)
           && (wm_access_is_noted(&end->access)
               || end->access.producer.kind == WM_PRODUCER_NONE);
}

static void
pull_launched(wm_end_t *end, const wm_error_t *failure)
{
    if (failure != NULL)
        tell_failure(end, failure);
}

// At the next step.
static void
pull_alone(wm_end_t *end)
{
    end->batched = false;
    end->alone = true;
    end->pieces.next = 0;
}

static int
share(wm_end_t *end, wm_error_t *err)
{
    int code = wm_pull_prepare(end->access.device, err);
    if (code == 0)
        code = wm_node_register(end->peer, false, end->access.device, err);
    if (code < 0)
        return code;
    atomic_store(status_of(end), 0);
    end->batched = end->signals = true;
    end->access.idle = false;
    end->pieces.next = 1;
    wm_batch_add_pull(&(wm_pull_t){.dst = end->buffer.data,
                                   .src = end->pieces.remote,
                                   .nbytes = end->header.nbytes,
                                   .taken = (uint32_t *)&end->slot->taken,
                                   .taken_value = end->pieces.taken_base + 1},
                      end, pull_launched, pull_alone);
    return 0;
}

// Whether all that was submitted has ended.
static int
pull_ended(wm_end_t *end, bool *ended, wm_error_t *err)
{
    if (end->signals) {
        *ended = wm_word_reached(&end->slot->taken,
                                 end->pieces.taken_base + end->pieces.pieces);
        return *ended ? 0 : look_for_errors(end, err);
    }
    if (!end->blocking || end->header.nbytes > SYNC_BYTES)
        return wm_stream_spin(end->access.device, end->access.stream, 2, ended,
                              err);
    // A small copy ends within microseconds, and a query alone takes one: a
    // caller that waits does so in the driver, without the lock.
    *ended = atomic_load(&end->synchronized);
    if (!*ended)
        atomic_store(&end->op.news, 1);
    else if (end->sync_code < 0)
        *err = end->op.error;
    return *ended ? end->sync_code : 0;
}

int
wm_pieces_pull(wm_end_t *end, wm_error_t *err)
{
    wm_pieces_t *pieces = &end->pieces;
    int code;
    bool ended;
    if (pieces->on_host)
        return pull_on_host(end);
    if (end->on_stream)
        return pull_on_stream_ended(end, err);
    // A kernel reaches what its own device has mapped, a copy whatever is.
    if (end->access.user_device >= 0 && pieces->pieces == 1
        && end->transport->direct && wm_unpack_on_stream(end)
        && (!wm_pieces_are_boxed(end)
            || end->access.user_device == end->access.device))
        return is_posted(end) ? pull_on_stream(end, err) : 0;
    if (wm_pieces_are_boxed(end))
        return pull_box(end, err);
    if (end->batched && atomic_load(status_of(end)) == WM_MAIL_FAILED) {
        *err = end->op.error;
        return err->code;
    }
    if (may_share(end)
        && wm_word_reached(&end->slot->ready, pieces->ready_base + 1))
        return share(end, err);
    while (pieces->next < pieces->pieces
           && wm_word_reached(&end->slot->ready,
                              pieces->ready_base + pieces->next + 1))
        if ((code = submit_piece(end, err)) < 0)
            return code;
    if (pieces->next < pieces->pieces) // what can be done for who waits
        return end->blocking ? wm_end_open_stream(end, err) : 0;
    if ((code = pull_ended(end, &ended, err)) < 0 || !ended)
        return code;
    end->access.idle = true;
    end->peer->copied = false;
    if (!end->signals) // else the slot may serve another message by now
        wm_slot_set_taken(end->slot, pieces->taken_base + pieces->pieces);
    return 1;
}

int
wm_pieces_take_back(wm_end_t *end, char *into, uint32_t ready, wm_error_t *err)
{
    wm_mail_t mail = {
        .box = wm_mailbox_pointer(end->box),
        .user = into,
        .nbytes = end->header.nbytes,
        .flag = end->header.flag,
        .word = &end->slot->ready,
        .value = ready,
    };
    return wm_mail_launch(end->access.device, NULL, 0, &mail, 1,
                          WM_MAIL_FOR_EVER, end->access.stream, err);
}

// A piece into the ring or the lane, then `ready`.
static int
feed_piece(wm_end_t *end, uint32_t at, wm_error_t *err)
{
    wm_pieces_t *pieces = &end->pieces;
    char *into = pieces->remote + at % pieces->ring * pieces->piece;
    uint32_t ready = pieces->ready_base + at + 1;
    if (end->box != NULL)
        return wm_pieces_take_back(end, into, ready, err);
    int code = wm_memory_copy(end->access.device, into,
                              end->buffer.data + piece_start(pieces, at),
                              piece_length(end, at), end->access.stream, err);
    return code < 0 ? code
                    : wm_slot_enqueue_ready(end->slot, end->access.device,
                                            end->access.stream, ready, err);
}

int
wm_pieces_feed(wm_end_t *end, wm_error_t *err)
{
    wm_pieces_t *pieces = &end->pieces;
    while (pieces->next < pieces->pieces
           && (pieces->next < pieces->ring
               || wm_word_reached(&end->slot->taken, pieces->taken_base
                                                         + pieces->next + 1
                                                         - pieces->ring))) {
        int code = wm_end_open_stream(end, err);
        if (code == 0)
            code = feed_piece(end, pieces->next, err);
        if (code < 0)
            return code;
        if (++pieces->next == 1)
            wm_offer_posted(end);
    }
    return 0;
}

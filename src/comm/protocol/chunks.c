// SPDX-License-Identifier: BSD-3-Clause
// Payloads that a link carries: chunks under one number, two of them under
// way. The link gets host memory in place, and device memory, too, if it takes
// such memory, after its users have ended. Else device memory goes through two
// page-locked chunks, so that the copy of one overlaps the flight of the
// other. An empty chunk says that the sender failed. header.link names the
// link. A short message of a caller who waits is copied first, and goes with
// its header if the copy ends soon.
#include "comm/protocol/chunks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm/failure.h"
#include "comm/comm/require.h"
#include "comm/engine/engine.h"
#include "comm/engine/stats.h"
#include "comm/link/link.h"
#include "comm/message/pack.h"
#include "comm/protocol/eager.h"
#include "comm/protocol/rows.h"

#define OVERLAP_BYTES ((size_t)1 << 20) // least of a chunk that is staged
#define PATIENCE_US 30 // of a header for its payload; a copy takes 10

typedef struct {
    bool unstaged;         // the link takes this end's device memory itself
    bool reachable;        // nobody else uses that memory
    bool whole;            // all is staged: nobody waits for the receiver
    bool told;             // the empty chunk is given to the link
    bool unheeded;         // a copy begun before the header: no step has come
    uint32_t copied;       // chunks copied out of the device
    uint32_t given, done;  // chunks given to the link; completed
    char *staging;         // page-locked chunks: two, or all
    char *scratch;         // two chunks for data to discard
    wm_flight_t flying[2]; // of the chunks from `done` to `given`
    wm_flight_t last;      // of the empty chunk
} chunks_t;

// Second, as offers come to chunks, too.
WM_STATE(chunks_t, chunks_of, second_state)

static const wm_link_t *
link_of(const wm_end_t *end)
{
    return wm_link_numbered(end->header.link);
}

static int
peer_rank(const wm_end_t *end)
{
    return end->receives ? end->op.result.source : end->rank;
}

static uint32_t
chunk_count(const wm_end_t *end)
{
    return (uint32_t)((end->header.nbytes + end->header.chunk - 1)
                      / end->header.chunk);
}

static size_t
chunk_length(const wm_end_t *end, uint32_t index)
{
    uint64_t left = end->header.nbytes - (uint64_t)index * end->header.chunk;
    return left < end->header.chunk ? left : end->header.chunk;
}

// Returns the bytes of a chunk. A device's end stages two chunks, so that
// copies overlap the flight; but a chunk costs a rendezvous of MPI's, which
// takes as long as the copies of a MiB.
static uint32_t
chunk_size(const wm_end_t *end)
{
    size_t nbytes = end->header.nbytes, most = WM_CHUNK_BYTES;
    if (chunks_of(end)->unstaged)
        most = WM_IN_PLACE_BYTES;
    else if (wm_buffer_on_device(&end->buffer) && nbytes / 4 < most)
        most = nbytes / 4 > OVERLAP_BYTES ? nbytes / 4 : OVERLAP_BYTES;
    return (uint32_t)(nbytes < most ? nbytes : most);
}

static char *
chunk_stage(const wm_end_t *end, uint32_t index)
{
    uint32_t at = chunks_of(end)->whole ? index : index % 2;
    return chunks_of(end)->staging + (size_t)at * end->header.chunk;
}

static char *
chunk_place(const wm_end_t *end, uint32_t index)
{
    return end->buffer.data + (size_t)index * end->header.chunk;
}

// Takes staging for two chunks of device memory, and a stream after the
// producer. A send that must not wait for its receiver takes staging for all,
// if there is as much: else an embedded array fails, as its receiver may wait
// in a send, too. Returns 1, or an error.
static int
chunks_prepare(wm_end_t *end, wm_error_t *err)
{
    chunks_t *chunks = chunks_of(end);
    if (chunks->staging != NULL)
        return 1;
    int code = 0;
    if (chunks->whole)
        code = wm_pinned_alloc((size_t)chunk_count(end) * end->header.chunk,
                               (void **)&chunks->staging, err);
    if (code < 0 && !end->eager)
        chunks->whole = false;
    if (!chunks->whole)
        code = wm_pinned_alloc(2 * (size_t)end->header.chunk,
                               (void **)&chunks->staging, err);
    if (code == 0)
        code = wm_end_open_stream(end, err);
    return code < 0 ? code : 1;
}

// Returns true if this end stages device memory.
static bool
is_staged(const wm_end_t *end)
{
    return wm_buffer_on_device(&end->buffer) && !chunks_of(end)->unstaged;
}

// Returns 1 when nobody else uses the memory that the link takes in place, as
// the link waits for no stream.
static int
wait_for_users(wm_end_t *end, wm_error_t *err)
{
    chunks_t *chunks = chunks_of(end);
    if (!chunks->unstaged || chunks->reachable)
        return 1;
    int code = wm_end_open_stream(end, err);
    if (code == 0)
        code = wm_stream_idle(end->access.device, end->access.stream,
                              &chunks->reachable, err);
    end->access.idle = chunks->reachable;
    return code < 0 ? code : chunks->reachable;
}

// Enters the context in which the link works with device memory. After an
// error it must do without.
static int
enter(const wm_end_t *end, wm_scope_t *scope, wm_error_t *err)
{
    if (chunks_of(end)->unstaged && end->op.error.code == 0)
        return wm_device_enter(end->access.device, scope, err);
    scope->stayed = true; // nothing to leave
    return 0;
}

// MPI alone finds out that the peer has died, or that the communicator was
// revoked. Returns `code`, that of the link, or this error. A dead peer's
// chunk ends when the link says so, as data may still arrive in its memory;
// after a failure of ours it ends as the peer has said.
static int
look_at_peer(wm_end_t *end, int code, wm_error_t *err)
{
    int found = 0;
    if (code < 0 && end->peer->dead)
        found = wm_failure_look(end->op.comm, peer_rank(end), err);
    else if (code == 0 && wm_failure_is_due(&end->looks)) {
        found = wm_failure_look(end->op.comm, peer_rank(end), err);
        if (end->peer->dead || end->op.error.code != 0)
            found = 0;
    }
    return found < 0 ? found : code;
}

// Returns 1 if a chunk that was given to the link has ended.
static int
test_part(wm_end_t *end, uint32_t chunk, size_t *count, wm_error_t *err)
{
    const wm_link_t *link = link_of(end);
    wm_scope_t scope;
    int code = enter(end, &scope, err);
    if (code < 0)
        return code;
    code = link->test(&chunks_of(end)->flying[chunk % 2], count, err);
    wm_device_leave(&scope);
    return link->by_comm ? code : look_at_peer(end, code, err);
}

// Returns the memory that the link sends a chunk from, or receives it into:
// the buffer itself if the link takes it in place, else a stage.
static char *
chunk_memory(const wm_end_t *end, uint32_t index)
{
    const chunks_t *chunks = chunks_of(end);
    if (chunks->scratch != NULL)
        return chunks->scratch + (size_t)(index % 2) * end->header.chunk;
    return chunks->staging != NULL ? chunk_stage(end, index)
                                   : chunk_place(end, index);
}

static wm_carry_t
carry(const wm_end_t *end, uint32_t index)
{
    const chunks_t *chunks = chunks_of(end);
    bool in_place = chunks->unstaged && chunks->scratch == NULL;
    return (wm_carry_t){
        .peer = end->peer,
        .data = end->op.comm->data,
        .rank = peer_rank(end),
        .number = end->header.seq,
        .index = index,
        .device = in_place ? end->access.device : -1,
        .memory = &end->buffer.memory,
    };
}

// Gives the link the next of the first `there` chunks, two at once at most.
static int
give_chunks(wm_end_t *end, uint32_t there, wm_error_t *err)
{
    const wm_link_t *link = link_of(end);
    chunks_t *chunks = chunks_of(end);
    for (; chunks->given < there && chunks->given < chunks->done + 2;
         ++chunks->given) {
        uint32_t at = chunks->given;
        wm_carry_t way = carry(end, at);
        char *memory = chunk_memory(end, at);
        size_t length = chunk_length(end, at);
        wm_flight_t *flight = &chunks->flying[at % 2];
        wm_scope_t scope;
        int code = enter(end, &scope, err);
        if (code < 0)
            return code;
        code = end->receives ? link->receive(&way, memory, length, flight, err)
                             : link->send(&way, memory, length, flight, err);
        wm_device_leave(&scope);
        if (code < 0)
            return link->by_comm ? code : look_at_peer(end, code, err);
    }
    return 0;
}

static int
copy_out(wm_end_t *end, uint32_t at, wm_error_t *err)
{
    char *into = chunk_stage(end, at);
    wm_stat_add(WM_STAT_staged_bytes, (int64_t)chunk_length(end, at));
    if (end->taker != NULL && end->taker->copy_out != NULL) { // one chunk
        int code = end->taker->copy_out(end, into,
                                        end->fragments.ready_base + 1, err);
        end->fragments.next = code > 0;
        if (code != 0)
            return code < 0 ? code : 0;
    }
    return wm_memory_copy(end->access.device, into, chunk_place(end, at),
                          chunk_length(end, at), end->access.stream, err);
}

// Returns true if a copy has ended whose header MPI has not taken. It may wait
// for the program's stream, and we do not.
static bool
unheeded_has_ended(const wm_end_t *end)
{
    bool ended = false;
    return wm_stream_spin(end->access.device, end->access.stream, 1000, &ended,
                          NULL)
               == 0
           && ended;
}

void
wm_chunks_drop(wm_end_t *end)
{
    chunks_t *chunks = chunks_of(end);
    if (chunks->staging != NULL
        && (!chunks->unheeded || unheeded_has_ended(end))) // else it leaks
        wm_pinned_free(chunks->staging);
    chunks->staging = NULL;
    free(chunks->scratch);
    chunks->scratch = NULL;
}

// Returns true if the next chunk can be copied out of the device: one ahead of
// the link, or all.
static bool
next_has_room(const wm_end_t *end)
{
    const chunks_t *chunks = chunks_of(end);
    uint32_t at = chunks->copied;
    return at < chunk_count(end)
           && (chunks->whole
               || (at == chunks->given && at < chunks->done + 2));
}

// Copies the next chunks out of the device. Returns 1 when they can be given
// to the link.
static int
stage_next(wm_end_t *end, wm_error_t *err)
{
    chunks_t *chunks = chunks_of(end);
    bool idle = chunks->whole && end->access.idle;
    int code = 0;
    if (chunks->whole && atomic_load(&end->op.done))
        return 1; // the stream may be gone
    for (; next_has_room(end); ++chunks->copied)
        if ((code = copy_out(end, chunks->copied, err)) < 0)
            return code;
    if (chunks->copied > chunks->given && !idle)
        code = wm_stream_idle(end->access.device, end->access.stream, &idle,
                              err);
    if (code == 0 && idle && chunks->whole) {
        wm_access_forget_borrowed(&end->access);
        wm_eager_report(end);
    }
    return code < 0 ? code : idle;
}

int
wm_chunks_send(wm_end_t *end, wm_error_t *err)
{
    chunks_t *chunks = chunks_of(end);
    uint32_t total = chunk_count(end);
    bool device = is_staged(end);
    chunks->unheeded = false;
    int code = wait_for_users(end, err);
    if (code > 0 && device)
        code = chunks_prepare(end, err);
    if (code <= 0)
        return code;
    while (chunks->done < chunks->given
           && (code = test_part(end, chunks->done, NULL, err)) > 0)
        ++chunks->done;
    if (code < 0)
        return code;
    if (chunks->done == total)
        return 1;
    if (device && (code = stage_next(end, err)) <= 0)
        return code;
    return give_chunks(end, device ? chunks->copied : total, err);
}

bool
wm_chunks_fail(wm_end_t *end)
{
    chunks_t *chunks = chunks_of(end);
    wm_carry_t way = carry(end, chunks->given);
    way.device = -1;
    chunks->unheeded = false;
    chunks->told = link_of(end)->send(&way, NULL, 0, &chunks->last, NULL) == 0;
    return false;
}

bool
wm_chunks_are_sent(wm_end_t *end)
{
    chunks_t *chunks = chunks_of(end);
    const wm_link_t *link = link_of(end);
    bool sent = true;
    for (uint32_t at = chunks->done; at != chunks->given && sent; ++at)
        sent = link->test(&chunks->flying[at % 2], NULL, NULL) != 0;
    return sent
           && (!chunks->told || link->test(&chunks->last, NULL, NULL) != 0);
}

// Returns the error of a send whose link does not take its GPU memory.
static int
refuse_to_stage(const wm_end_t *end, const wm_link_t *link, wm_error_t *err)
{
    const char *why = "";
    char lacking[300], all[400];
    if (link != &wm_link_mpi) {
        snprintf(all, sizeof all,
                 "this memory is managed, or of another GPU than %s serves in "
                 "this process",
                 link->title);
        return wm_require_refuse(all, "copy it to memory of that GPU", err);
    }
    if (wm_link_is_asked(&wm_link_host))
        return wm_require_refuse("WARPMPI_TRANSPORT=host", "unset it", err);
    if (wm_link_offers(end->peer, &why))
        return wm_require_refuse("2048 messages of this rank are under way",
                                 "wait for some of them", err);
    (void)wm_link_tell(end->peer, &end->buffer.memory, &why);
    wm_link_tell_lacking(end->peer, sizeof lacking, lacking);
    snprintf(all, sizeof all, "%s, and no link carries it (%s)",
             why != NULL ? why : "no segment is shared", lacking);
    return wm_require_refuse(
        all, "let one of these serve, or send a copy in host memory", err);
}

// Returns true if the copy out of the device begins before the header leaves:
// of one chunk, in a call that waits for the copy, but for no receiver.
static bool
begins_at_once(const wm_end_t *end)
{
    return is_staged(end) && chunks_of(end)->whole && end->around == NULL
           && chunk_count(end) == 1;
}

// Returns true if the header waits for that copy. With a link of its own the
// message never goes with the header.
static bool
fits_header(const wm_end_t *end)
{
    return link_of(end) == &wm_link_mpi
           && end->buffer.nbytes <= WM_EAGER_BYTES;
}

// Waits a moment for that copy. Returns 1 if it has ended, 0 if not yet.
static int
await_copy(wm_end_t *end, wm_error_t *err)
{
    int code;
    int64_t until = wm_engine_now() + PATIENCE_US;
    while ((code = wm_access_look(&end->access, 16, err)) == 0
           && wm_engine_now() < until)
        ;
    return code;
}

// Leaves the stream that was borrowed for that copy, which may be gone when
// the copy has ended: a stream of ours waits for it.
static int
leave_borrowed(wm_end_t *end, wm_error_t *err)
{
    CUstream borrowed = end->access.stream;
    if (end->access.pooled)
        return 0;
    wm_access_forget_borrowed(&end->access);
    wm_access_record(&end->access);
    int code = wm_access_open(&end->access, err);
    if (code < 0)
        (void)!wm_stream_synchronize(end->access.device, borrowed, NULL);
    return code;
}

// Puts the payload behind the header, as that of a message of host memory.
static int
go_with_header(wm_end_t *end, wm_error_t *err)
{
    int code = wm_end_packet(end, false, err);
    if (code < 0)
        return code;
    memcpy(end->packet + WM_HEADER_SHORT, chunks_of(end)->staging,
           end->buffer.nbytes);
    wm_chunks_drop(end);
    wm_send_become(end, &wm_sending_inline);
    return end->sending->offer(end, err);
}

// Begins the copy. If a short one ends soon, the message goes with its header;
// else the header goes first, as it holds the message's place among all
// others.
static int
offer_at_once(wm_end_t *end, wm_error_t *err)
{
    chunks_t *chunks = chunks_of(end);
    int code = chunks_prepare(end, err);
    if (code > 0)
        code = copy_out(end, chunks->copied++, err);
    if (code == 0 && fits_header(end))
        code = await_copy(end, err);
    chunks->unheeded = code == 0;
    return code > 0 ? go_with_header(end, err) : code;
}

// The header has left while the copy goes on.
static int
chunks_go(wm_end_t *end, wm_error_t *err)
{
    if (chunks_of(end)->copied == 0)
        return 0;
    int code = fits_header(end) ? 0 : await_copy(end, err);
    if (code == 0)
        code = leave_borrowed(end, err);
    return code < 0 ? code : 0;
}

static int
chunks_offer(wm_end_t *end, wm_error_t *err)
{
    chunks_t *chunks = chunks_of(end);
    bool device = wm_buffer_on_device(&end->buffer);
    const wm_link_t *link = wm_link_carrier(end->peer, &end->buffer.memory);
    // The link would wait for the receiver of an embedded array.
    bool waits = !end->eager || wm_require_is_on(end->op.comm);
    chunks->unstaged = device && waits && link->unstaged != NULL
                       && link->unstaged(end->peer, &end->buffer.memory);
    chunks->whole = wm_eager_applies(end);
    end->header.on_device = chunks->unstaged;
    if (is_staged(end) && wm_require_is_on(end->op.comm))
        return refuse_to_stage(end, link, err);
    wm_chunks_announce(end, link);
    if (begins_at_once(end))
        return offer_at_once(end, err);
    if (device && end->around == NULL)
        wm_access_record(&end->access);
    return 0;
}

// Ends the receives of chunks that never come, as the sender failed.
static void
end_abandoned(wm_end_t *end, chunks_t *chunks)
{
    for (uint32_t at = chunks->done; at != chunks->given; ++at)
        link_of(end)->cancel(&chunks->flying[at % 2]);
    chunks->done = chunks->given = chunk_count(end);
}

// Takes the chunks that have come; `staged`: copies them into the device.
static int
take_ended(wm_end_t *end, bool staged, wm_error_t *err)
{
    chunks_t *chunks = chunks_of(end);
    int code = 0;
    while (chunks->done < chunks->given && code == 0) {
        uint32_t at = chunks->done;
        size_t count = 0;
        if ((code = test_part(end, at, &count, err)) <= 0)
            return code;
        code = 0;
        if (count == 0) {
            end_abandoned(end, chunks);
            return wm_error_set(err, WM_ERR_CUDA, 0,
                                "the sender, rank %d, failed: its GPU could "
                                "not deliver the message",
                                end->op.result.source);
        }
        ++chunks->done;
        if (staged)
            code = wm_memory_copy(end->access.device, chunk_place(end, at),
                                  chunk_stage(end, at), chunk_length(end, at),
                                  end->access.stream, err);
    }
    return code;
}

// Makes a step of the receiver. After an error it receives and discards the
// rest, so that the sender ends.
static int
chunks_receive(wm_end_t *end, wm_error_t *err)
{
    chunks_t *chunks = chunks_of(end);
    uint32_t total = chunk_count(end);
    bool discard = end->op.error.code != 0, idle = true;
    bool staged = is_staged(end) && !discard;
    int code = discard ? 1 : wait_for_users(end, err);
    if (code > 0 && staged)
        code = chunks_prepare(end, err);
    if (code <= 0)
        return code;
    if (discard && chunks->scratch == NULL
        && (chunks->scratch = malloc(2 * (size_t)end->header.chunk)) == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    code = take_ended(end, staged, err);
    // A copy may still read the stage of the next chunk.
    if (code == 0 && staged && chunks->done == 1 && total == 1)
        return wm_access_look(&end->access, 16, err);
    if (code == 0 && staged && chunks->done > 0
        && (chunks->done == total || chunks->given < chunks->done + 2))
        code = wm_stream_idle(end->access.device, end->access.stream, &idle,
                              err);
    if (code < 0 || !idle)
        return code;
    if (chunks->done == total)
        return 1;
    return give_chunks(end, total, err);
}

void
wm_chunks_announce(wm_end_t *end, const wm_link_t *link)
{
    end->header.kind = WM_MESSAGE_DATA;
    end->header.link = (uint8_t)wm_link_number(link);
    end->header.seq = link->by_comm
                          ? wm_comm_draw_lock_held(end->op.comm, end->rank, 1)
                          : end->peer->drawn++;
    end->header.chunk = chunk_size(end);
}

wm_asks_t
wm_chunks_asks(const wm_end_t *end)
{
    const chunks_t *chunks = chunks_of(end);
    // Only a link by MPI makes MPI's progress, without which MPI does not
    // report that the peer died.
    if (end->matching == MPI_REQUEST_NULL
        && (chunks->given == chunks->done || !link_of(end)->by_comm))
        return WM_ASKS_NOTHING;
    return end->slot == NULL && chunks->staging == NULL ? WM_ASKS_ALONE
                                                        : WM_ASKS_TOO;
}

uint64_t
wm_chunks_mark(const wm_end_t *end)
{
    const chunks_t *chunks = chunks_of(end);
    return ((uint64_t)chunks->given << 32) + chunks->done + chunks->copied;
}

static bool
chunks_try_take(wm_end_t *end, const char **why)
{
    (void)end, (void)why;
    return true;
}

const wm_sending_t wm_sending_chunks = {
    .name = "chunks",
    .try_take = chunks_try_take,
    .offer = chunks_offer,
    .go = chunks_go,
    .step = wm_chunks_send,
    .fail = wm_chunks_fail,
    .heard = wm_chunks_are_sent,
    .asks = wm_chunks_asks,
    .mark = wm_chunks_mark,
    .drop = wm_chunks_drop,
};

static bool
chunks_check(wm_end_t *end)
{
    const wm_header_t *header = &end->header;
    const wm_link_t *link = link_of(end);
    return link != NULL && link->receive != NULL
           && (link->connect == NULL
               || (end->peer->connected & 1u << header->link) != 0)
           && header->chunk > 0 && header->chunk <= WM_IN_PLACE_BYTES
           && header->nbytes > 0
           && (header->nbytes - 1) / header->chunk < INT32_MAX
           && (!link->by_comm
               || header->seq <= (uint32_t)wm_comm_last_number(end->op.comm));
}

static int
chunks_match(wm_end_t *end, bool refused, wm_error_t *err)
{
    const wm_link_t *link = link_of(end);
    const wm_pointer_t *memory = &end->buffer.memory;
    const char *unused;
    bool device = wm_buffer_on_device(&end->buffer);
    chunks_of(end)->unstaged = device && link->unstaged != NULL
                               && link->unstaged(end->peer, memory);
    // Counted as by the host where the link does not reach device memory.
    if (device && !link->reach(end->peer, memory, &unused))
        link = &wm_link_host;
    wm_link_count(link, end->header.nbytes, is_staged(end));
    if (!refused && end->header.on_device && is_staged(end)
        && wm_require_is_on(end->op.comm))
        return wm_require_refuse(
            "this rank's link does not take GPU memory, the sender's does",
            "give all ranks the same libraries", err);
    int code = end->buffer.pattern != NULL && !refused
                   ? wm_unpack_reserve(end, false, err)
                   : 0;
    return code < 0 ? code : chunks_receive(end, err);
}

static bool
chunks_accept(wm_end_t *end, const char **why)
{
    *why = "no link carries the data";
    return end->slot == NULL;
}

// Goes on to discard the rest, as the sender goes on sending.
static bool
chunks_fail(wm_end_t *end, const wm_error_t *err)
{
    (void)err;
    if (end->access.opened)
        (void)!wm_access_synchronize(&end->access, NULL);
    return true;
}

const wm_receiving_t wm_receiving_chunks = {
    .name = "chunks",
    .kind = WM_MESSAGE_DATA,
    .check = chunks_check,
    .match = chunks_match,
    .accept = chunks_accept, // carried after all
    .reads = true,
    .step = chunks_receive,
    .fail = chunks_fail,
    .asks = wm_chunks_asks,
    .mark = wm_chunks_mark,
    .drop = wm_chunks_drop,
};

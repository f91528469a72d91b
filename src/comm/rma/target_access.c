// SPDX-License-Identifier: BSD-3-Clause
// A put is in place after a flush that began behind it. One flush to a rank is
// under way at a time; the next one is for all puts that began meanwhile.
#include "comm/rma/target_access.h"

#include <stdlib.h>
#include <string.h>

#include "comm/comm/failure.h"
#include "comm/engine/engine.h"
#include "comm/engine/stats.h"

#define KEY_ROOM 1024
#define FLUSH_US 1000000 // flushes that fail are tried again so long

// Of this rank's memory.
struct wm_target_exposed {
    const wm_link_t *link;
    void *exposed;
    uint32_t nbytes; // of the key
    char key[KEY_ROOM];
};

// Of the memory of another rank.
struct wm_target_access {
    const wm_link_t *link; // NULL: it was not asked yet
    void *opened;
    bool closed; // requests serve
    bool flushing;
    wm_flight_t flush;
    uint32_t begun, ended; // the last flush that began, and ended
    int64_t failed;        // since when flushes fail; 0: they do not
    uint32_t nbytes;
    char key[];
};

// --- keys -----------------------------------------------------------------

// Before the link's own key.
typedef struct {
    uint32_t link;
} key_head_t;

// Returns the link that reaches some rank; NULL: there is none.
static const wm_link_t *
access_link(const wm_target_t *target)
{
    const wm_link_t *link = NULL;
    for (int rank = 0; rank < target->comm.size && link == NULL; ++rank)
        link = wm_link_accessor(target->comm.peers[rank]);
    return link;
}

uint32_t
wm_target_expose_memory(wm_target_t *target, const wm_target_memory_t *memory)
{
    const wm_link_t *link = memory->nbytes > 0 ? access_link(target) : NULL;
    if (link == NULL)
        return 0;
    wm_target_exposed_t *made = calloc(1, sizeof *made);
    if (made == NULL)
        return 0;
    key_head_t head = {wm_link_number(link)};
    size_t room = sizeof made->key - sizeof head;
    size_t nbytes = link->access->expose(
        memory->data, memory->nbytes, &memory->memory, made->key + sizeof head,
        room, &made->exposed);
    made->link = link;
    made->nbytes = (uint32_t)(sizeof head + nbytes);
    memcpy(made->key, &head, sizeof head);
    if (nbytes > 0)
        target->exposed = made;
    else
        free(made);
    return nbytes > 0 && nbytes <= room ? made->nbytes : 0;
}

void
wm_target_write_key(const wm_target_t *target, char *key)
{
    memcpy(key, target->exposed->key, target->exposed->nbytes);
}

void
wm_target_keep_key(wm_target_t *target, int rank, const char *key,
                   uint32_t nbytes)
{
    wm_target_access_t *made = calloc(1, sizeof *made + nbytes);
    if (made == NULL)
        return;
    made->nbytes = nbytes;
    memcpy(made->key, key, nbytes);
    target->ranks[rank].access = made;
}

bool
wm_target_conceal(wm_target_t *target, bool failed)
{
    wm_target_exposed_t *own = target->exposed;
    if (own == NULL)
        return true;
    if (!own->link->access->conceal(own->exposed, failed))
        return false;
    free(own);
    target->exposed = NULL;
    return true;
}

void
wm_target_forget_keys(wm_target_t *target)
{
    for (int rank = 0; rank < target->comm.size; ++rank) {
        wm_target_access_t *access = target->ranks[rank].access;
        if (access != NULL && access->flushing)
            (void)access->link->test(&access->flush, NULL, NULL);
        if (access != NULL && access->opened != NULL)
            access->link->access->close(access->opened);
        free(access);
        target->ranks[rank].access = NULL;
    }
}

// Gives the link up, as it has failed; counted, unless the peer has died.
static void
access_close(wm_target_access_t *access, const wm_peer_t *peer)
{
    wm_stat_add(WM_STAT_rma_failovers, !access->closed && !peer->dead);
    access->closed = true;
}

// Opens the memory at the first need.
static bool
access_is_open(wm_target_access_t *access, wm_peer_t *peer)
{
    key_head_t head;
    if (access->link != NULL || access->closed)
        return !access->closed;
    access->link = wm_link_accessor(peer);
    memcpy(&head, access->key, sizeof head);
    if (access->link == NULL || wm_link_number(access->link) != head.link)
        access->closed = true;
    else if (access->link->access->open(peer, access->key + sizeof head,
                                        access->nbytes - sizeof head,
                                        &access->opened, NULL)
             < 0)
        access_close(access, peer);
    return !access->closed;
}

bool
wm_target_takes_access(wm_target_t *target, const wm_target_op_t *what,
                       const wm_buffer_t *buffer)
{
    wm_target_access_t *access = target->ranks[what->rank].access;
    wm_peer_t *peer = target->comm.peers[what->rank];
    bool moves = what->kind == WM_TARGET_PUT || what->kind == WM_TARGET_GET;
    return moves && access != NULL && !peer->dead && what->count == 0
           && buffer->pattern == NULL && access_is_open(access, peer)
           && access->link->access->takes(peer, &buffer->memory, what->nbytes);
}

// --- moves ----------------------------------------------------------------

void
wm_target_move_begin(wm_target_move_t *move, wm_buffer_t *buffer, bool gets)
{
    bool device = wm_buffer_on_device(buffer);
    *move = (wm_target_move_t){.buffer = *buffer};
    wm_access_begin(&move->users, &buffer->producer, gets,
                    device ? buffer->memory.device : 0);
    if (device)
        wm_access_record(&move->users);
}

// Returns 1 when nobody else uses the memory, as links wait for no stream.
static int
move_wait(wm_target_move_t *move, wm_error_t *err)
{
    bool idle = true;
    if (!wm_buffer_on_device(&move->buffer))
        return 1;
    int code = wm_access_open(&move->users, err);
    if (code == 0)
        code = wm_stream_idle(move->users.device, move->users.stream, &idle,
                              err);
    move->users.idle = idle;
    return code < 0 ? code : idle;
}

// Gives the move to the link.
static int
move_start(wm_target_move_t *move, const wm_target_t *target, int rank,
           const wm_target_request_t *request, wm_error_t *err)
{
    const wm_target_access_t *access = target->ranks[rank].access;
    const wm_link_access_t *by = access->link->access;
    const wm_carry_t way = {
        .peer = target->comm.peers[rank],
        .rank = rank,
        .device = wm_buffer_on_device(&move->buffer) ? move->users.device : -1,
        .memory = &move->buffer.memory,
    };
    wm_scope_t scope = {.stayed = true}; // nothing to leave
    size_t nbytes = request->nbytes;
    int code = way.device >= 0 ? wm_device_enter(way.device, &scope, err) : 0;
    if (code < 0)
        return code;
    code = request->kind == WM_TARGET_PUT
               ? by->put(&way, move->buffer.data, nbytes, access->opened,
                         request->at, &move->flight, err)
               : by->get(&way, move->buffer.data, nbytes, access->opened,
                         request->at, &move->flight, err);
    wm_device_leave(&scope);
    move->begun = code == 0;
    move->flush = access->begun + 1;
    return code;
}

// Begins a flush where none is under way, or tests it. Returns 1 when one with
// this number, or a higher one, has ended. A flush that fails is tried again:
// nothing else tells that a put does not arrive later.
static int
access_flush(wm_target_access_t *access, wm_peer_t *peer, uint32_t number,
             wm_error_t *err)
{
    int code = 0;
    if (!access->flushing && (int32_t)(access->ended - number) < 0) {
        code = access->link->access->flush(peer, &access->flush, err);
        access->flushing = code == 0;
        access->begun += code == 0;
    }
    if (access->flushing) {
        code = access->link->test(&access->flush, NULL, err);
        access->flushing = code == 0;
    }
    if (code > 0) {
        access->ended = access->begun;
        access->failed = 0;
    }
    if (code < 0) {
        access_close(access, peer);
        int64_t now = wm_engine_now();
        if (access->failed == 0)
            access->failed = now;
        if (peer->dead || now - access->failed > FLUSH_US)
            return code;
    }
    return (int32_t)(access->ended - number) >= 0;
}

// Makes a step of a move that the link has begun. Returns 1 when the link does
// not use our memory any more, and a put, right or failed, has ended there; 0;
// or an error, if that cannot be found out.
static int
move_go_on(wm_target_move_t *move, wm_target_t *target, int rank, bool puts,
           wm_error_t *err)
{
    wm_target_access_t *access = target->ranks[rank].access;
    wm_peer_t *peer = target->comm.peers[rank];
    int flushed = puts ? access_flush(access, peer, move->flush, err) : 1;
    if (!move->moved) {
        int code = access->link->test(&move->flight, NULL, NULL);
        if (code < 0)
            access_close(access, peer);
        move->moved = code != 0;
        move->failed = code < 0;
    }
    return move->moved ? flushed : 0;
}

int
wm_target_move_step(wm_target_move_t *move, wm_target_t *target, int rank,
                    const wm_target_request_t *request, wm_error_t *err)
{
    wm_target_access_t *access = target->ranks[rank].access;
    wm_peer_t *peer = target->comm.peers[rank];
    int code = move->begun ? 1 : move_wait(move, err);
    if (code > 0 && !move->begun && !access->closed
        && move_start(move, target, rank, request, NULL) < 0)
        access_close(access, peer);
    if (code > 0)
        code = move->begun ? move_go_on(move, target, rank,
                                        request->kind == WM_TARGET_PUT, err)
                           : 2;
    if (code == 1 && move->failed)
        code = 2;
    if (code == 0 && wm_failure_is_due(&move->looks))
        (void)!wm_failure_look(target->of, rank, NULL); // tells the link
    if (code != 0 && code != 1 && peer->dead)
        code = wm_failure_look(target->of, rank, err);
    if (code == 0)
        return 0;
    wm_access_close(&move->users);
    wm_stat_add(WM_STAT_rma_operations, code == 1);
    wm_stat_add(WM_STAT_rma_bytes, code == 1 ? (int64_t)request->nbytes : 0);
    return code;
}

uint64_t
wm_target_move_mark(const wm_target_move_t *move)
{
    return (uint64_t)move->begun + move->moved;
}

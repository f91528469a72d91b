// SPDX-License-Identifier: BSD-3-Clause
// The end of messages in CUDA graphs. An end is dropped when no request and no
// graph has it and the other end, whose kernels write into its memory, is
// closed as well.
#define _GNU_SOURCE
#include <stdlib.h>
#include <time.h>

#include "comm/comm/failure.h"
#include "comm/engine/engine.h"
#include "comm/node/segment_words.h"
#include "comm/protocol/captured_end.h"
#include "cuda/capture.h"
#include "cuda/settings.h"

#define PASS_US 5000000 // for a message under way when its request is freed
#define STOP_US 1000000 // for its kernels, once they are stopped
#define NAP_NS 50000
#define RELEASE_US 300000 // for the driver to tell that a graph is gone
#define PAUSE_US 2000000  // without a sign of a kernel, which waits no longer
#define LOOK_US 200000    // for ends that nobody needs

static wm_captured_t *all; // engine lock
static _Atomic int count;  // of these

bool
wm_captured_any(void)
{
    return atomic_load(&count) > 0;
}

void
wm_captured_list(wm_captured_t *end)
{
    end->listed = all;
    all = end;
    atomic_fetch_add(&count, 1);
}

int
wm_captured_find_pending(uint64_t capture, CUstream stream,
                         wm_captured_t **found, int room)
{
    int pending = 0;
    for (wm_captured_t *end = all; end != NULL && pending < room;
         end = end->listed)
        if (end->pending == capture && end->pending_on == stream
            && !end->receives && end->buffer.nbytes > WM_PORT_LL_BYTES)
            found[pending++] = end;
    return pending;
}

// Returns true if the latest capture has become a graph. The driver tells a
// while later that the one of a capture that has failed is gone: the lock is
// let go meanwhile.
static bool
has_latest_graph(wm_captured_t *end)
{
    int64_t deadline = wm_engine_now() + RELEASE_US;
    atomic_fetch_add(&end->holders, 1);
    while (atomic_load(&end->graphs) > end->others
           && wm_engine_now() < deadline) {
        wm_engine_unlock();
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
        wm_engine_lock();
    }
    wm_captured_release(end);
    return atomic_load(&end->graphs) > end->others;
}

int
wm_captured_check_begun(wm_captured_t *end, wm_error_t *err)
{
    uint64_t capture = 0;
    // Without a holder the stream may be gone.
    if (end->pending == 0 || end->port == NULL
        || atomic_load(&end->holders) == 0
        || wm_stream_capture(end->device, end->pending_on, &capture, NULL) < 0
        || capture == end->pending)
        return 0;
    end->pending = 0;
    if (!has_latest_graph(end))
        return 0;
    return wm_error_set(err, WM_ERR_STATE, 0,
                        "a message %s rank %d with tag %d was started in a "
                        "capture into a CUDA graph, and not waited for: the "
                        "graph does not %s; call Wait or Waitall before the "
                        "capture ends",
                        end->receives ? "from" : "to", end->rank, end->tag,
                        end->receives ? "receive it" : "send a long one");
}

static void
graph_released(void *object)
{
    atomic_fetch_sub(&((wm_captured_t *)object)->graphs, 1);
}

int
wm_captured_keep(wm_captured_t *end, uint64_t capture, CUstream stream,
                 wm_error_t *err)
{
    if (end->closed)
        return wm_error_set(err, WM_ERR_STATE, 0,
                            "the message was freed, or its other end: make a "
                            "new request");
    if (end->kept == capture)
        return 0;
    end->others = atomic_fetch_add(&end->graphs, 1);
    int code = wm_capture_keep(end->device, stream, end, graph_released, err);
    if (code == 0)
        end->kept = capture;
    return code;
}

static void
stop_kernels(wm_port_words_t *words)
{
    __atomic_store_n(&words->late.stop, 1, __ATOMIC_RELEASE);
}

// Tells kernels of both ends that no message passes any more.
static void
captured_close(wm_captured_t *end)
{
    if (end->closed)
        return;
    end->closed = true;
    if (end->own != NULL)
        stop_kernels(end->own);
    if (end->its == NULL)
        return;
    stop_kernels(end->its);
}

// Returns true if no kernel of the other end uses our memory any more.
static bool
is_left(const wm_captured_t *end)
{
    const wm_peer_t *peer = end->its != NULL ? end->peer : NULL;
    if (end->own == NULL)
        return true;
    if (end->comm != NULL && end->header_request != MPI_REQUEST_NULL)
        return false; // MPI may read it
    if (peer != NULL)
        return atomic_load(&end->own->closed) != 0 || peer->dead
               || wm_node_is_leaving(peer);
    // One that has met nobody may still: the other end is of this message.
    return end->comm == NULL || end->matched;
}

static bool
is_needed(const wm_captured_t *end)
{
    return atomic_load(&end->holders) > 0 || atomic_load(&end->graphs) > 0;
}

// Takes hold of an end that nobody needs, and whose messages were not counted.
static wm_captured_t *
hold_uncounted_one(void)
{
    wm_engine_lock();
    wm_captured_t *end = all;
    while (end != NULL
           && (end->port == NULL || end->counted || is_needed(end)))
        end = end->listed;
    if (end != NULL) {
        end->counted = true;
        atomic_fetch_add(&end->holders, 1);
    }
    wm_engine_unlock();
    return end;
}

// Reads how many messages the ends that nobody needs have passed. Waits for
// the GPU, which may wait for the engine: lock not held.
static void
count_passed(void)
{
    bool quiet;
    uint32_t passed;
    wm_captured_t *end;
    while ((end = hold_uncounted_one()) != NULL) {
        if (wm_port_look(end->device, end->port, &quiet, &passed, NULL) == 0)
            end->passed = passed + 1;
        wm_captured_release(end);
    }
}

// With WARPMPI_CHECK finds ranks that have launched different numbers of
// graphs.
static void
compare_passed(const wm_captured_t *end)
{
    wm_error_t err;
    uint32_t its = end->own != NULL ? atomic_load(&end->own->passed) : 0;
    if (its == 0 || end->passed == 0 || its == end->passed
        || end->comm == NULL)
        return;
    wm_error_set(&err, WM_ERR_STATE, 0,
                 "the ranks launched different numbers of CUDA graphs: this "
                 "rank has %s %u messages, the other end %u",
                 end->receives ? "received" : "sent", end->passed - 1,
                 its - 1);
    wm_comm_keep_error(end->comm, end->receives, end->rank, end->tag, &err);
}

// Takes the ends that nobody needs from the list.
static wm_captured_t *
take_unused(void)
{
    wm_captured_t *unused = NULL, **link = &all;
    while (*link != NULL) {
        wm_captured_t *end = *link;
        bool needed = is_needed(end);
        // Once, as the other end's words may serve another message then.
        if (!needed && !end->left) {
            captured_close(end);
            if (end->comm != NULL && end->own != NULL)
                wm_captured_look_for_answer(end);
            wm_captured_withdraw(end);
            if (end->its != NULL) {
                atomic_store(&end->its->passed, end->passed);
                atomic_store(&end->its->closed, 1);
            }
            end->left = end->its != NULL;
        }
        if (needed || !is_left(end)) {
            link = &end->listed;
            continue;
        }
        compare_passed(end);
        *link = end->listed;
        end->listed = unused;
        unused = end;
        atomic_fetch_sub(&count, 1);
        wm_captured_leave(end);
    }
    return unused;
}

static void
drop_list(wm_captured_t *unused)
{
    while (unused != NULL) {
        wm_captured_t *next = unused->listed;
        wm_captured_drop(unused);
        unused = next;
    }
}

void
wm_captured_collect(void)
{
    if (!wm_captured_any())
        return;
    if (wm_setting_is_on(WM_SETTING_CHECK))
        count_passed();
    wm_engine_lock();
    wm_captured_t *unused = take_unused();
    wm_engine_unlock();
    drop_list(unused);
}

bool
wm_captured_are_going(int64_t waited)
{
    bool going = waited < RELEASE_US;
    wm_engine_lock();
    for (const wm_captured_t *end = all; end != NULL && !going;
         end = end->listed)
        going = waited < PASS_US && !is_needed(end);
    wm_engine_unlock();
    return going;
}

void
wm_captured_serve(bool waited)
{
    (void)waited;
    static _Atomic int64_t looked;
    int64_t now = wm_engine_now();
    if (!wm_captured_any() || now - looked < LOOK_US
        || wm_setting_is_on(WM_SETTING_CHECK) || !wm_engine_try_lock())
        return;
    looked = now;
    wm_captured_t *unused = take_unused();
    wm_engine_unlock();
    drop_list(unused);
}

void
wm_captured_drop(wm_captured_t *end)
{
    wm_engine_lock();
    for (int i = 0; i < CAPTURED_MAPPINGS; ++i)
        if (end->mappings[i] != NULL)
            wm_mapping_release(end->mappings[i]);
    // The words of a sender that was never matched may still be written.
    bool lost = end->its == NULL && end->header_sent && !end->matched;
    if (end->index >= 0 && !lost)
        wm_segment_words_give(WM_WORDS_OF_PORTS, end->index);
    wm_engine_unlock();
    if (end->block != NULL)
        wm_block_free(end->block, 0, NULL, NULL);
    wm_buffer_release(&end->buffer);
    free(end);
}

// Waits until no message is under way; looks once at least.
static void
wait_until_quiet(const wm_captured_t *end, int64_t deadline)
{
    bool quiet = false;
    uint32_t passed;
    for (unsigned turn = 1; !quiet; ++turn) {
        if (wm_port_look(end->device, end->port, &quiet, &passed, NULL) < 0
            || quiet || wm_engine_now() > deadline)
            return;
        wm_engine_turn(turn);
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
}

void
wm_captured_release(wm_captured_t *end)
{
    if (end != NULL)
        atomic_fetch_sub(&end->holders, 1);
}

// Closes the end, and waits until the deadline for a message that is under
// way.
static void
captured_close_now(wm_captured_t *end, int64_t deadline)
{
    bool runs = end->port != NULL && atomic_load(&end->graphs) > 0;
    if (runs && !end->closed)
        wait_until_quiet(end, deadline);
    wm_engine_lock();
    captured_close(end);
    wm_engine_unlock();
    if (runs && wm_port_close(end->device, end->port, NULL) == 0)
        wait_until_quiet(end, wm_engine_now() + STOP_US);
}

// Takes hold of an end that is not closed: of a communicator or, NULL, of any.
static wm_captured_t *
hold_open_one(const wm_comm_t *comm)
{
    wm_engine_lock();
    wm_captured_t *end = all;
    while (end != NULL && (end->closed || (comm != NULL && end->comm != comm)))
        end = end->listed;
    if (end != NULL)
        atomic_fetch_add(&end->holders, 1);
    wm_engine_unlock();
    return end;
}

void
wm_captured_close_all(wm_comm_t *comm)
{
    int64_t deadline = wm_engine_now() + PASS_US;
    wm_captured_t *end;
    while ((end = hold_open_one(comm)) != NULL) {
        captured_close_now(end, deadline);
        wm_captured_release(end);
    }
}

// Waits for replays that a stream has been given, but for none of a capture.
static void
wait_for_stream(int device, CUstream stream, int64_t deadline)
{
    uint64_t capture = 0;
    bool idle = false;
    if (wm_stream_capture(device, stream, &capture, NULL) < 0 || capture != 0)
        return;
    for (unsigned turn = 1; !idle && wm_engine_now() < deadline; ++turn) {
        if (wm_stream_idle(device, stream, &idle, NULL) < 0)
            return;
        wm_engine_turn(turn);
    }
}

void
wm_captured_free(wm_captured_t *end, CUstream stream)
{
    if (end == NULL)
        return;
    int64_t deadline = wm_engine_now() + PASS_US;
    wm_device_stay();
    if (end->port != NULL && atomic_load(&end->graphs) > 0 && !end->closed)
        wait_for_stream(end->device, stream, deadline);
    captured_close_now(end, deadline);
    wm_device_go();
    wm_captured_release(end); // its array stays: replays may load from it
    wm_captured_collect();
}

// Says why a kernel has not passed its message.
static int
reason_of(const wm_captured_t *end, wm_error_t *err)
{
    if (end->peer != NULL && end->peer->dead)
        return wm_failure_set(end->comm, end->rank, err);
    return wm_error_set(err, WM_ERR_STATE, 0,
                        "a CUDA graph was replayed with a message that %s: "
                        "destroy the graph",
                        end->closed ? "was freed" : "its other end has freed");
}

static bool
has_lost(const wm_captured_t *end)
{
    const wm_comm_t *comm = end->comm;
    bool lost = comm->revoked || (end->peer != NULL && end->peer->dead);
    if (end->peer == NULL && end->rank >= 0)
        lost |= comm->peers[end->rank]->dead;
    for (int rank = 0; rank < comm->size && !end->matched; ++rank)
        lost |= end->rank == MPI_ANY_SOURCE && comm->peers[rank]->dead;
    return lost;
}

static void
look_at(wm_captured_t *end)
{
    if (end->own == NULL || end->told)
        return;
    if (__atomic_load_n(&end->own->late.failed, __ATOMIC_ACQUIRE) == 0) {
        if (has_lost(end))
            stop_kernels(end->own);
        return;
    }
    if (end->its != NULL && !end->left)
        stop_kernels(end->its);       // which wait in vain
    wm_captured_look_for_answer(end); // which may tell a better reason
    if (!end->receives && !end->matched && !end->closed && !has_lost(end))
        return; // the answer is just being written
    wm_error_t err;
    end->told = true;
    (void)!reason_of(end, &err);
    wm_comm_keep_error(end->comm, end->receives, end->rank, end->tag, &err);
}

void
wm_captured_look(wm_comm_t *comm)
{
    wm_captured_t *end = comm->captured != NULL ? comm->captured->first : NULL;
    for (; end != NULL; end = end->next)
        look_at(end);
}

int
wm_captured_find_failures(wm_error_t *err)
{
    int code = 0;
    wm_captured_collect();
    wm_engine_lock();
    // First all: a communicator keeps one error, which is told once.
    for (wm_captured_t *end = all; end != NULL; end = end->listed)
        if (end->comm != NULL)
            look_at(end);
    for (wm_captured_t *end = all; end != NULL && code == 0;
         end = end->listed) {
        code = wm_captured_check_begun(end, err);
        if (code == 0 && end->comm != NULL)
            code = wm_comm_raise_kept(end->comm, err);
    }
    wm_engine_unlock();
    return code;
}

// Notes what a kernel has told. Returns the microseconds that it has waited.
static int64_t
look_at_wait(wm_captured_t *end, int64_t now)
{
    uint32_t beat = __atomic_load_n(&end->own->late.beat, __ATOMIC_RELAXED);
    if (beat != end->beat) {
        if (now - end->beat_at > PAUSE_US
            || (beat ^ end->beat) >> WM_PORT_BEAT_BITS != 0)
            end->waits_since = now;
        end->beat = beat;
        end->beat_at = now;
    }
    return now - end->beat_at > PAUSE_US ? 0 : now - end->waits_since;
}

// A sender that its receiver is just answering is left alone.
static void
end_refused(wm_captured_t *end)
{
    wm_error_t err;
    int rank;
    const char *text = wm_captured_find_refusal(end, &rank);
    if (text == NULL)
        return;
    wm_captured_withdraw(end);
    if (!end->receives && !end->matched)
        return;
    wm_error_set(&err, WM_ERR_STATE, 0,
                 "a CUDA graph waits for a message %s rank %d, which refused "
                 "it when it was captured: %s",
                 end->receives ? "from" : "to", rank, text);
    wm_captured_fail(end, &err);
}

void
wm_captured_end_refused(int64_t now, int64_t least)
{
    for (wm_captured_t *end = all; end != NULL; end = end->listed)
        if (end->own != NULL && end->comm != NULL && !end->closed
            && !end->matched && look_at_wait(end, now) >= least)
            end_refused(end);
}

// Visits senders that no captured receive has matched for long, each once.
static void
each_unexpected(wm_comm_t *comm, int64_t now, int64_t least,
                void (*visit)(const wm_captured_wait_t *wait))
{
    captured_unexpected_t *sender = comm->captured->unexpected;
    for (; sender != NULL; sender = sender->next) {
        if (sender->told || now - sender->since < least)
            continue;
        sender->told = true;
        visit(&(wm_captured_wait_t){
            .comm = comm,
            .unasked = true,
            .rank = sender->rank,
            .tag = sender->header.tag,
            .waited_us = now - sender->since,
        });
    }
}

void
wm_captured_each_wait(int64_t now, int64_t least,
                      void (*visit)(const wm_captured_wait_t *wait))
{
    for (wm_captured_t *end = all; end != NULL; end = end->listed) {
        if (end->own == NULL || end->comm == NULL)
            continue;
        if (end == end->comm->captured->first)
            each_unexpected(end->comm, now, least, visit);
        if (end->closed)
            continue;
        const captured_unexpected_t *other = end->comm->captured->unexpected;
        const wm_captured_wait_t wait = {
            .comm = end->comm,
            .receives = end->receives,
            .matched = end->matched,
            .rank = end->rank,
            .tag = end->tag,
            .other = end->receives && !end->matched && other != NULL,
            .other_rank = other != NULL ? other->rank : 0,
            .other_tag = other != NULL ? other->header.tag : 0,
            .waited_us = look_at_wait(end, now),
        };
        if (wait.waited_us < least
            || (end->told_at != 0 && now - end->told_at < WM_REPORT_AGAIN_US))
            continue;
        end->told_at = now;
        visit(&wait);
    }
}

bool
wm_captured_is_again(const wm_comm_t *comm, const wm_envelope_t *envelope,
                     bool receives, const void *data)
{
    uint64_t capture = 0;
    bool again = false;
    if (wm_stream_capture(envelope->stream_device, envelope->stream, &capture,
                          NULL)
        < 0)
        return false;
    wm_engine_lock();
    for (const wm_captured_t *end = all; end != NULL; end = end->listed)
        again |= end->comm == comm && end->receives == receives
                 && end->buffer.data == data && end->plain
                 && end->as_given[0] == envelope->rank
                 && end->as_given[1] == envelope->tag && end->kept != capture;
    wm_engine_unlock();
    return again;
}

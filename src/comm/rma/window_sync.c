// SPDX-License-Identifier: BSD-3-Clause
#include "comm/rma/window_sync.h"

#include "comm/coll/call/coll_wait.h"
#include "comm/coll/direct/preflight.h"
#include "comm/coll/run/coll_on_stream.h"
#include "comm/comm/failure.h"
#include "comm/diagnostics/wait.h"
#include "comm/engine/engine.h"
#include "comm/message/p2p.h"
#include "comm/rma/window_run.h"

static int
sync_fail(wm_error_t *err, const char *call, const char *why)
{
    return wm_error_set(err, WM_ERR_MPI, MPI_ERR_RMA_SYNC, "%s: %s", call,
                        why);
}

// --- checks -------------------------------------------------------------

int
wm_window_check_epoch(const wm_window_t *window, int target, const char *call,
                      wm_error_t *err)
{
    const wm_window_part_t *part = &window->parts[target];
    return window->fenced || window->locked_all || part->started
                   || part->held > WM_WINDOW_ASKED
               ? 0
               : sync_fail(err, call,
                           "outside of an epoch: call Fence on all ranks, or "
                           "Lock, Lock_all or Start for the target first");
}

int
wm_window_check_held(const wm_window_t *window, int target, const char *call,
                     wm_error_t *err)
{
    if (window->locked_all
        || (target < 0 ? window->locks > 0
                       : window->parts[target].held > WM_WINDOW_ASKED))
        return 0;
    return sync_fail(err, call,
                     "this rank has not locked the target: call Lock or "
                     "Lock_all first");
}

// Returns the error if an access epoch is open that excludes another one.
static int
check_free(const wm_window_t *window, const char *call, wm_error_t *err)
{
    const char *open = window->locked_all  ? "Lock_all has no Unlock_all yet"
                       : window->started   ? "Start has no Complete yet"
                       : window->locks > 0 ? "Lock has no Unlock yet"
                       : window->fenced && window->used
                           ? "calls were made after the last Fence: call "
                             "Fence(MPI.MODE_NOSUCCEED) first"
                           : NULL;
    return open != NULL ? sync_fail(err, call, open) : 0;
}

// --- Fence --------------------------------------------------------------

// Waits for all ranks. If one has failed, all raise.
static int
sync_all_ranks(wm_window_t *window, const char *call, int code,
               wm_error_t *err)
{
    bool misused = code == WM_ERR_MPI;
    wm_preflight_t preflight = {
        .call = WM_COLL_BARRIER,
        .code = misused ? 0 : code,
        .all = !misused,
    };
    wm_error_t later;
    int exchanged = wm_preflight_run(window->comm, &preflight,
                                     code < 0 ? &later : err);
    if (code < 0 || exchanged < 0)
        return code < 0 ? code : exchanged;
    return preflight.all == 0
               ? sync_fail(err, call,
                           "another rank has an epoch open, or has failed: "
                           "its error tells why")
               : 0;
}

static int
check_fence(wm_window_t *window, wm_error_t *err)
{
    window->used = false;
    return window->posted ? sync_fail(err, "Fence", "Post has no Wait yet")
                          : check_free(window, "Fence", err);
}

int
wm_window_fence(wm_window_t *window, bool begins, int code, wm_error_t *err)
{
    if (code == 0)
        code = check_fence(window, err);
    if (code == 0)
        code = wm_window_complete(window, err);
    code = sync_all_ranks(window, "Fence", code, err);
    if (code == 0)
        window->fenced = begins;
    return code;
}

static int
look_at_passing(void *context, wm_error_t *err)
{
    const wm_window_t *window = context;
    (void)err;
    return atomic_load(&window->passing) == 0;
}

int
wm_window_end(wm_window_t *window, wm_error_t *err)
{
    int code = window->posted ? sync_fail(err, "Free", "Post has no Wait yet")
                              : check_free(window, "Free", err);
    if (code == 0)
        code = wm_window_complete(window, err);
    if (code == 0)
        code = wm_coll_wait(window->comm, look_at_passing, window, 1, err);
    if (code == 0)
        wm_window_leave(window);
    code = sync_all_ranks(window, "Free", code, err);
    if (code < 0)
        wm_window_stay(window);
    return code;
}

// --- waits for other ranks ----------------------------------------------

// Wait for other ranks, with the window's lock free: these ranks may wait for
// what another thread has to do on the window.
static int
wait_unlocked(wm_window_t *window, int (*look)(void *context, wm_error_t *err),
              void *context, wm_error_t *err)
{
    pthread_mutex_unlock(&window->lock);
    int code = wm_coll_wait_unless(window->comm, look, context,
                                   WM_LOOKS_AT_WORDS, window->interrupted,
                                   err);
    wm_lock(&window->lock);
    return code;
}

static int
wait_unlocked_for(wm_window_t *window, wm_op_t *op,
                  bool (*interrupted)(wm_op_t *op), wm_error_t *err)
{
    pthread_mutex_unlock(&window->lock);
    int code = wm_op_wait(op, interrupted, err);
    wm_lock(&window->lock);
    return code;
}

// --- Lock ---------------------------------------------------------------

typedef struct {
    wm_window_words_t *words;
    uint32_t ticket;
    bool exclusive;
    unsigned looks; // since it was given up
} asked_t;

static int
look_at_lock(void *context, wm_error_t *err)
{
    const asked_t *asked = context;
    (void)err;
    return wm_window_lock_try(asked->words, asked->ticket, asked->exclusive);
}

// The ticket of a wait for a lock that was interrupted, or has failed. The
// engine takes the lock and gives it back, so that others get it.
typedef struct {
    wm_op_t op;
    wm_window_t *window;
    asked_t asked;
} passing_t;

// Returns true if the lock was taken and given back, or if a rank has died,
// which may be the one that holds the lock. Engine lock held.
static bool
has_passed(wm_comm_t *comm, asked_t *asked)
{
    wm_error_t err;
    bool taken = look_at_lock(asked, &err) != 0;
    if (taken)
        wm_window_lock_leave(asked->words, asked->exclusive);
    return taken
           || (wm_failure_is_due(&asked->looks)
               && wm_failure_look_at_all(comm, &err) < 0);
}

static bool
passing_step(wm_op_t *op)
{
    passing_t *passing = (passing_t *)op;
    if (!has_passed(op->comm, &passing->asked))
        return false;
    atomic_fetch_sub(&passing->window->passing, 1);
    return true;
}

static const wm_op_kind_t passing_kind = {.step = passing_step};

// Abandons a ticket. Without memory, waits for it.
static void
pass_ticket(wm_window_t *window, asked_t *asked)
{
    passing_t *passing = wm_op_new(&passing_kind, sizeof *passing,
                                   window->comm);
    bool passed = false;
    for (unsigned turn = 1; passing == NULL && !passed; ++turn) {
        wm_engine_turn(turn);
        wm_engine_lock();
        passed = has_passed(window->comm, asked);
        wm_engine_unlock();
    }
    if (passed)
        return;
    passing->window = window;
    passing->asked = *asked;
    atomic_fetch_add(&window->passing, 1);
    wm_engine_add(&passing->op);
    wm_op_release(&passing->op);
}

// Fails if the engine of another rank serves its part, and there is no thread
// that steps the engine while that rank's program is elsewhere.
static int
check_progress(const wm_window_t *window, int target, wm_error_t *err)
{
    bool reached = window->parts[target].words != NULL
                   && wm_window_reaches(window, target, false);
    if (reached || target == window->comm->rank || wm_engine_is_threaded())
        return 0;
    return wm_error_set(err, WM_ERR_STATE, 0,
                        "%s must serve this lock itself, and MPI runs below "
                        "MPI_THREAD_MULTIPLE, where it does so in calls of "
                        "warpmpi alone: set mpi4py.rc.thread_level = "
                        "'multiple', or use Fence, or Post and Start",
                        wm_comm_name(window->comm, target).text);
}

static int
take_part(wm_window_t *window, int target, bool exclusive, bool checked,
          wm_error_t *err)
{
    wm_window_part_t *part = &window->parts[target];
    asked_t asked = {.words = part->words, .exclusive = exclusive};
    wm_op_t *op;
    int code = check_progress(window, target, err);
    if (code < 0)
        return code;
    part->held = WM_WINDOW_ASKED;
    if (part->words == NULL) { // on another host
        code = wm_target_lock(window->target, target, exclusive, &op, err);
        if (code == 0) {
            code = wait_unlocked_for(window, op, NULL, err);
            wm_op_release(op);
        }
    }
    else if (checked) {
        asked.ticket = wm_window_lock_ask(part->words);
        code = wait_unlocked(window, look_at_lock, &asked, err);
        if (code < 0)
            pass_ticket(window, &asked);
    }
    part->held = code < 0                          ? WM_WINDOW_UNLOCKED
                 : !checked && part->words != NULL ? WM_WINDOW_UNCHECKED
                 : exclusive                       ? WM_WINDOW_EXCLUSIVE
                                                   : WM_WINDOW_SHARED;
    return code;
}

// Gives the lock of a part back, after `code`, the error so far.
static int
leave_part(wm_window_t *window, int target, int code, wm_error_t *err)
{
    wm_window_part_t *part = &window->parts[target];
    wm_window_held_t held = part->held;
    wm_error_t later;
    wm_op_t *op;
    part->held = WM_WINDOW_UNLOCKED;
    if (part->words != NULL) {
        if (held != WM_WINDOW_UNCHECKED)
            wm_window_lock_leave(part->words, held == WM_WINDOW_EXCLUSIVE);
        return code;
    }
    int left = wm_target_unlock(window->target, target, &op,
                                code < 0 ? &later : err);
    if (left == 0)
        left = wm_window_await(op, code < 0 ? &later : err);
    return code < 0 ? code : left;
}

int
wm_window_lock_part(wm_window_t *window, int target, bool exclusive,
                    bool checked, wm_error_t *err)
{
    int code = window->parts[target].held != WM_WINDOW_UNLOCKED ? sync_fail(
                   err, "Lock", "this rank has locked the target already")
               : window->locks > 0 ? 0
                                   : check_free(window, "Lock", err);
    if (code < 0)
        return code;
    ++window->locks; // before the wait, as other threads may lock meanwhile
    code = take_part(window, target, exclusive, checked, err);
    window->fenced &= code < 0;
    window->locks -= code < 0;
    return code;
}

int
wm_window_unlock_part(wm_window_t *window, int target, wm_error_t *err)
{
    if (window->locked_all || window->parts[target].held <= WM_WINDOW_ASKED)
        return sync_fail(err, "Unlock",
                         "this rank has not locked the target by Lock");
    int code = wm_window_complete(window, err);
    --window->locks;
    return leave_part(window, target, code, err);
}

int
wm_window_lock_all(wm_window_t *window, bool checked, wm_error_t *err)
{
    int code = check_free(window, "Lock_all", err), locked = 0;
    if (code < 0)
        return code;
    window->locked_all = true;
    for (; locked < window->size && code == 0; ++locked)
        code = take_part(window, locked, false, checked, err);
    for (int i = 0; i < locked - 1 && code < 0; ++i)
        (void)!leave_part(window, i, code, err);
    window->locked_all = code == 0;
    window->fenced &= code < 0;
    return code;
}

int
wm_window_unlock_all(wm_window_t *window, wm_error_t *err)
{
    if (!window->locked_all)
        return sync_fail(err, "Unlock_all", "call Lock_all first");
    int code = wm_window_complete(window, err);
    for (int rank = 0; rank < window->size; ++rank)
        code = leave_part(window, rank, code, err);
    window->locked_all = false;
    return code;
}

// --- Post, Start, Complete, Wait ----------------------------------------

static int
look_at_start(void *context, wm_error_t *err)
{
    wm_window_t *window = context;
    (void)err;
    return wm_epochs_try(window->epochs, WM_EPOCHS_START);
}

static int
look_at_end(void *context, wm_error_t *err)
{
    wm_window_t *window = context;
    (void)err;
    return wm_epochs_try(window->epochs, WM_EPOCHS_WAIT);
}

// Tells the ranks that were posted to (WM_WINDOW_POSTED), or accessed
// (WM_WINDOW_COMPLETED), by an empty message.
static int
tell_ranks(wm_window_t *window, wm_window_notice_t what, wm_error_t *err)
{
    int code = 0;
    wm_op_t *op;
    wm_envelope_t envelope = {.tag = (int)what, .stream_device = -1};
    for (int rank = 0; rank < window->size && code == 0; ++rank) {
        const wm_window_part_t *part = &window->parts[rank];
        wm_buffer_t none = {.memory = {.device = -1}};
        if (what == WM_WINDOW_POSTED ? !part->posted : !part->started)
            continue;
        envelope.rank = rank;
        code = wm_send_begin(window->comm, &none, &envelope, &op, err);
        if (code == 0)
            wm_op_release(op); // it ends by itself
    }
    return code;
}

// Begins to receive such messages from the ranks that access us
// (WM_WINDOW_COMPLETED), or that we access.
static int
expect_ranks(wm_window_t *window, wm_window_notice_t what, wm_error_t *err)
{
    int code = 0;
    wm_envelope_t envelope = {.tag = (int)what, .stream_device = -1};
    for (int rank = 0; rank < window->size && code == 0; ++rank) {
        wm_window_part_t *part = &window->parts[rank];
        wm_buffer_t none = {.memory = {.device = -1}};
        if ((what == WM_WINDOW_POSTED ? !part->started : !part->posted)
            || part->notices[what] != NULL)
            continue;
        envelope.rank = rank;
        code = wm_receive_begin(window->comm, &none, &envelope,
                                &part->notices[what], err);
    }
    return code;
}

// Waits for these messages, unless interrupted: then they are still expected.
static int
hear_ranks(wm_window_t *window, wm_window_notice_t what, wm_error_t *err)
{
    wm_error_t later;
    int code = expect_ranks(window, what, err);
    for (int rank = 0; rank < window->size && code != WM_ERR_PYTHON; ++rank) {
        wm_op_t *op = window->parts[rank].notices[what];
        int ended = op != NULL
                        ? wait_unlocked_for(window, op, window->interrupted,
                                            code < 0 ? &later : err)
                        : 0;
        code = code < 0 ? code : ended;
    }
    for (int rank = 0; rank < window->size && code != WM_ERR_PYTHON; ++rank)
        wm_window_drop_notice(&window->parts[rank], what);
    return code;
}

static bool
have_ranks_completed(wm_window_t *window)
{
    bool all = true;
    wm_engine_look(NULL);
    for (int rank = 0; rank < window->size && all; ++rank) {
        const wm_op_t *op = window->parts[rank].notices[WM_WINDOW_COMPLETED];
        all = op == NULL || atomic_load(&op->done) != 0;
    }
    return all;
}

void
wm_window_drop_notice(wm_window_part_t *part, wm_window_notice_t what)
{
    wm_op_t *op = part->notices[what];
    part->notices[what] = NULL;
    if (op == NULL)
        return;
    if (atomic_load(&op->done) == 0)
        (void)wm_op_cancel(op);
    wm_op_release(op);
}

static int
check_post(const wm_window_t *window, wm_error_t *err)
{
    if (window->posted)
        return sync_fail(err, "Post", "the last Post has no Wait yet");
    return window->fenced && window->used
               ? sync_fail(err, "Post",
                           "calls were made after the last Fence: call "
                           "Fence(MPI.MODE_NOSUCCEED) first")
               : 0;
}

int
wm_window_post(wm_window_t *window, const int *ranks, int count,
               wm_error_t *err)
{
    int code = check_post(window, err);
    if (code < 0)
        return code;
    for (int i = 0; i < count; ++i)
        window->parts[ranks[i]].posted = true;
    window->posted = true;
    if (window->epochs == NULL) {
        code = expect_ranks(window, WM_WINDOW_COMPLETED, err);
        return code < 0 ? code : tell_ranks(window, WM_WINDOW_POSTED, err);
    }
    for (int i = 0; i < window->size; ++i)
        window->epochs->neighbors[i].accesses_us = window->parts[i].posted;
    (void)wm_epochs_try(window->epochs, WM_EPOCHS_POST);
    return 0;
}

int
wm_window_start(wm_window_t *window, const int *ranks, int count,
                wm_error_t *err)
{
    int code = check_free(window, "Start", err);
    if (code < 0)
        return code;
    for (int i = 0; i < count; ++i)
        window->parts[ranks[i]].started = true;
    for (int i = 0; i < window->size && window->epochs != NULL; ++i)
        window->epochs->neighbors[i].is_accessed = window->parts[i].started;
    window->started = true;
    code = window->epochs == NULL
               ? hear_ranks(window, WM_WINDOW_POSTED, err)
               : wait_unlocked(window, look_at_start, window, err);
    window->started = code != WM_ERR_PYTHON;
    window->fenced &= !window->started;
    for (int i = 0; i < count && !window->started; ++i)
        window->parts[ranks[i]].started = false;
    return code;
}

int
wm_window_end_access(wm_window_t *window, wm_error_t *err)
{
    wm_error_t later;
    if (!window->started)
        return sync_fail(err, "Complete", "call Start first");
    int code = wm_window_complete(window, err), told = 0;
    if (window->epochs == NULL)
        told = tell_ranks(window, WM_WINDOW_COMPLETED,
                          code < 0 ? &later : err);
    else
        (void)wm_epochs_try(window->epochs, WM_EPOCHS_COMPLETE);
    for (int i = 0; i < window->size; ++i)
        window->parts[i].started = false;
    window->started = false;
    return code < 0 ? code : told;
}

int
wm_window_wait(wm_window_t *window, bool *ended, wm_error_t *err)
{
    bool targets = window->epochs == NULL;
    if (!window->posted)
        return sync_fail(err, ended != NULL ? "Test" : "Wait",
                         "call Post first");
    int code = 0;
    if (ended != NULL) {
        *ended = targets ? have_ranks_completed(window)
                         : wm_epochs_try(window->epochs, WM_EPOCHS_WAIT);
        if (!*ended)
            return 0;
    }
    if (targets)
        code = hear_ranks(window, WM_WINDOW_COMPLETED, err);
    else if (ended == NULL)
        code = wait_unlocked(window, look_at_end, window, err);
    if (code == WM_ERR_PYTHON)
        return code;
    for (int i = 0; i < window->size; ++i)
        window->parts[i].posted = false;
    window->posted = false;
    return code;
}

// --- on a stream of the program -------------------------------------------

// Lets streams set and await our words and those of the others.
static int
epochs_to_streams(wm_window_t *window, int device, wm_error_t *err)
{
    int code = 0;
    if (window->epochs == NULL || window->target != NULL)
        return wm_error_set(err, WM_ERR_STATE, 0,
                            "on a stream, Post, Start, Complete and Wait are "
                            "for windows whose GPU memory all ranks of one "
                            "host reach, and for 32768 neighbours in windows "
                            "and halos at a time: call the window itself");
    if (window->on_streams)
        return 0;
    wm_engine_lock();
    for (int i = 0; i < window->size && code == 0; ++i) {
        const wm_epochs_neighbor_t *one = &window->epochs->neighbors[i];
        const wm_epoch_words_t *first = one->peer->segment->epoch_words;
        code = wm_epochs_connect(window->epochs, i, (int)(one->its - first),
                                 device, err);
    }
    wm_engine_unlock();
    window->on_streams = code == 0;
    return code;
}

static int
check_order(const wm_window_t *window, unsigned call, wm_error_t *err)
{
    if (call == WM_EPOCHS_POST)
        return check_post(window, err);
    if (call == WM_EPOCHS_START)
        return check_free(window, "Start", err);
    if (call == WM_EPOCHS_COMPLETE && !window->started)
        return sync_fail(err, "Complete", "call Start first");
    return call == WM_EPOCHS_WAIT && !window->posted
               ? sync_fail(err, "Wait", "call Post first")
               : 0;
}

// Returns what tells if a rank takes part in the epoch that a call is of.
static bool *
part_is_in(wm_window_t *window, int rank, unsigned call)
{
    wm_window_part_t *part = &window->parts[rank];
    return call == WM_EPOCHS_POST || call == WM_EPOCHS_WAIT ? &part->posted
                                                            : &part->started;
}

int
wm_window_epochs_on(wm_window_t *window, unsigned call, const int *ranks,
                    int count, int device, CUstream stream, wm_error_t *err)
{
    bool posts = call == WM_EPOCHS_POST, starts = call == WM_EPOCHS_START;
    bool ends = call == WM_EPOCHS_COMPLETE || call == WM_EPOCHS_WAIT;
    uint64_t capture;
    int code = wm_window_check_stream(window, device, err);
    if (code == 0)
        code = check_order(window, call, err);
    if (code == 0)
        code = epochs_to_streams(window, device, err);
    if (code == 0)
        code = call == WM_EPOCHS_COMPLETE
                   ? wm_window_precede(window, device, stream, err)
                   : wm_window_keep(window, device, stream, &capture, err);
    if (code < 0)
        return code;
    for (int i = 0; i < count; ++i)
        *part_is_in(window, ranks[i], call) = true;
    for (int i = 0; i < window->size; ++i) {
        wm_epochs_neighbor_t *one = &window->epochs->neighbors[i];
        one->accesses_us = window->parts[i].posted;
        one->is_accessed = window->parts[i].started;
    }
    code = wm_epochs_enqueue(window->epochs, call, device, stream, err);
    bool open = (code == 0) != ends;
    for (int i = 0; i < window->size && !open; ++i)
        *part_is_in(window, i, call) = false;
    if (posts || call == WM_EPOCHS_WAIT)
        window->posted = open;
    else
        window->started = open;
    if (code < 0 || !starts)
        return code;
    window->fenced = false;
    return wm_window_follow(window, device, stream, err);
}

int
wm_window_fence_on(wm_window_t *window, bool begins, int code, int device,
                   CUstream stream, wm_error_t *err)
{
    const wm_coll_t barrier = {.kind = WM_COLL_BARRIER};
    if (!wm_comm_is_one_host(window->comm)) // messages would not be waited for
        return wm_error_set(err, WM_ERR_VALUE, 0,
                            "a Fence on a stream needs all ranks on one host, "
                            "able to open each other's shared memory: call "
                            "Fence of the window itself");
    if (code == 0)
        code = wm_window_check_stream(window, device, err);
    if (code == 0)
        code = check_fence(window, err);
    if (code == 0)
        code = wm_window_precede(window, device, stream, err);
    wm_error_t told = {.code = code};
    int met = wm_coll_on_stream_call(window->comm, WM_COLL_BARRIER,
                                     code == 0 ? &barrier : NULL, device,
                                     stream, code == 0 ? err : &told);
    if (code < 0 || met < 0)
        return code < 0 ? code : met;
    window->fenced = begins;
    return wm_window_follow(window, device, stream, err);
}

// SPDX-License-Identifier: BSD-3-Clause
#include "comm/rma/window_sync.h"

#include "comm/coll/call/coll_wait.h"
#include "comm/coll/direct/preflight.h"
#include "comm/rma/window_run.h"

static int
sync_fail(wm_error_t *err, const char *call, const char *why)
{
    return wm_error_set(err, WM_ERR_MPI, MPI_ERR_RMA_SYNC, "%s: %s", call,
                        why);
}

// --- checks -------------------------------------------------------------

int
wm_window_check_epoch(wm_window_t *window, int target, const char *call,
                      wm_error_t *err)
{
    bool fenced = window->fenced && window->locks == 0 && !window->started;
    if (window->parts[target].held != WM_WINDOW_UNLOCKED || window->locked_all
        || (window->started && window->epochs->neighbors[target].is_accessed))
        return 0;
    window->used |= fenced;
    return fenced ? 0
                  : sync_fail(err, call,
                              "outside of an epoch: call Fence on all ranks, "
                              "or Lock, Lock_all or Start for the target "
                              "first");
}

int
wm_window_check_held(const wm_window_t *window, int target, const char *call,
                     wm_error_t *err)
{
    if (window->locked_all
        || (target < 0 ? window->locks > 0
                       : window->parts[target].held != WM_WINDOW_UNLOCKED))
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

int
wm_window_fence(wm_window_t *window, bool begins, int code, wm_error_t *err)
{
    if (code == 0) {
        window->used = false;
        code = window->posted ? sync_fail(err, "Fence", "Post has no Wait yet")
                              : check_free(window, "Fence", err);
    }
    if (code == 0)
        code = wm_window_complete(window, err);
    code = sync_all_ranks(window, "Fence", code, err);
    if (code == 0)
        window->fenced = begins;
    return code;
}

int
wm_window_end(wm_window_t *window, int code, wm_error_t *err)
{
    if (code == 0) {
        window->used = false;
        code = window->posted ? sync_fail(err, "Free", "Post has no Wait yet")
                              : check_free(window, "Free", err);
    }
    if (code == 0)
        code = wm_window_complete(window, err);
    return sync_all_ranks(window, "Free", code, err);
}

// --- Lock ---------------------------------------------------------------

typedef struct {
    wm_window_words_t *words;
    uint32_t ticket;
    bool exclusive;
} asked_t;

static int
look_at_lock(void *context, wm_error_t *err)
{
    const asked_t *asked = context;
    (void)err;
    return wm_window_lock_try(asked->words, asked->ticket, asked->exclusive);
}

static int
take_part(wm_window_t *window, int target, bool exclusive, bool checked,
          wm_error_t *err)
{
    wm_window_part_t *part = &window->parts[target];
    asked_t asked = {.words = part->words, .exclusive = exclusive};
    int code = 0;
    if (checked) {
        asked.ticket = wm_window_lock_ask(part->words);
        code = wm_coll_wait(window->comm, look_at_lock, &asked,
                            WM_LOOKS_AT_WORDS, err);
    }
    if (code == 0)
        part->held = !checked    ? WM_WINDOW_UNCHECKED
                     : exclusive ? WM_WINDOW_EXCLUSIVE
                                 : WM_WINDOW_SHARED;
    return code;
}

static void
leave_part(wm_window_part_t *part)
{
    if (part->held != WM_WINDOW_UNCHECKED)
        wm_window_lock_leave(part->words, part->held == WM_WINDOW_EXCLUSIVE);
    part->held = WM_WINDOW_UNLOCKED;
}

int
wm_window_lock_part(wm_window_t *window, int target, bool exclusive,
                    bool checked, wm_error_t *err)
{
    int code = window->parts[target].held != WM_WINDOW_UNLOCKED ? sync_fail(
                   err, "Lock", "this rank has locked the target already")
               : window->locks > 0 ? 0
                                   : check_free(window, "Lock", err);
    if (code == 0)
        code = take_part(window, target, exclusive, checked, err);
    if (code < 0)
        return code;
    window->fenced = false;
    ++window->locks;
    return 0;
}

int
wm_window_unlock_part(wm_window_t *window, int target, wm_error_t *err)
{
    if (window->locked_all || window->parts[target].held == WM_WINDOW_UNLOCKED)
        return sync_fail(err, "Unlock",
                         "this rank has not locked the target by Lock");
    int code = wm_window_complete(window, err);
    leave_part(&window->parts[target]);
    --window->locks;
    return code;
}

int
wm_window_lock_all(wm_window_t *window, bool checked, wm_error_t *err)
{
    int code = check_free(window, "Lock_all", err), locked = 0;
    for (; locked < window->size && code == 0; ++locked)
        code = take_part(window, locked, false, checked, err);
    if (code == 0) {
        window->locked_all = true;
        window->fenced = false;
    }
    return code;
}

int
wm_window_unlock_all(wm_window_t *window, wm_error_t *err)
{
    if (!window->locked_all)
        return sync_fail(err, "Unlock_all", "call Lock_all first");
    int code = wm_window_complete(window, err);
    for (int rank = 0; rank < window->size; ++rank)
        leave_part(&window->parts[rank]);
    window->locked_all = false;
    return code;
}

// --- Post, Start, Complete, Wait ----------------------------------------

static int
check_epochs(const wm_window_t *window, const char *call, wm_error_t *err)
{
    return window->epochs != NULL
               ? 0
               : wm_error_set(err, WM_ERR_STATE, 0,
                              "%s: this window has no words for such epochs, "
                              "as too many windows and halos are in use: free "
                              "some before it is made",
                              call);
}

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

int
wm_window_post(wm_window_t *window, const int *ranks, int count,
               wm_error_t *err)
{
    int code = check_epochs(window, "Post", err);
    if (code == 0 && window->posted)
        code = sync_fail(err, "Post", "the last Post has no Wait yet");
    if (code < 0)
        return code;
    for (int i = 0; i < window->size; ++i)
        window->epochs->neighbors[i].accesses_us = false;
    for (int i = 0; i < count; ++i)
        window->epochs->neighbors[ranks[i]].accesses_us = true;
    window->posted = true;
    (void)wm_epochs_try(window->epochs, WM_EPOCHS_POST);
    return 0;
}

int
wm_window_start(wm_window_t *window, const int *ranks, int count,
                wm_error_t *err)
{
    int code = check_epochs(window, "Start", err);
    if (code == 0)
        code = check_free(window, "Start", err);
    if (code < 0)
        return code;
    for (int i = 0; i < window->size; ++i)
        window->epochs->neighbors[i].is_accessed = false;
    for (int i = 0; i < count; ++i)
        window->epochs->neighbors[ranks[i]].is_accessed = true;
    code = wm_coll_wait(window->comm, look_at_start, window, WM_LOOKS_AT_WORDS,
                        err);
    if (code == 0) {
        window->started = true;
        window->fenced = false;
    }
    return code;
}

int
wm_window_end_access(wm_window_t *window, wm_error_t *err)
{
    if (!window->started)
        return sync_fail(err, "Complete", "call Start first");
    int code = wm_window_complete(window, err);
    (void)wm_epochs_try(window->epochs, WM_EPOCHS_COMPLETE);
    window->started = false;
    return code;
}

int
wm_window_wait(wm_window_t *window, bool *ended, wm_error_t *err)
{
    if (!window->posted)
        return sync_fail(err, ended != NULL ? "Test" : "Wait",
                         "call Post first");
    int code = 0;
    if (ended != NULL)
        *ended = wm_epochs_try(window->epochs, WM_EPOCHS_WAIT);
    else
        code = wm_coll_wait(window->comm, look_at_end, window,
                            WM_LOOKS_AT_WORDS, err);
    if (code == 0 && (ended == NULL || *ended))
        window->posted = false;
    return code;
}

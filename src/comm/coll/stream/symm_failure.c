// SPDX-License-Identifier: BSD-3-Clause
// Failures of collectives through symmetric memory: a rank learns of a failure
// that another has published, or publishes its own; captured calls meet before
// they are captured; peers are released from waits that would not end.
#include "comm/coll/call/coll_wait.h"
#include "comm/coll/stream/symm_state.h"
#include "comm/comm/failure.h"
#include "comm/node/stream_words.h"
#include "cuda/lock.h"

void
wm_symm_set_lost(wm_symm_t *symm)
{
    if (symm->lost.code == 0)
        symm->lost_at = symm->signatures.calls;
    wm_error_set(&symm->lost, WM_ERR_STATE, 0,
                 "an earlier collective on a stream failed on this rank, and "
                 "its error said why: that collective and later ones were not "
                 "done; remove the cause, and make them again on all ranks");
}

int
wm_symm_find_dead(const wm_symm_t *symm, wm_error_t *err)
{
    int dead = wm_stream_words_dead(symm->barrier);
    if (dead < 0)
        return 0;
    // Another rank may have found the dead one first.
    (void)wm_stream_words_poison(symm->barrier, dead);
    return wm_failure_set(symm->comm, dead, err);
}

// Raises a failure that another rank has published. Our calls fail until the
// next one recovers.
static int
symm_learn_failure(wm_symm_t *symm, wm_error_t *err)
{
    uint32_t first;
    int code = wm_signatures_find_failure(&symm->signatures, &first, err);
    if (code == 0)
        return 0;
    symm->lost = *err;
    symm->lost_at = first;
    wm_symm_leave_by_own(symm, symm->signatures.calls);
    return code;
}

// Raises if `call`, which has ended, or a call before it has failed. The
// failure of a later call is left to whoever waits for that call.
static int
symm_look_at(wm_symm_t *symm, uint32_t call, wm_error_t *err)
{
    uint32_t first;
    int code = wm_signatures_find_failure(&symm->signatures, &first, err);
    if (symm->lost.code < 0 && symm->lost_at <= call) {
        *err = symm->lost;
        return symm->lost.code;
    }
    if (code == 0 || first > call)
        return 0;
    return symm->lost.code < 0 ? code : symm_learn_failure(symm, err);
}

int
wm_symm_look(wm_symm_t *symm, uint64_t place, wm_error_t *err)
{
    uint32_t epoch = (uint32_t)(place >> 32), call = (uint32_t)place;
    int code = 0;
    if (pthread_mutex_trylock(&symm->lock) != 0)
        return 1;
    if (epoch == symm->epoch) {
        code = wm_symm_find_dead(symm, err);
        if (code == 0)
            code = symm_look_at(symm, call, err);
    }
    else if (epoch + 1 != symm->epoch || symm->former_at <= call) {
        *err = symm->former;
        code = symm->former.code;
    }
    pthread_mutex_unlock(&symm->lock);
    return code;
}

int
wm_symm_find_failure(wm_symm_t *symm, wm_error_t *err)
{
    if (symm == NULL || !wm_signatures_may_fail(&symm->signatures))
        return 0;
    wm_lock(&symm->lock);
    int code = symm->lost.code < 0 ? 0 : symm_learn_failure(symm, err);
    pthread_mutex_unlock(&symm->lock);
    return code;
}

void
wm_symm_fail(wm_symm_t *symm)
{
    wm_lock(&symm->lock);
    wm_symm_set_lost(symm);
    wm_signatures_fail(&symm->signatures, symm->signatures.calls,
                       WM_SIGNATURES_REFUSED);
    wm_symm_leave_by_own(symm, symm->signatures.calls);
    pthread_mutex_unlock(&symm->lock);
}

typedef struct {
    const wm_symm_t *symm;
    const char *name;
    bool mixed;
} captures_t;

static int
look_for_captures(void *context, wm_error_t *err)
{
    captures_t *captures = context;
    const wm_symm_t *symm = captures->symm;
    return wm_signatures_all_capture(&symm->signatures, captures->name,
                                     &captures->mixed, err);
}

// Refuses a captured call. With `mixed`, releases the rank that has made the
// call without a capture; that rank learns the reason from our failure.
static void
refuse_capture(wm_symm_t *symm, bool mixed)
{
    wm_lock(&symm->lock);
    wm_signatures_refuse_capture(&symm->signatures, mixed);
    if (mixed) {
        uint32_t last = symm->signatures.calls;
        wm_signatures_fail(&symm->signatures, last + 1,
                           WM_SIGNATURES_CAPTURES);
        (void)!wm_signatures_begin(&symm->signatures, NULL, NULL);
        if (symm->lost.code == 0)
            wm_symm_leave_by_own(symm, last);
        wm_symm_set_lost(symm);
    }
    pthread_mutex_unlock(&symm->lock);
}

int
wm_symm_arrive_captured(wm_symm_t *symm, const char *name, wm_error_t *err)
{
    captures_t captures = {symm, name, false};
    wm_lock(&symm->lock);
    wm_signatures_capture(&symm->signatures);
    int code = symm->lost.code < 0 ? 0 : symm_learn_failure(symm, err);
    pthread_mutex_unlock(&symm->lock);
    if (code == 0)
        code = wm_coll_wait(symm->comm, look_for_captures, &captures,
                            WM_LOOKS_AT_WORDS, err);
    if (code < 0)
        refuse_capture(symm, captures.mixed);
    return code;
}

// Releases peers in a call in which ranks differ, as kernels may wait for each
// other in vain: we send nothing more in that call.
static void
leave_amiss(const wm_symm_t *symm)
{
    uint32_t at = wm_stream_word_at(symm->barrier),
             last = symm->signatures.calls;
    // If our stream is between calls, the next one counts.
    bool between = at == 0 || (at & 0xffff) == WM_SYMM_ENDED;
    uint32_t call = last - (uint16_t)(last - (at >> 16)) + between;
    if (call <= last && wm_signatures_differ(&symm->signatures, call))
        wm_stream_word_leave_from(symm->barrier, at,
                                  (call << 16) + WM_SYMM_ENDED - 1);
}

bool
wm_symm_leave(wm_symm_t *symm)
{
    bool ended = wm_stream_word_is_kept(symm->barrier);
    if (ended)
        wm_symm_leave_by_host(symm);
    return ended;
}

void
wm_symm_release_peers(wm_symm_t *symm)
{
    wm_error_t unused;
    uint32_t first;
    bool ended = wm_stream_word_is_kept(symm->barrier);
    if ((ended && wm_stream_words_dead(symm->barrier) < 0)
        || pthread_mutex_trylock(&symm->lock) != 0)
        return;
    if (ended)
        wm_symm_leave_by_host(symm);
    else {
        if (symm->kernel_coll)
            leave_amiss(symm);
        // Publishes what only this rank can find. A later call raises it.
        if (wm_signatures_may_fail(&symm->signatures))
            (void)!wm_signatures_find_failure(&symm->signatures, &first,
                                              &unused);
    }
    pthread_mutex_unlock(&symm->lock);
}

// SPDX-License-Identifier: BSD-3-Clause
// Failures of collectives through symmetric memory: a rank learns of a failure
// that another has published, or publishes its own; first captured calls meet,
// and replays are compared; peers are released from waits that would not end.
#include <stdio.h>

#include "comm/coll/call/coll_wait.h"
#include "comm/coll/stream/symm_state.h"
#include "comm/comm/failure.h"
#include "comm/engine/engine.h"
#include "comm/engine/hash.h"
#include "comm/node/stream_words.h"
#include "cuda/lock.h"
#include "cuda/settings.h"

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

#define PAUSE_US 1000000 // a wait that is not seen for so long has ended

// A mark has the kind of a call, its number in the graph, and a hash of both
// and of its arguments.
#define KIND_SHIFT 56
#define NUMBER_SHIFT 40
#define KIND_OF(mark) ((wm_coll_kind_t)((mark) >> KIND_SHIFT))
#define NUMBER_OF(mark) ((unsigned)(uint16_t)((mark) >> NUMBER_SHIFT))

int
wm_symm_mark_captured(wm_symm_t *symm, const wm_coll_desc_t *desc,
                      wm_graph_marks_t *marks, wm_error_t *err)
{
    uint64_t mark = (uint64_t)desc->call->kind << KIND_SHIFT
                    | (uint64_t)(uint16_t)++symm->marks << NUMBER_SHIFT;
    symm->turns = 0; // ranks come to a mark after any number of calls
    mark |= wm_hash(wm_coll_desc_hash(desc), mark) >> (64 - NUMBER_SHIFT);
    return wm_graph_marks_new(symm, symm->device, symm->stream, mark,
                              symm->size, marks, err);
}

static void
set_difference(wm_error_t *err, int rank, uint64_t own, uint64_t its)
{
    char other[96] = "another call";
    if (own >> NUMBER_SHIFT == its >> NUMBER_SHIFT)
        snprintf(other, sizeof other, "other counts, types, op or root");
    else if (its != 0)
        snprintf(other, sizeof other, "%s, call %u of a graph",
                 wm_call_name(KIND_OF(its)), NUMBER_OF(its));
    wm_error_set(err, WM_ERR_STATE, 0,
                 "the ranks replay different collectives of CUDA graphs: "
                 "where this rank has %s, call %u of a graph, rank %d has %s: "
                 "all must launch graphs of the same calls in the same order; "
                 "this communicator makes no more calls on streams, but "
                 "another one may (Dup)",
                 wm_call_name(KIND_OF(own)), NUMBER_OF(own), rank, other);
}

// Sets the failure if a rank has refused a captured call, which its graph
// lacks. Returns true if so.
static bool
set_refusal(wm_symm_t *symm, int rank)
{
    char text[WM_GRAPH_REFUSAL_BYTES];
    if (!wm_graph_words_find_refusal(symm->barrier, rank, text))
        return false;
    wm_error_set(&symm->lost, WM_ERR_STATE, 0,
                 "a CUDA graph waits for a collective that rank %d refused "
                 "when it was captured, and whose graph lacks it: %s. This "
                 "communicator makes no more calls on streams, but another "
                 "one may (Dup)",
                 rank, text);
    return true;
}

// Sets the failure that another rank has found.
static void
set_told(wm_symm_t *symm)
{
    for (int i = 1; i <= symm->size; ++i) // this rank's own is the last
        if (set_refusal(symm, (symm->rank + i) % symm->size))
            return;
    wm_error_set(&symm->lost, WM_ERR_STATE, 0,
                 "the ranks replay different collectives of CUDA graphs: the "
                 "error of another rank tells how");
}

// Sets the failure if replays differ, and then ends the kernels of graphs,
// which may differ in what they wait for. Returns true while these move on.
// Lock held.
static bool
end_replays(wm_symm_t *symm)
{
    int rank, differ = WM_WORDS_DIFFER(symm->size);
    uint64_t own, its;
    if (symm->lost.code == 0 && wm_graph_marks_differ(symm, &rank, &own, &its))
        set_difference(&symm->lost, rank, own, its);
    else if (symm->lost.code == 0
             && wm_stream_words_dead(symm->barrier) == differ)
        set_told(symm);
    return symm->lost.code < 0
           && wm_stream_words_poison(symm->barrier, differ);
}

bool
wm_symm_end_replays(wm_symm_t *symm)
{
    if (pthread_mutex_trylock(&symm->lock) != 0)
        return true;
    bool moved = end_replays(symm);
    pthread_mutex_unlock(&symm->lock);
    return moved;
}

// The looks of a kernel's threads differ, as some wait behind other work. A
// wait is another one if all have looked less often than half of what was
// seen.
int
wm_symm_find_wait(wm_symm_t *symm, int64_t now, int64_t *waited)
{
    bool begun;
    uint32_t looks;
    int rank = wm_graph_words_awaited(symm->barrier, &looks, &begun);
    if (rank >= 0 && looks >= symm->looks / 2)
        symm->looked_at = now;
    if (begun || (rank >= 0 && now - symm->looked_at > PAUSE_US)) {
        symm->awaited_since = now;
        symm->looks = 0;
    }
    if (rank < 0)
        return -1;
    if (now - symm->awaited_at > PAUSE_US)
        symm->awaited_since = now;
    symm->awaited_at = now;
    symm->looks = looks > symm->looks ? looks : symm->looks;
    *waited = now - symm->awaited_since;
    return rank;
}

bool
wm_symm_tells_wait(wm_symm_t *symm, int64_t now)
{
    if (symm->reported != 0 && now - symm->reported < WM_REPORT_AGAIN_US)
        return false;
    symm->reported = now;
    return true;
}

void
wm_symm_refuse_captured(wm_symm_t *symm, uint64_t capture,
                        const wm_error_t *err)
{
    wm_lock(&symm->lock);
    wm_symm_count_capture(symm, capture);
    wm_graph_words_refuse(symm->barrier, symm->captures, err->text);
    pthread_mutex_unlock(&symm->lock);
}

// Other calls of that graph may have met calls of others' graphs that were
// meant for the lacking one, so the communicator does not go on.
void
wm_symm_end_refused(wm_symm_t *symm, int rank)
{
    if (pthread_mutex_trylock(&symm->lock) != 0)
        return;
    if (symm->lost.code < 0
        || (wm_graph_words_may_lack(symm->barrier, rank, symm->captures)
            && set_refusal(symm, rank)))
        (void)end_replays(symm);
    pthread_mutex_unlock(&symm->lock);
}

// Raises, once, that replays differ.
static int
find_difference(wm_symm_t *symm, wm_error_t *err)
{
    int code = 0;
    wm_lock(&symm->lock);
    (void)end_replays(symm);
    if (symm->lost.code < 0 && !symm->raised) {
        symm->raised = true;
        *err = symm->lost;
        code = err->code;
    }
    pthread_mutex_unlock(&symm->lock);
    return code;
}

int
wm_symm_find_dead(const wm_symm_t *symm, wm_error_t *err)
{
    int dead = wm_stream_words_dead(symm->barrier);
    if (dead < 0)
        return 0;
    // Another rank may have found the dead one first.
    (void)wm_stream_words_poison(symm->barrier, dead);
    if (dead != WM_WORDS_DIFFER(symm->size))
        return wm_failure_set(symm->comm, dead, err);
    wm_symm_t *graphs = symm->comm->graph_symm;
    if (graphs != symm)
        wm_lock(&graphs->lock);
    (void)end_replays(graphs);
    *err = graphs->lost;
    if (graphs != symm)
        pthread_mutex_unlock(&graphs->lock);
    return err->code;
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
    if (symm != NULL && symm->captured) // marks may differ unseen
        return !wm_setting_is_on(WM_SETTING_CHECK)
                       && wm_stream_words_dead(symm->barrier) < 0
                   ? 0
                   : find_difference(symm, err);
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

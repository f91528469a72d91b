// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/agreement.h"

static const char *const call_names[] = {"another",
#define X(NAME, name) [WM_CALL_##NAME] = name,
                                         WM_CALLS(X)
#undef X
};

// What the ranks exchange before anything is begun, and at the end
// where a rank stages, since one whose copy fails still takes part.
enum {
    FAILED, // 1 + a rank that did
    STAGES,
    CALL,
    MINUS_CALL,
    NOTICES,   // to be heeded
    INCAPABLE, // of staying on the GPUs
    SYMM_NOT,  // it cannot go by symmetric memory
};

_Static_assert(SYMM_NOT + 1 == WM_AGREE_VALUES, "there is room for each");
_Static_assert(sizeof(wm_published_t) <= WM_AGREE_BYTES, "likewise");

const char *
wm_call_name(wm_call_kind_t kind)
{
    bool known = (unsigned)kind < WM_CALL_KINDS;
    return call_names[known ? kind : WM_CALL_UNKNOWN];
}

static int
compare(const wm_agreement_t *mine, const int64_t *most, wm_error_t *err)
{
    int64_t one = -most[MINUS_CALL], other = most[CALL];
    if (one == other)
        return 0;
    return wm_error_set(err, WM_ERR_TYPE, 0,
                        "the ranks are in different collectives, %s and %s "
                        "among them, this one in %s: all must make the same "
                        "calls in the same order",
                        wm_call_name((wm_call_kind_t)one),
                        wm_call_name((wm_call_kind_t)other),
                        call_names[mine->call]);
}

static void
fill(const wm_comm_t *comm, const wm_agreement_t *agreement, int64_t *most)
{
    const wm_native_t *native = agreement->native;
    most[FAILED] = agreement->code < 0 ? comm->rank + 1 : 0;
    most[STAGES] = agreement->stages;
    most[CALL] = (int64_t)agreement->call;
    most[MINUS_CALL] = -most[CALL];
    most[NOTICES] = agreement->notices;
    most[INCAPABLE] = native == NULL || !native->capable;
    most[SYMM_NOT] = !agreement->symm;
}

// Returns what is published; borrowed.
static const void *
published_of(const wm_agreement_t *agreement, size_t *nbytes)
{
    const wm_native_t *native = agreement->native;
    bool publishes = native != NULL && (native->capable || agreement->symm);
    *nbytes = publishes ? agreement->nbytes : 0;
    return publishes ? &native->published : NULL;
}

static int
conclude(const wm_comm_t *comm, wm_agreement_t *agreement, const int64_t *most,
         int exchanged, wm_error_t *err)
{
    int code = agreement->code;
    agreement->stages = most[STAGES] != 0;
    agreement->notices = most[NOTICES] != 0;
    agreement->stays = most[INCAPABLE] == 0;
    agreement->symm = most[SYMM_NOT] == 0;
    if (code < 0 || exchanged < 0)
        return code < 0 ? code : exchanged;
    if (most[FAILED] != 0)
        return wm_error_set(err, WM_ERR_CUDA, 0,
                            "%s failed in this collective: its error tells "
                            "why",
                            wm_comm_name(comm, (int)most[FAILED] - 1).text);
    return compare(agreement, most, err);
}

void
wm_agreement_publish(const wm_comm_t *comm, wm_barrier_t *barrier,
                     const wm_agreement_t *agreement)
{
    wm_agree_t agreed;
    size_t nbytes;
    const void *published = published_of(agreement, &nbytes);
    fill(comm, agreement, agreed.values);
    wm_agree_publish(barrier, &agreed, published, nbytes);
}

int
wm_agreement_conclude(const wm_comm_t *comm, const wm_barrier_t *barrier,
                      wm_agreement_t *agreement, wm_error_t *err)
{
    wm_agree_t agreed;
    fill(comm, agreement, agreed.values);
    wm_agree_merge(barrier, &agreed);
    return conclude(comm, agreement, agreed.values, 0, err);
}

typedef int
agree_t(wm_comm_t *comm, wm_agree_t *agreed, const void *published,
        size_t nbytes, wm_error_t *err);

static int
make(wm_comm_t *comm, wm_agreement_t *agreement, agree_t *agree,
     wm_error_t *err)
{
    wm_agree_t agreed;
    wm_error_t later;
    size_t nbytes;
    const void *published = published_of(agreement, &nbytes);
    fill(comm, agreement, agreed.values);
    int exchanged = agree(comm, &agreed, published, nbytes,
                          agreement->code < 0 ? &later : err);
    return exchanged > 0
               ? 1
               : conclude(comm, agreement, agreed.values, exchanged, err);
}

int
wm_agreement_make(wm_comm_t *comm, wm_agreement_t *agreement, wm_error_t *err)
{
    return make(comm, agreement, wm_agree_exchange, err);
}

int
wm_agreement_ask(wm_comm_t *comm, wm_agreement_t *agreement, wm_error_t *err)
{
    return make(comm, agreement, wm_agree_ask, err);
}

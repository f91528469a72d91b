// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/direct/preflight.h"

// Numbers that ranks exchange before a call, besides the bits of `all`.
enum {
    FAILED, // 1 + a rank that has failed
    CALL,
    MINUS_CALL,
    NOTICES, // some rank has posted notices
};

_Static_assert(NOTICES + 1 == WM_PREFLIGHT_VALUES, "there is room for each");
_Static_assert(sizeof(wm_published_t) <= WM_PREFLIGHT_BYTES, "likewise");

static int
preflight_compare(const wm_preflight_t *mine, const int64_t *most,
                  wm_error_t *err)
{
    int64_t one = -most[MINUS_CALL], other = most[CALL];
    if (one == other)
        return 0;
    return wm_error_set(
        err, WM_ERR_TYPE, 0,
        "the ranks are in different collectives, %s and %s among them, and "
        "this rank is in %s: all must make the same calls in the same order",
        wm_call_name((wm_coll_kind_t)one), wm_call_name((wm_coll_kind_t)other),
        wm_call_name(mine->call));
}

static void
preflight_fill(const wm_comm_t *comm, const wm_preflight_t *preflight,
               wm_preflight_values_t *values)
{
    int64_t *most = values->values;
    values->all = preflight->all;
    most[FAILED] = preflight->code < 0 ? comm->rank + 1 : 0;
    most[CALL] = (int64_t)preflight->call;
    most[MINUS_CALL] = -most[CALL];
    most[NOTICES] = preflight->notices;
}

// Returns the data to publish; borrowed.
static const void *
published_of(const wm_preflight_t *preflight, size_t *nbytes)
{
    bool publishes = preflight->direct != NULL && preflight->all != 0;
    *nbytes = publishes ? preflight->nbytes : 0;
    return publishes ? &preflight->direct->published : NULL;
}

static int
preflight_judge(const wm_comm_t *comm, wm_preflight_t *preflight,
                const wm_preflight_values_t *values, int exchanged,
                wm_error_t *err)
{
    const int64_t *most = values->values;
    int code = preflight->code;
    preflight->notices = most[NOTICES] != 0;
    preflight->all = (unsigned)values->all;
    if (code < 0 || exchanged < 0)
        return code < 0 ? code : exchanged;
    if (most[FAILED] != 0)
        return wm_error_set(err, WM_ERR_CUDA, 0,
                            "%s failed in this collective: its error tells "
                            "why",
                            wm_comm_name(comm, (int)most[FAILED] - 1).text);
    return preflight_compare(preflight, most, err);
}

void
wm_preflight_publish(const wm_comm_t *comm, wm_barrier_t *barrier,
                     const wm_preflight_t *preflight)
{
    wm_preflight_values_t maxima;
    size_t nbytes;
    const void *published = published_of(preflight, &nbytes);
    preflight_fill(comm, preflight, &maxima);
    wm_preflight_values_publish(barrier, &maxima, published, nbytes);
}

int
wm_preflight_conclude(const wm_comm_t *comm, const wm_barrier_t *barrier,
                      wm_preflight_t *preflight, wm_error_t *err)
{
    wm_preflight_values_t maxima;
    preflight_fill(comm, preflight, &maxima);
    wm_preflight_values_merge(barrier, &maxima);
    return preflight_judge(comm, preflight, &maxima, 0, err);
}

typedef int
preflight_exchange_t(wm_comm_t *comm, wm_preflight_values_t *maxima,
                     const void *published, size_t nbytes, wm_error_t *err);

static int
preflight_make(wm_comm_t *comm, wm_preflight_t *preflight,
               preflight_exchange_t *exchange, wm_error_t *err)
{
    wm_preflight_values_t maxima;
    wm_error_t later;
    size_t nbytes;
    const void *published = published_of(preflight, &nbytes);
    preflight_fill(comm, preflight, &maxima);
    int exchanged = exchange(comm, &maxima, published, nbytes,
                             preflight->code < 0 ? &later : err);
    return exchanged > 0
               ? 1
               : preflight_judge(comm, preflight, &maxima, exchanged, err);
}

int
wm_preflight_run(wm_comm_t *comm, wm_preflight_t *preflight, wm_error_t *err)
{
    return preflight_make(comm, preflight, wm_preflight_values_exchange, err);
}

int
wm_preflight_or_decline(wm_comm_t *comm, wm_preflight_t *preflight,
                        wm_error_t *err)
{
    return preflight_make(comm, preflight, wm_preflight_values_ask, err);
}

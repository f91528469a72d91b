// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/stream/capture.h"

#include "comm/coll/direct/preflight.h"
#include "comm/coll/stream/symm.h"

static int
compare(const wm_captured_t *mine, const wm_captured_t *other, int rank,
        wm_error_t *err)
{
    const char *name = wm_call_name((wm_coll_kind_t)mine->kind);
    if (mine->kind != other->kind)
        return wm_error_set(err, WM_ERR_TYPE, 0,
                            "the ranks capture different collectives: rank %d "
                            "captures %s, and this rank %s: all must capture "
                            "the same calls in the same order",
                            rank, wm_call_name((wm_coll_kind_t)other->kind),
                            name);
    if (mine->asked != other->asked)
        return wm_error_set(err, WM_ERR_VALUE, 0,
                            "the ranks' captured collectives differ: rank %d "
                            "gave other counts, types, op or root than this "
                            "rank in %s: all must give the same",
                            rank, name);
    if (mine->first != other->first)
        return wm_error_set(err, WM_ERR_VALUE, 0,
                            "the ranks' graphs differ: rank %d captures this "
                            "%s and the call before it into %s, this rank "
                            "into %s: all must capture the same calls into a "
                            "graph",
                            rank, name,
                            other->first ? "two graphs" : "one graph",
                            mine->first ? "two" : "one");
    return 0;
}

int
wm_capture_begin(wm_comm_t *comm, wm_captured_t *captured, int code,
                 wm_error_t *err)
{
    const wm_captured_t mine = *captured;
    wm_preflight_values_t maxima = {.all = 0};
    int exchanged = wm_capture_end(comm, code, err);
    if (exchanged == 0)
        exchanged = wm_preflight_values_exchange(comm, &maxima, &mine,
                                                 sizeof mine, err);
    for (int rank = 0; rank < comm->size && exchanged == 0; ++rank) {
        const wm_captured_t other = *(const wm_captured_t *)wm_preflight_data(
            comm->barrier, rank);
        if (other.fragments > captured->fragments)
            captured->fragments = other.fragments;
        exchanged = other.fragments > WM_SYMM_STEPS
                        ? wm_comm_damaged(comm, rank, err)
                        : compare(&mine, &other, rank, err);
    }
    return exchanged;
}

int
wm_capture_end(wm_comm_t *comm, int code, wm_error_t *err)
{
    wm_preflight_t preflight = {.call = WM_COLL_CAPTURED, .code = code};
    return wm_preflight_run(comm, &preflight, err);
}

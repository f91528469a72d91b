// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/run/coll_require.h"

#include <stdio.h>
#include <stdlib.h>

#include "comm/coll/call/reducible.h"
#include "comm/coll/direct/coll_gather.h"
#include "comm/coll/run/coll_engines.h"
#include "comm/coll/run/coll_tell.h"
#include "comm/comm/require.h"

// Raises if the ranks give different values.
static int
require_compare(const wm_comm_t *comm, const bool *all, wm_error_t *err)
{
    for (int rank = 1; rank < comm->size; ++rank)
        if (all[rank] != all[0])
            return wm_error_set(err, WM_ERR_STATE, 0,
                                "require: rank 0 gives \"%s\" and rank %d "
                                "\"%s\": give the same on all ranks",
                                all[0] ? "gpu" : "", rank,
                                all[rank] ? "gpu" : "");
    return 0;
}

int
wm_coll_require_change(wm_comm_t *comm, bool everywhere, bool on, int code,
                       wm_error_t *err)
{
    wm_comm_t *whole = comm->whole;
    bool *all = calloc((size_t)whole->size, sizeof *all);
    wm_error_t lack;
    if (all == NULL && code == 0) {
        code = wm_error_set(&lack, WM_ERR_MEMORY, 0, "out of host memory");
        *err = lack;
    }
    code = wm_coll_exchange(whole, "require", code, &on, sizeof on, all, err);
    if (code == 0)
        code = require_compare(whole, all, err);
    if (code == 0)
        wm_require_set(everywhere ? NULL : comm, on);
    free(all);
    return code;
}

static uint32_t
require_bit(wm_coll_kind_t kind)
{
    return 1u << kind;
}

_Static_assert(WM_COLL_KINDS <= 32, "each kind has a bit");

bool
wm_coll_require_asks(const wm_comm_t *comm, wm_coll_kind_t kind)
{
    return wm_require_is_on(comm)
           && (comm->colls.of_host & require_bit(kind)) == 0;
}

int
wm_coll_require_refuse(wm_comm_t *comm, const wm_coll_t *call, wm_error_t *err)
{
    char why[400];
    wm_coll_lacking_t lacking;
    wm_reduce_type_t type;
    wm_reduce_op_t op;
    const char *what = "no engine but MPI does it among these ranks";
    const char *cure = wm_comm_is_one_host(comm)
                           ? "use a communicator of fewer ranks"
                           : "use a communicator of one host";
    if (call->read && wm_coll_shape(call->kind)->reduces
        && !wm_coll_reducible(call, &type, &op)) {
        what = "kernels do not know the operation or the element type";
        cure = "give one of MPI's operations and types, or host arrays";
    }
    else if (wm_coll_engines_do(comm, call->kind) != 0) {
        what = "no engine but MPI serves all ranks, by their memory and "
               "datatypes";
        cure = "give GPU arrays on all ranks; WARPMPI_LOG=route says why";
    }
    else if ((lacking = wm_coll_tell_lacking(comm, call->kind, false)).may) {
        what = lacking.text;
        cure = wm_comm_is_one_host(comm)
                   ? "let it serve"
                   : "let it serve, or use a communicator of one host";
    }
    snprintf(why, sizeof why, "%s: %s", wm_call_name(call->kind), what);
    return wm_require_refuse(why, cure, err);
}

int
wm_coll_require_judge(wm_comm_t *comm, const wm_coll_t *call,
                      const wm_preflight_t *preflight, wm_error_t *err)
{
    if (preflight->on_device)
        return wm_coll_require_refuse(comm, call, err);
    comm->colls.of_host |= require_bit(call->kind);
    return 0;
}

int
wm_coll_require_ask(wm_comm_t *comm, const wm_coll_t *call, wm_error_t *err)
{
    wm_preflight_t preflight = {
        .call = call->kind,
        .on_device = call->any_device,
    };
    int code = wm_comm_is_one_host(comm)
                   ? wm_preflight_or_decline(comm, &preflight, err)
                   : wm_preflight_run(comm, &preflight, err);
    if (code != 0)
        return code < 0 ? code : 0;
    return wm_coll_require_judge(comm, call, &preflight, err);
}

// SPDX-License-Identifier: BSD-3-Clause
// A blocking collective that GPUs do, or the gates; but Bcast and Allreduce.
#include "comm/coll/by_slabs.h"
#include "comm/coll/native_run.h"
#include "comm/coll/part.h"

int
wm_coll_call(wm_comm_t *comm, const wm_coll_t *call, wm_error_t *err)
{
    wm_part_t part;
    wm_error_t wrong;
    wm_plan_t plan;
    wm_agreement_t agreed = {
        .call = call->kind,
        .native = &part.native,
    };
    agreed.code = wm_part_open(&part, comm, comm->gates, call, err);
    if (agreed.code == 0)
        agreed.code = wm_native_await(&part.native, err);
    agreed.nbytes = wm_part_nbytes(&part);
    agreed.rides_all = wm_part_ride(&part, &agreed.nbytes);
    agreed.slabs = wm_by_slabs_serves(comm, call);
    if (agreed.slabs && !part.native.capable)
        wm_part_say(&part);
    int code = wm_agreement_make(comm, &agreed, err);
    if (code == 0 && agreed.rides_all)
        return wm_part_take(&part, err);
    bool by_slabs = !agreed.stays && agreed.slabs;
    if (code == 0 && !agreed.stays && !by_slabs)
        code = 1;
    if (code == 0)
        code = wm_part_compare(&part, err);
    if (code == 0)
        code = !wm_part_plan(&part, &plan, &wrong);
    if (code == 0 && by_slabs)
        code = wm_by_slabs_call(comm, call, &wrong, err);
    else if (code == 0)
        code = wm_native_run(&part.native, &plan, part.type, part.op, &wrong,
                             err);
    wm_native_end(&part.native);
    return code;
}

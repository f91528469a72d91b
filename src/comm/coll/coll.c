// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/coll.h"

#include "comm/coll/symm_coll.h"
#include "comm/coll/native_run.h"
#include "comm/coll/part.h"
#include "comm/engine/engine.h"
#include "comm/message/pattern.h"
#include "comm/node/mapping.h"

int
wm_coll_barrier(wm_comm_t *comm, wm_error_t *err)
{
    wm_agreement_t agreement = {.call = WM_CALL_BARRIER}, last = agreement;
    wm_engine_lock();
    agreement.notices = wm_place_notify() != 0;
    wm_engine_unlock();
    int code = wm_agreement_make(comm, &agreement, err);
    if (code < 0)
        return code;
    wm_engine_lock();
    wm_mapping_heed_notices(); // or what could not be closed before
    wm_engine_unlock();
    return agreement.notices ? wm_agreement_make(comm, &last, err) : 0;
}

static bool
lie_over(const wm_buffer_t *send, const wm_buffer_t *receive)
{
    char *low, *high, *from, *behind;
    wm_buffer_bounds(send, &low, &high);
    wm_buffer_bounds(receive, &from, &behind);
    return low < behind && from < high;
}

bool
wm_coll_overlap(const wm_buffer_t *send, const wm_buffer_t *receive)
{
    return send != NULL && receive != NULL && wm_buffer_on_device(send)
           && lie_over(send, receive);
}

void
wm_coll_decline(wm_comm_t *comm)
{
    wm_barrier_enter(comm->barrier, false);
}

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
    agreed.code = wm_part_open(&part, comm, comm->barrier, call, err);
    if (agreed.code == 0)
        agreed.code = wm_native_await(&part.native, err);
    agreed.nbytes = wm_part_nbytes(&part);
    agreed.symm = wm_symm_coll_serves(comm, call);
    if (agreed.symm && !part.native.capable)
        wm_part_publish(&part);
    int code = wm_agreement_ask(comm, &agreed, err);
    bool by_symm = !agreed.stays && agreed.symm;
    if (code == 0 && !agreed.stays && !by_symm)
        code = 1;
    if (code == 0)
        code = wm_part_compare(&part, err);
    if (code == 0)
        code = !wm_part_plan(&part, &plan, &wrong);
    if (code == 0 && by_symm)
        code = wm_symm_coll_call(comm, call, &wrong, err);
    else if (code == 0)
        code = wm_native_run(&part.native, &plan, part.type, part.op, &wrong,
                             err);
    wm_native_end(&part.native);
    return code;
}

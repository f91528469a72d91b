// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/direct/symm_group.h"

#include "comm/coll/direct/preflight.h"

static int
group_exchange(const wm_symm_group_t *group, int code, unsigned *all,
               wm_error_t *err)
{
    wm_preflight_t preflight = {
        .call = WM_COLL_ON_STREAM,
        .code = code,
        .all = *all,
    };
    code = wm_preflight_run(group->context, &preflight, err);
    *all = preflight.all;
    return code;
}

static int
group_publish(const wm_symm_group_t *group, const void *data, size_t nbytes,
              wm_error_t *err)
{
    return wm_preflight_share(group->context, data, nbytes, err);
}

static const void *
group_published_by(const wm_symm_group_t *group, int rank)
{
    const wm_comm_t *comm = group->context;
    return wm_preflight_data(comm->barrier, rank);
}

static int
group_damaged(const wm_symm_group_t *group, int rank, wm_error_t *err)
{
    return wm_comm_damaged(group->context, rank, err);
}

wm_symm_group_t
wm_symm_group_of(wm_comm_t *comm, size_t least)
{
    return (wm_symm_group_t){
        .rank = comm->rank,
        .size = comm->size,
        .least = least,
        .peers = comm->peers,
        .context = comm,
        .exchange = group_exchange,
        .publish = group_publish,
        .published_by = group_published_by,
        .damaged = group_damaged,
    };
}

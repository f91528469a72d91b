// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/direct/symm_group.h"

#include "comm/coll/direct/coll_gather.h"

static int
group_exchange(const wm_symm_group_t *group, int code, const void *mine,
               size_t nbytes, void *all, wm_error_t *err)
{
    return wm_coll_exchange(group->context, group->call, code, mine, nbytes,
                            all, err);
}

static int
group_damaged(const wm_symm_group_t *group, int rank, wm_error_t *err)
{
    return wm_comm_damaged(group->context, rank, err);
}

wm_symm_group_t
wm_symm_group_of(wm_comm_t *comm, const char *call, size_t least)
{
    return (wm_symm_group_t){
        .rank = comm->rank,
        .size = comm->size,
        .call = call,
        .least = least,
        .peers = comm->peers,
        .context = comm,
        .exchange = group_exchange,
        .damaged = group_damaged,
    };
}

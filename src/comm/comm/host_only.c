// SPDX-License-Identifier: BSD-3-Clause
#include "comm/comm/host_only.h"

#include <stdatomic.h>
#include <string.h>

#include "comm/comm/comm.h"
#include "comm/engine/child.h"
#include "comm/engine/engine.h"
#include "comm/engine/modules.h"
#include "comm/engine/posted.h"
#include "comm/node/sharers.h"
#include "cuda/device.h"
#include "cuda/settings.h"

static bool by_mpi; // WARPMPI_HOST_MESSAGES is mpi

enum { UNKNOWN, HOST_ONLY, HAS_GPUS };
static _Atomic int world; // the answer for MPI_COMM_WORLD
static _Atomic bool asked;
static _Atomic bool ended; // MPI was finalized

static bool
needs_us(void)
{
    return wm_device_count() > 0 || wm_setting_is_on(WM_SETTING_CHECK);
}

static void
look_at_host(void)
{
    int size = 0;
    if (atomic_load(&world) != UNKNOWN || needs_us()
        || !wm_driver_host_lacks())
        return;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size == 1 || size == wm_sharers_launched())
        atomic_store(&world, HOST_ONLY);
}

// Returns true if all processes of both groups are of MPI_COMM_WORLD.
static bool
is_of_world(MPI_Comm user, bool inter)
{
    MPI_Group all, groups[2] = {MPI_GROUP_NULL, MPI_GROUP_NULL};
    bool found = true;
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    MPI_Comm_group(user, &groups[0]);
    if (inter)
        MPI_Comm_remote_group(user, &groups[1]);
    for (int i = 0; i < 1 + inter; ++i) {
        MPI_Group both;
        int size = 0, common = 0;
        MPI_Group_intersection(groups[i], all, &both);
        MPI_Group_size(groups[i], &size);
        MPI_Group_size(both, &common);
        found = found && size == common;
        if (both != MPI_GROUP_EMPTY)
            MPI_Group_free(&both);
        MPI_Group_free(&groups[i]);
    }
    MPI_Group_free(&all);
    return found;
}

// Returns 1 if no process needs us, else 0. An intercommunicator takes two
// rounds: the first tells of the other group, the second of this one.
static int
ask_all(MPI_Comm user, bool inter, wm_error_t *err)
{
    int mine = needs_us(), any = mine, code = 0;
    WM_EACH_MODULE(wait_begin, user);
    for (int i = 0; i < 1 + inter && code == 0; ++i) {
        mine = any;
        code = wm_mpi_check(
            MPI_Allreduce(&mine, &any, 1, MPI_INT, MPI_MAX, user),
            "MPI_Allreduce", err);
        any = any || mine;
    }
    WM_EACH_MODULE(wait_end);
    return code < 0 ? code : !any;
}

// Returns 1 if `user` is host-only, else 0.
static int
decide(MPI_Comm user, wm_error_t *err)
{
    int inter = 0, same = MPI_UNEQUAL;
    int code = wm_engine_check_world(err);
    if (code < 0)
        return code;
    look_at_host();
    MPI_Comm_test_inter(user, &inter);
    int known = atomic_load(&world);
    if (known != UNKNOWN && is_of_world(user, inter != 0))
        return known == HOST_ONLY;
    int answer = ask_all(user, inter != 0, err);
    if (answer < 0 || inter)
        return answer;
    MPI_Comm_compare(user, MPI_COMM_WORLD, &same);
    if (same != MPI_UNEQUAL)
        atomic_store(&world, answer ? HOST_ONLY : HAS_GPUS);
    return answer;
}

// MPI calls this first in MPI_Finalize.
static int
host_only_end(MPI_Comm comm, int key, void *value, void *extra)
{
    (void)comm, (void)key, (void)value, (void)extra;
    atomic_store(&ended, true);
    return MPI_SUCCESS;
}

static void
watch_end(void)
{
    int key = MPI_KEYVAL_INVALID;
    if (!atomic_load(&asked)
        && MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, host_only_end, &key,
                                  NULL)
               == MPI_SUCCESS)
        MPI_Comm_set_attr(MPI_COMM_SELF, key, NULL);
}

bool
wm_host_only_has_ended(void)
{
    return atomic_load_explicit(&ended, memory_order_relaxed) || wm_is_child();
}

int
wm_host_only_attach(MPI_Comm user, MPI_Comm parent, wm_error_t *err)
{
    wm_comm_t *comm = wm_comm_find(user);
    if (comm != NULL)
        return 0;
    int host_only = parent != MPI_COMM_NULL ? wm_comm_is_mpis(parent)
                                            : decide(user, err);
    watch_end();
    atomic_store(&asked, true);
    int needed = host_only == 1 ? wm_neighbor_is_paired(user, err)
                                : !host_only;
    if (host_only < 0 || needed <= 0)
        return host_only < 0 ? host_only : needed;
    int code = wm_comm_attach(user, &comm, err);
    if (code == 0)
        comm->host_only = host_only == 1;
    return code;
}

int
wm_host_only_attach_too(MPI_Comm user, wm_comm_t **comm, wm_error_t *err)
{
    int code = wm_host_only_attach(user, MPI_COMM_NULL, err);
    *comm = code == 0 ? wm_comm_find(user) : NULL;
    if (code < 0 || *comm != NULL)
        return code;
    code = wm_comm_attach(user, comm, err);
    if (code == 0)
        (*comm)->host_only = true;
    return code;
}

bool
wm_host_only_was_asked(void)
{
    return atomic_load(&asked);
}

static int
host_only_configure(wm_error_t *err)
{
    const char *text = wm_setting_text(WM_SETTING_HOST_MESSAGES);
    if (text != NULL && strcmp(text, "mpi") != 0)
        return wm_setting_refuse(WM_SETTING_HOST_MESSAGES, err);
    by_mpi = text != NULL;
    return 0;
}

bool
wm_host_only_by_mpi(void)
{
    return by_mpi;
}

const wm_module_t wm_host_only_module = {.configure = host_only_configure};

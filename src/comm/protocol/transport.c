// SPDX-License-Identifier: BSD-3-Clause
#include "comm/protocol/transport.h"

#include <string.h>

#include "comm/engine/modules.h"
#include "cuda/settings.h"

// The transports in order of preference. The last one reaches every peer.
static const wm_transport_t *const transports[] = {
    &wm_transport_self,
    &wm_transport_ipc,
    &wm_transport_mpi,
    &wm_transport_host,
};
#define TRANSPORTS (sizeof transports / sizeof *transports)

static const wm_transport_t *forced; // WARPMPI_TRANSPORT; NULL: unset

static int
transport_configure(wm_error_t *err)
{
    const char *name = wm_setting_text(WM_SETTING_TRANSPORT);
    const wm_transport_t *asked = NULL;
    forced = NULL;
    if (name == NULL)
        return 0;
    for (size_t i = 0; i < TRANSPORTS; ++i)
        if (strcmp(name, transports[i]->name) == 0
            && transports[i] != &wm_transport_self)
            asked = transports[i];
    if (asked == NULL)
        return wm_setting_refuse(WM_SETTING_TRANSPORT, err);
    if (asked == &wm_transport_mpi && wm_mpi_is_cuda_aware() == 0)
        return wm_error_set(
            err, WM_ERR_VALUE, 0,
            "WARPMPI_TRANSPORT=mpi: this MPI reports that it is not "
            "CUDA-aware: unset WARPMPI_TRANSPORT, or use a CUDA-aware MPI");
    forced = asked;
    return 0;
}

const wm_transport_t *
wm_transport_forced(void)
{
    return forced;
}

// Returns the first transport that reaches the peer. The reason of `host` is
// why ipc does not. `mpi` takes no offers.
static const wm_transport_t *
first(const wm_peer_t *peer, const wm_pointer_t *into, bool offered,
      const char **reason)
{
    const char *other;
    for (size_t i = 0; i + 1 < TRANSPORTS; ++i) {
        const wm_transport_t *one = transports[i];
        bool ipc = one == &wm_transport_ipc;
        if ((one == &wm_transport_mpi && offered)
            || !one->reach(peer, into, ipc ? reason : &other))
            continue;
        if (!ipc)
            *reason = other;
        return one;
    }
    return &wm_transport_host;
}

const wm_transport_t *
wm_transport_tell(const wm_peer_t *peer, const wm_pointer_t *into,
                  const char **reason)
{
    if (forced != NULL && !peer->self && forced->reach(peer, into, reason)) {
        *reason = "WARPMPI_TRANSPORT selects it";
        return forced;
    }
    return first(peer, into, false, reason);
}

const wm_transport_t *
wm_transport_take(const wm_peer_t *peer, const wm_pointer_t *into)
{
    const char *unused;
    if (forced != NULL && forced != &wm_transport_mpi
        && forced->reach(peer, into, &unused))
        return forced;
    return first(peer, into, true, &unused);
}

bool
wm_transport_is_carried(const wm_peer_t *peer)
{
    const char *unused;
    return wm_transport_mpi.reach(peer, NULL, &unused);
}

const wm_module_t wm_transport_module = {.configure = transport_configure};

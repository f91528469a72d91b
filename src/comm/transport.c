// SPDX-License-Identifier: BSD-3-Clause
#include "comm/transport.h"

#include <stdlib.h>
#include <string.h>

// In order of preference. The last one reaches everybody.
static const wm_transport_t *const transports[] = {
    &wm_transport_self,
    &wm_transport_ipc,
    &wm_transport_host,
};
#define TRANSPORTS (sizeof transports / sizeof *transports)

static const wm_transport_t *forced; // by the setting, NULL where unset

int
wm_transport_configure(wm_error_t *err)
{
    const char *name = getenv("WARPMPI_TRANSPORT");
    forced = NULL;
    if (name == NULL || *name == '\0')
        return 0;
    for (size_t i = 0; i < TRANSPORTS; ++i)
        if (strcmp(name, transports[i]->name) == 0) {
            forced = transports[i];
            return 0;
        }
    return wm_error_set(err, WM_ERR_VALUE, 0,
                        "WARPMPI_TRANSPORT=%s is not a transport: unset it, "
                        "or set it to ipc or host",
                        name);
}

const wm_transport_t *
wm_transport_forced(void)
{
    return forced;
}

const wm_transport_t *
wm_transport_choose(const wm_peer_t *peer, const wm_pointer_t *into,
                    const char **reason)
{
    if (forced != NULL && forced->reach(peer, into, reason)) {
        *reason = "WARPMPI_TRANSPORT asks for it";
        return forced;
    }
    for (size_t i = 0; i + 1 < TRANSPORTS; ++i)
        if (transports[i]->reach(peer, into, reason))
            return transports[i];
    return &wm_transport_host; // the reason is why ipc does not reach
}

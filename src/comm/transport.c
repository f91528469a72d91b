// SPDX-License-Identifier: BSD-3-Clause
#include "comm/transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// In order of preference. The last one reaches everybody.
static const wm_transport_t *const transports[] = {
    &wm_transport_self,
    &wm_transport_ipc,
    &wm_transport_host,
};
#define TRANSPORTS (sizeof transports / sizeof *transports)

int
wm_transport_forced(const wm_transport_t **forced, wm_error_t *err)
{
    const char *name = getenv("WARPMPI_TRANSPORT");
    *forced = NULL;
    if (name == NULL || *name == '\0')
        return 0;
    for (size_t i = 0; i < TRANSPORTS; ++i)
        if (strcmp(name, transports[i]->name) == 0) {
            *forced = transports[i];
            return 0;
        }
    return wm_error_set(err, WM_ERR_VALUE, 0,
                        "WARPMPI_TRANSPORT=%s is not a transport: unset it, "
                        "or set it to ipc or host",
                        name);
}

const wm_transport_t *
wm_transport_choose(const wm_peer_t *peer, const wm_pointer_t *into,
                    char *reason, size_t room)
{
    const wm_transport_t *forced = NULL;
    if (wm_transport_forced(&forced, NULL) == 0 && forced != NULL
        && forced->reach(peer, into, reason, room)) {
        snprintf(reason, room, "WARPMPI_TRANSPORT=%s asks for it",
                 forced->name);
        return forced;
    }
    for (size_t i = 0; i + 1 < TRANSPORTS; ++i)
        if (transports[i]->reach(peer, into, reason, room))
            return transports[i];
    return &wm_transport_host; // the reason is why ipc does not reach
}

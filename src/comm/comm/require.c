// SPDX-License-Identifier: BSD-3-Clause
#include "comm/comm/require.h"

#include <string.h>

#include "comm/engine/modules.h"
#include "cuda/settings.h"

#define BEFORE                                                                \
    "GPU memory would be staged through host memory, which "                  \
    "WARPMPI_REQUIRE=gpu or wm.require(\"gpu\") forbids: "

static _Atomic int everywhere = -1; // -1: not read

// Reads the setting for a new communicator.
static int
require_configure(wm_error_t *err)
{
    const char *text = wm_setting_text(WM_SETTING_REQUIRE);
    bool on = text != NULL && strcmp(text, "gpu") == 0;
    atomic_store(&everywhere, on);
    return text == NULL || on ? 0 : wm_setting_refuse(WM_SETTING_REQUIRE, err);
}

bool
wm_require_is_everywhere(void)
{
    int known = atomic_load_explicit(&everywhere, memory_order_relaxed);
    if (known < 0) {
        known = wm_setting_text(WM_SETTING_REQUIRE) != NULL;
        atomic_store(&everywhere, known);
    }
    return known;
}

bool
wm_require_is_on(const wm_comm_t *comm)
{
    return atomic_load_explicit(&comm->owner->required, memory_order_relaxed)
           || wm_require_is_everywhere();
}

void
wm_require_set(wm_comm_t *comm, bool on)
{
    if (comm != NULL)
        atomic_store(&comm->owner->required, on);
    else {
        wm_setting_replace(WM_SETTING_REQUIRE, on ? "gpu" : "");
        atomic_store(&everywhere, on);
    }
}

int
wm_require_refuse(const char *why, const char *cure, wm_error_t *err)
{
    return wm_error_set(err, WM_ERR_STAGING, 0, BEFORE "%s: %s", why, cure);
}

const char *
wm_require_told(const wm_error_t *err)
{
    return err->code == WM_ERR_STAGING ? err->text + sizeof BEFORE - 1
                                       : err->text;
}

int
wm_require_hear(const char *end, int rank, const char *told, wm_error_t *err)
{
    return wm_error_set(err, WM_ERR_STAGING, 0,
                        BEFORE "%.200s (told by the %s, rank %d)", told, end,
                        rank);
}

const wm_module_t wm_require_module = {.configure = require_configure};

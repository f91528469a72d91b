// SPDX-License-Identifier: BSD-3-Clause
#include "comm/engine/check.h"

#include <pthread.h>

#include "cuda/settings.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool wanted;

static void
check_look(void)
{
    wanted = wm_setting_is_on(WM_SETTING_CHECK);
}

bool
wm_check_wanted(void)
{
    pthread_once(&once, check_look);
    return wanted;
}

// SPDX-License-Identifier: BSD-3-Clause
#include "comm/engine/check.h"

#include "cuda/settings.h"

bool
wm_check_wanted(void)
{
    return wm_setting_is_on(WM_SETTING_CHECK);
}

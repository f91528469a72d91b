// SPDX-License-Identifier: BSD-3-Clause
#include "cuda/settings.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const wm_setting_row_t wm_setting_rows[] = {
#define X(name, ...) {"WARPMPI_" #name, __VA_ARGS__},
    WM_SETTINGS(X)
#undef X
};

const char *
wm_setting_text(wm_setting_t setting)
{
    const char *text = getenv(wm_setting_rows[setting].name);
    return text != NULL && *text != '\0' ? text : NULL;
}

bool
wm_setting_is_on(wm_setting_t setting)
{
    const char *text = wm_setting_text(setting);
    return text != NULL && strcmp(text, "0") != 0;
}

int
wm_setting_bytes(wm_setting_t setting, size_t *value, wm_error_t *err)
{
    const char *text = wm_setting_text(setting);
    char *rest;
    *value = strtoull(wm_setting_rows[setting].standard, NULL, 10);
    if (text == NULL)
        return 0;
    errno = 0;
    unsigned long long given = strtoull(text, &rest, 10);
    if (errno != 0 || *rest != '\0' || strspn(text, "0123456789") == 0)
        return wm_setting_refuse(setting, err);
    *value = given;
    return 0;
}

int
wm_setting_seconds(wm_setting_t setting, double *value, wm_error_t *err)
{
    const char *text = wm_setting_text(setting);
    char *rest;
    *value = strtod(wm_setting_rows[setting].standard, NULL);
    if (text == NULL)
        return 0;
    double given = strtod(text, &rest);
    if (rest == text || *rest != '\0' || !isfinite(given) || given < 0)
        return wm_setting_refuse(setting, err);
    *value = given;
    return 0;
}

int
wm_setting_refuse(wm_setting_t setting, wm_error_t *err)
{
    const wm_setting_row_t *row = &wm_setting_rows[setting];
    bool acts = *row->standard != '\0';
    return wm_error_set(err, WM_ERR_VALUE, 0,
                        "%s=%s is not %s: unset it%s%s%s, or set it to %s",
                        row->name, getenv(row->name), row->what,
                        acts ? " (the default is " : "", row->standard,
                        acts ? ")" : "", row->values);
}

// SPDX-License-Identifier: BSD-3-Clause
#include "cuda/settings.h"

#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const wm_setting_row_t wm_setting_rows[] = {
#define X(name, type, standard, values, ranks, help)                          \
    {"WARPMPI_" #name, WM_SETTING_TYPE_##type,   standard,                    \
     values,           WM_SETTING_RANKS_##ranks, help},
    WM_SETTINGS(X)
#undef X
};

#define X(name, what) what,
const char *const wm_setting_types[] = {WM_SETTING_TYPES(X)};
const char *const wm_setting_ranks[] = {WM_SETTING_RANKS(X)};
#undef X

static _Atomic char switches[WM_SETTINGS_KNOWN]; // 0: not read, else '0', '1'
static const char *_Atomic replaced[WM_SETTINGS_KNOWN]; // by the program

const char *
wm_setting_text(wm_setting_t setting)
{
    const char *text = atomic_load(&replaced[setting]);
    if (text == NULL)
        text = getenv(wm_setting_rows[setting].name);
    return text != NULL && *text != '\0' ? text : NULL;
}

void
wm_setting_replace(wm_setting_t setting, const char *text)
{
    atomic_store(&replaced[setting], text);
}

bool
wm_setting_is_on(wm_setting_t setting)
{
    char known = atomic_load(&switches[setting]);
    if (known == 0) {
        const char *text = wm_setting_text(setting);
        known = text != NULL && strcmp(text, "0") != 0 ? '1' : '0';
        atomic_store(&switches[setting], known);
    }
    return known == '1';
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
wm_setting_log(void)
{
    const char *text = wm_setting_text(WM_SETTING_LOG);
    int bits = -1;
    if (text == NULL)
        return 0;
    if (strcmp(text, "cuda") == 0)
        bits = WM_LOG_CUDA;
    else if (strcmp(text, "route") == 0)
        bits = WM_LOG_ROUTE;
    else if (strcmp(text, "cuda,route") == 0)
        bits = WM_LOG_CUDA | WM_LOG_ROUTE;
    return bits;
}

int
wm_setting_refuse(wm_setting_t setting, wm_error_t *err)
{
    const wm_setting_row_t *row = &wm_setting_rows[setting];
    bool acts = *row->standard != '\0';
    return wm_error_set(err, WM_ERR_VALUE, 0,
                        "%s=%s is not %s: unset it%s%s%s, or set it to %s",
                        row->name, getenv(row->name),
                        wm_setting_types[row->type],
                        acts ? " (the default is " : "", row->standard,
                        acts ? ")" : "", row->values);
}

void
wm_settings_tell(wm_settings_alike_t *mine)
{
    int at = 0;
    memset(mine, 0, sizeof *mine);
    for (wm_setting_t i = 0; i < WM_SETTINGS_KNOWN; ++i) {
        if (wm_setting_rows[i].ranks != WM_SETTING_RANKS_MUST)
            continue;
        const char *text = wm_setting_text(i);
        if (wm_setting_rows[i].type == WM_SETTING_TYPE_SWITCH)
            text = wm_setting_is_on(i) ? "1" : "0"; // unset is 0
        snprintf(mine->values[at++], sizeof *mine->values, "%s",
                 text != NULL ? text : "");
    }
}

static const char *
told(const char *value)
{
    return *value != '\0' ? value : "unset";
}

int
wm_settings_compare(const wm_settings_alike_t *mine, int rank,
                    const wm_settings_alike_t *theirs, int their_rank,
                    wm_error_t *err)
{
    int at = 0;
    bool first = rank < their_rank; // all ranks say the same
    for (wm_setting_t i = 0; i < WM_SETTINGS_KNOWN; ++i) {
        if (wm_setting_rows[i].ranks != WM_SETTING_RANKS_MUST)
            continue;
        const char *ours = mine->values[at], *other = theirs->values[at];
        if (strncmp(ours, other, sizeof *mine->values) != 0)
            return wm_error_set(
                err, WM_ERR_STATE, 0,
                "%s is %.63s on rank %d and %.63s on rank %d: set it to the "
                "same value on all ranks, or on none",
                wm_setting_rows[i].name, told(first ? ours : other),
                first ? rank : their_rank, told(first ? other : ours),
                first ? their_rank : rank);
        ++at;
    }
    return 0;
}

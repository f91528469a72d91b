// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/direct/thresholds.h"

#include <stdatomic.h>
#include <string.h>

#include "cuda/device.h"
#include "cuda/lock.h"

#define BUILT_IN 3

// Given rows come before the built-in ones.
static wm_thresholds_row_t table[WM_THRESHOLDS_GIVEN + BUILT_IN] = {
#define X(field, name, two, several, other) .field = (two),
    [WM_THRESHOLDS_GIVEN] = {.linked = true,
                             .ranks = 2,
                             .thresholds = {WM_THRESHOLDS(X)}},
#undef X
#define X(field, name, two, several, other) .field = (several),
    [WM_THRESHOLDS_GIVEN + 1] = {.linked = true,
                                 .thresholds = {WM_THRESHOLDS(X)}},
#undef X
#define X(field, name, two, several, other) .field = (other),
    [WM_THRESHOLDS_GIVEN + 2] = {.thresholds = {WM_THRESHOLDS(X)}},
#undef X
};
static size_t given;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

int
wm_thresholds_set(const wm_thresholds_row_t *rows, size_t count,
                  wm_error_t *err)
{
    if (count > WM_THRESHOLDS_GIVEN)
        return wm_error_set(
            err, WM_ERR_VALUE, 0,
            "%zu rows of switch points are too many: use at most %d", count,
            WM_THRESHOLDS_GIVEN);
    wm_lock(&lock);
    given = count;
    if (count > 0)
        memcpy(table + WM_THRESHOLDS_GIVEN - count, rows,
               count * sizeof *rows);
    pthread_mutex_unlock(&lock);
    return 0;
}

static bool
thresholds_fits(const wm_thresholds_row_t *row, int major, bool linked,
                int ranks)
{
    int of = ranks <= 2 ? 2 : ranks <= 4 ? 4 : WM_THRESHOLDS_MANY;
    return (row->major == 0 || row->major == major) && row->linked == linked
           && (row->ranks == 0 || row->ranks == of);
}

void
wm_thresholds_find(int device, bool linked, int ranks,
                   wm_thresholds_t *thresholds)
{
    const wm_device_t *facts;
    int major = wm_device_describe(device, &facts, NULL) == 0 ? facts->major
                                                              : 0;
    wm_lock(&lock);
    const wm_thresholds_row_t *row = table + WM_THRESHOLDS_GIVEN - given;
    while (!thresholds_fits(row, major, linked, ranks))
        ++row; // a built-in row always fits
    *thresholds = row->thresholds;
    pthread_mutex_unlock(&lock);
}

// Returns true if `device` is linked to all others; asks the driver once.
static bool
is_linked_to_all(int device)
{
    static _Atomic signed char known[WM_MAX_DEVICES]; // 1: linked, -1: not
    const wm_device_t *peer;
    if (device < 0 || known[device] != 0)
        return device < 0 || known[device] > 0;
    bool linked = wm_device_count() > 1; // with one device we cannot know
    for (int i = 0; i < wm_device_count() && linked; ++i)
        if (wm_device_describe(i, &peer, NULL) < 0
            || wm_device_is_linked(device, &peer->uuid, &linked, NULL) < 0)
            return true; // a later call reports the error
    known[device] = linked ? 1 : -1;
    return linked;
}

void
wm_thresholds_find_alone(int device, int ranks, wm_thresholds_t *thresholds)
{
    wm_thresholds_find(device, is_linked_to_all(device), ranks, thresholds);
}

// SPDX-License-Identifier: BSD-3-Clause
#include "comm/node/segment_words.h"

static bool of_epochs[WM_EPOCH_WORDS], of_shared[WM_SHARED_ARRAYS],
    of_windows[WM_WINDOW_WORDS], of_ports[WM_PORTS];

// The words of a kind. None below `least` are free.
static struct {
    bool *taken;
    int count, least;
    const char *users, *cure;
} kinds[WM_WORDS_KINDS] = {
    [WM_WORDS_OF_EPOCHS] = {of_epochs, WM_EPOCH_WORDS, 0,
                            "neighbours in windows and halos",
                            "free a window or a halo"},
    [WM_WORDS_OF_SHARED] = {of_shared, WM_SHARED_ARRAYS, 0, "shared arrays",
                            "drop some, or make one array of several"},
    [WM_WORDS_OF_WINDOWS] = {of_windows, WM_WINDOW_WORDS, 0, "windows",
                             "free some, or make one window of several"},
    [WM_WORDS_OF_PORTS] = {of_ports, WM_PORTS, 0,
                           "ends of messages in CUDA graphs",
                           "free graphs, or persistent requests, that are "
                           "not replayed"},
};

int
wm_segment_words_take(wm_words_kind_t kind, wm_error_t *err)
{
    int index = kinds[kind].least;
    while (index < kinds[kind].count && kinds[kind].taken[index])
        ++index;
    kinds[kind].least = index;
    if (index == kinds[kind].count)
        return wm_error_set(err, WM_ERR_MEMORY, 0,
                            "this process has %d %s, and there is no room for "
                            "more: %s",
                            index, kinds[kind].users, kinds[kind].cure);
    kinds[kind].taken[index] = true;
    return index;
}

void
wm_segment_words_give(wm_words_kind_t kind, int index)
{
    if (index < 0)
        return;
    kinds[kind].taken[index] = false;
    if (index < kinds[kind].least)
        kinds[kind].least = index;
}

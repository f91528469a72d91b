// SPDX-License-Identifier: BSD-3-Clause
#include "comm/rma/window_lock.h"

#include "comm/node/segment_words.h"

int
wm_window_lock_acquire_words(wm_error_t *err)
{
    wm_segment_t *segment = wm_node_self()->segment;
    if (segment == NULL)
        return wm_error_set(err, WM_ERR_STATE, 0,
                            "this process has no shared memory for a window");
    int index = wm_segment_words_take(WM_WORDS_OF_WINDOWS, err);
    if (index < 0)
        return index;
    wm_window_words_t *words = &segment->window_words[index];
    atomic_store(&words->drawn, 0);
    atomic_store(&words->served, 0);
    atomic_store(&words->readers, 0);
    atomic_store(&words->updating, 0);
    return index;
}

wm_window_words_t *
wm_window_lock_words(const wm_peer_t *peer, int index)
{
    return index >= 0 && index < WM_WINDOW_WORDS && wm_node_shares(peer)
               ? &peer->segment->window_words[index]
               : NULL;
}

uint32_t
wm_window_lock_ask(wm_window_words_t *words)
{
    return atomic_fetch_add(&words->drawn, 1);
}

bool
wm_window_lock_try(wm_window_words_t *words, uint32_t ticket, bool exclusive)
{
    if (atomic_load(&words->served) != ticket
        || (exclusive && atomic_load(&words->readers) > 0))
        return false;
    if (!exclusive) { // lets the next one in
        atomic_fetch_add(&words->readers, 1);
        atomic_store(&words->served, ticket + 1);
    }
    return true;
}

void
wm_window_lock_leave(wm_window_words_t *words, bool exclusive)
{
    if (exclusive)
        atomic_fetch_add(&words->served, 1);
    else
        atomic_fetch_sub(&words->readers, 1);
}

bool
wm_window_lock_try_update(wm_window_words_t *words, int rank)
{
    uint32_t none = 0;
    return atomic_compare_exchange_strong(&words->updating, &none,
                                          1 + (uint32_t)rank);
}

int
wm_window_lock_updater(wm_window_words_t *words)
{
    return (int)atomic_load(&words->updating) - 1;
}

void
wm_window_lock_end_update(wm_window_words_t *words)
{
    atomic_store(&words->updating, 0);
}

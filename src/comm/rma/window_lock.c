// SPDX-License-Identifier: BSD-3-Clause
#include "comm/rma/window_lock.h"

static bool taken[WM_WINDOW_WORDS];

int
wm_window_lock_acquire_words(void)
{
    int index = 0;
    while (index < WM_WINDOW_WORDS && taken[index])
        ++index;
    if (index == WM_WINDOW_WORDS || wm_node_self()->segment == NULL)
        return -1;
    wm_window_words_t *words = &wm_node_self()->segment->window_words[index];
    atomic_store(&words->drawn, 0);
    atomic_store(&words->served, 0);
    atomic_store(&words->readers, 0);
    atomic_store(&words->updating, 0);
    taken[index] = true;
    return index;
}

void
wm_window_lock_release_words(int index)
{
    if (index >= 0)
        taken[index] = false;
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

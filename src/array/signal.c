// SPDX-License-Identifier: BSD-3-Clause
#include "array/signal.h"

#include <stddef.h>
#include <string.h>

#include "cuda/lock.h"
#include "cuda/memory.h"
#include "cuda/word.h"

#define STRIDE 64 // bytes: a cache line each

_Static_assert(WM_SIGNALS == 64, "a bit each");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *words; // kept until the process ends
static uint64_t taken;

bool
wm_signal_acquire(wm_signal_t *signal)
{
    bool found = false;
    wm_lock(&lock);
    if (words == NULL
        && wm_pinned_alloc(WM_SIGNALS * STRIDE, (void **)&words, NULL) == 0)
        memset(words, 0, WM_SIGNALS * STRIDE);
    if (words != NULL && ~taken != 0) {
        int index = __builtin_ctzll(~taken);
        taken |= (uint64_t)1 << index;
        signal->index = (uint32_t)index;
        signal->word = (uint32_t *)(void *)(words + (size_t)index * STRIDE);
        signal->value = *signal->word;
        found = true;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

void
wm_signal_release(const wm_signal_t *signal)
{
    wm_lock(&lock);
    taken &= ~((uint64_t)1 << signal->index);
    pthread_mutex_unlock(&lock);
}

void
wm_signal_renew(wm_signal_t *signal)
{
    ++signal->value;
}

bool
wm_signal_is_set(const wm_signal_t *signal)
{
    return wm_word_reached((_Atomic uint32_t *)signal->word, signal->value);
}

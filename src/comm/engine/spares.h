// SPDX-License-Identifier: BSD-3-Clause
// Blocks of one size that live for microseconds: some are kept for the next.
// Under AddressSanitizer none is, so that it sees each one's end. Any thread.
#ifndef WM_COMM_ENGINE_SPARES_H
#define WM_COMM_ENGINE_SPARES_H

#include <pthread.h>
#include <stddef.h>

#ifdef __SANITIZE_ADDRESS__
#define WM_SPARES 0
#else
#define WM_SPARES 160
#endif

typedef struct {
    pthread_mutex_t lock; // PTHREAD_MUTEX_INITIALIZER
    size_t bytes;         // of each
    int count;
    void *kept[WM_SPARES + 1];
} wm_spares_t;

// NULL when memory is exhausted.
void *
wm_spares_take(wm_spares_t *spares);

void
wm_spares_give(wm_spares_t *spares, void *block);

#endif

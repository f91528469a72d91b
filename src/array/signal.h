// SPDX-License-Identifier: BSD-3-Clause
// Words in page-locked host memory by which kernels tell that they have ended
// (kernels/signal.h): there before the driver would tell. Whoever sees one
// sees what the kernel wrote, and so does all that he begins then. A kernel
// that failed tells nothing: its stream is to be asked as well, now and then.
// Any thread; no GIL.
#ifndef WM_ARRAY_SIGNAL_H
#define WM_ARRAY_SIGNAL_H

#include <stdbool.h>

#include "kernels/signal.h"

// Takes a word, for one kernel after the other; false where there is none.
bool
wm_signal_acquire(wm_signal_t *signal);

// When no kernel is under way that has it.
void
wm_signal_release(const wm_signal_t *signal);

// What the next kernel is given.
void
wm_signal_renew(wm_signal_t *signal);

// Whether that has ended.
bool
wm_signal_is_set(const wm_signal_t *signal);

#endif

// SPDX-License-Identifier: BSD-3-Clause
// Words in page-locked host memory by which kernels tell that they have ended
// (kernels/signal.h), before the driver tells. A thread that sees the value
// sees what the kernel wrote, and so does all work that it begins then. A
// kernel that failed writes no word: the caller also asks the stream from time
// to time. Any thread; no GIL.
#ifndef WM_ARRAY_SIGNAL_H
#define WM_ARRAY_SIGNAL_H

#include <stdbool.h>

#include "kernels/signal.h"

// A stream whose kernel signals its end is looked at once in so many looks:
// the signal is missing only if the stream has failed.
#define WM_SIGNAL_LOOKS 128

// Takes a word, which serves one kernel after the other. Returns false if none
// is free.
bool
wm_signal_acquire(wm_signal_t *signal);

// Gives the word back. No kernel that uses the word is under way.
void
wm_signal_release(const wm_signal_t *signal);

// Sets the value that the next kernel will write.
void
wm_signal_renew(wm_signal_t *signal);

// Returns true if the kernel that writes signal->value has ended.
bool
wm_signal_is_set(const wm_signal_t *signal);

#endif

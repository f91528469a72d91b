// SPDX-License-Identifier: BSD-3-Clause
// Device eager: kernels hand short messages off through eager LL buffers
// (array/eager_ll.h), exportable device memory that is made once for each
// device. Used for memory that cannot be exported or has gaps, and for
// messages on users' streams. Engine lock held.
#ifndef WM_COMM_PROTOCOL_DEVICE_EAGER_H
#define WM_COMM_PROTOCOL_DEVICE_EAGER_H

#include "comm/message/end.h"

// Receiver: accept() and unpacks() of rows whose kernels fetch the data from
// an eager LL buffer. Staged data are in none.
bool
wm_device_eager_accept(wm_end_t *end, const char **why);
bool
wm_device_eager_unpacks(const wm_end_t *end);

// Returns true if the fetching kernel itself waits for the data.
bool
wm_device_eager_waits(const wm_end_t *end);

// Enqueues the fetch on the user's stream, without a limit of time;
// launched() is called as by wm_batch_add.
WM_MUST_CHECK int
wm_device_eager_fetch_on_stream(wm_end_t *end,
                                void (*launched)(wm_end_t *end,
                                                 const wm_error_t *failure),
                                wm_error_t *err);

#endif

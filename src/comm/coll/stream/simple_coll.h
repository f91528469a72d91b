// SPDX-License-Identifier: BSD-3-Clause
// Collectives by the Simple protocol (array/simple.h): one kernel on each GPU,
// for payloads of any length.
#ifndef WM_COMM_COLL_STREAM_SIMPLE_COLL_H
#define WM_COMM_COLL_STREAM_SIMPLE_COLL_H

#include "comm/coll/stream/kernel_coll.h"

// Enqueues the call on its stream.
WM_MUST_CHECK int
wm_simple_coll_enqueue(const wm_kernel_coll_t *kernels,
                       const wm_coll_desc_t *desc,
                       const wm_kernel_coll_words_t *words, wm_error_t *err);

#endif

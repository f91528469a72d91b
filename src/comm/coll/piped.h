// SPDX-License-Identifier: BSD-3-Clause
// Long collectives as one kernel on each GPU, through pipes (array/pipes.h),
// which are as long as they like.
#ifndef WM_COMM_COLL_PIPED_H
#define WM_COMM_COLL_PIPED_H

#include "comm/coll/by_kernels.h"

// Gives it to the stream.
WM_MUST_CHECK int
wm_piped_enqueue(const wm_by_kernels_t *exchange, const wm_laid_t *laid,
                 const wm_by_kernels_words_t *words, wm_error_t *err);

#endif

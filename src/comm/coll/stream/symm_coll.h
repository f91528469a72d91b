// SPDX-License-Identifier: BSD-3-Clause
// The engine "kernels": collectives on a stream (stream_coll.h), through
// symmetric memory. In a blocking call the stream is one of ours, for which we
// wait: so go calls of GPU memory that other GPUs cannot reach, or that cannot
// be exported.
#ifndef WM_COMM_COLL_STREAM_SYMM_COLL_H
#define WM_COMM_COLL_STREAM_SYMM_COLL_H

#include "comm/coll/direct/coll_op.h"

extern const wm_coll_engine_t wm_kernels_engine;

#endif

// SPDX-License-Identifier: BSD-3-Clause
// Words in page-locked host memory that streams write and wait for: how a
// stream tells another process, and a process a stream. Any thread.
#ifndef WM_CUDA_WORD_H
#define WM_CUDA_WORD_H

#include <stdatomic.h>

#include "cuda/device.h"

// When everything before it on `stream` has ended, *word becomes `value`;
// what came before is visible to whoever sees that.
WM_MUST_CHECK int
wm_word_write(int device, CUstream stream, _Atomic uint32_t *word,
              uint32_t value, wm_error_t *err);

// What comes after it on `stream` waits until *word has reached `value`
// (modulo 2^32).
WM_MUST_CHECK int
wm_word_wait(int device, CUstream stream, _Atomic uint32_t *word,
             uint32_t value, wm_error_t *err);

// One of several: the stream writes a word, or waits for it, as above.
typedef struct {
    bool waits;
    _Atomic uint32_t *word;
    uint32_t value;
} wm_word_op_t;

#define WM_WORD_OPS 255 // at once

// All of them, one after the other: in a graph they are one node.
WM_MUST_CHECK int
wm_word_batch(int device, CUstream stream, const wm_word_op_t *ops, int count,
              wm_error_t *err);

// Whether `value` has been reached (modulo 2^32).
bool
wm_word_reached(_Atomic uint32_t *word, uint32_t value);

#endif

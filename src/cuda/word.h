// SPDX-License-Identifier: BSD-3-Clause
// Words in page-locked host memory that streams write and wait for: signals
// between a stream and another process. Any thread.
#ifndef WM_CUDA_WORD_H
#define WM_CUDA_WORD_H

#include <stdatomic.h>

#include "cuda/device.h"

// Makes `stream` write `value` to *word after all its earlier work. A thread
// that sees the value sees the results of that work.
WM_MUST_CHECK int
wm_word_write(int device, CUstream stream, _Atomic uint32_t *word,
              uint32_t value, wm_error_t *err);

// Makes later work on `stream` wait until *word has reached `value` (modulo
// 2^32).
WM_MUST_CHECK int
wm_word_wait(int device, CUstream stream, _Atomic uint32_t *word,
             uint32_t value, wm_error_t *err);

// Do the same for a word of 64 bits, which may be device memory that other
// processes write or read.
WM_MUST_CHECK int
wm_word_write_long(int device, CUstream stream, const unsigned long long *word,
                   uint64_t value, wm_error_t *err);
WM_MUST_CHECK int
wm_word_wait_long(int device, CUstream stream, const unsigned long long *word,
                  uint64_t value, wm_error_t *err);

// One operation of a batch: the stream writes a word, or waits for it, as
// above.
typedef struct {
    bool waits;
    _Atomic uint32_t *word;
    uint32_t value;
} wm_word_op_t;

#define WM_WORD_OPS 255 // most operations in a batch

// Enqueues all operations, one after the other. In a graph they are one node.
WM_MUST_CHECK int
wm_word_batch(int device, CUstream stream, const wm_word_op_t *ops, int count,
              wm_error_t *err);

// Returns true if *word has reached `value` (modulo 2^32).
bool
wm_word_reached(_Atomic uint32_t *word, uint32_t value);

#endif

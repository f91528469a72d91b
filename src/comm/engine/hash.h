// SPDX-License-Identifier: BSD-3-Clause
// 64-bit FNV-1a, one number at a time. It tells values apart; it is no
// cryptography.
#ifndef WM_COMM_ENGINE_HASH_H
#define WM_COMM_ENGINE_HASH_H

#include <stdint.h>

#define WM_HASH_OF_NOTHING 14695981039346656037ull

// Returns the hash of a number after those hashed before; begin with
// WM_HASH_OF_NOTHING.
static inline uint64_t
wm_hash(uint64_t before, uint64_t number)
{
    return (before ^ number) * 1099511628211ull;
}

#endif

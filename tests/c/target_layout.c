// SPDX-License-Identifier: BSD-3-Clause
// Gaps of a target as another rank tells them: impossible ones are refused.
#undef NDEBUG
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "comm/rma/target_layout.h"

#define WORDS 16
#define BYTES 16 // of the operation, in elements of 4

static const int64_t right[][WORDS] = {
    {3, 0, 16, 0},          {5, 0, 4, 1, 4, 16},        {5, 36, 4, 1, 4, -12},
    {6, 0, 8, 0, 64, 8, 0}, {7, 0, 4, 2, 2, 100, 2, 8},
};

// The number of words, and these.
static const int64_t wrong[][WORDS] = {
    {3, 0, 4, 0},        // too few bytes
    {3, 0, -4, 0},       // no bytes
    {3, 0, 16, -1},      // no dimensions
    {3, 0, 4, 1000},     // too many
    {4, 0, 4, 1, 4},     // words are missing
    {2, 0, 16},          // likewise
    {5, 0, 4, 1, 0, 4},  // an empty dimension
    {5, 0, 4, 1, -4, 4}, // likewise
    {5, 0, 2, 1, 8, 2},  // half elements
    {5, 0, 4, 1, 5, 4},  // too many bytes
    {5, 0, 4, 1, INT64_MAX, INT64_MAX},
    {7, 0, 4, 2, INT64_MAX, 1, 4, 4},
    {7, 0, 4, 2, 2, INT64_MAX / 2 + 1, 2, INT64_MAX / 2 + 1},
    {3, INT64_MAX, 16, 0}, // beyond the last address
    {6, 0, 16, 0, 0, INT64_MAX - 8, 0},
    {0}, // none
};

static int
reads(const int64_t *row)
{
    int64_t low = 0, high = 0;
    wm_pattern_t *pattern = NULL;
    wm_error_t err;
    int code = wm_target_layout_read(row + 1, (size_t)row[0], BYTES, 4,
                                     &pattern, &low, &high, &err);
    if (code < 0) {
        assert(pattern == NULL && code == WM_ERR_VALUE);
        return 0;
    }
    assert(low >= 0 && high >= low + BYTES);
    free(pattern);
    return 1;
}

int
main(void)
{
    for (size_t i = 0; i < sizeof right / sizeof *right; ++i)
        assert(reads(right[i]));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
        if (reads(wrong[i])) {
            fprintf(stderr, "row %zu is read\n", i);
            return 1;
        }
    }
    return 0;
}

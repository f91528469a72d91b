// SPDX-License-Identifier: BSD-3-Clause
// The numbers of exchanges come round: two that follow each other have two
// boxes, also there, as one call may be both.
#include <assert.h>
#include <stdint.h>

#include "kernels/boxes.h"

int
main(void)
{
    uint32_t number = UINT32_MAX - 100, before = 0;
    for (int i = 0; i < 200; ++i) {
        uint32_t next = WM_BOXES_NEXT(number);
        assert(next != 0 && next % 2 != number % 2);
        assert((int32_t)(next - number) > 0);
        if (before != 0)
            assert(WM_BOXES_LAST_BUT_ONE(next) == before);
        before = number;
        number = next;
    }
    assert(number < 200);
    return 0;
}

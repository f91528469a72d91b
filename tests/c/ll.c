// SPDX-License-Identifier: BSD-3-Clause
// The numbers of exchanges by LL come round. Two exchanges that follow each
// other use different LL buffers there, too, as one call may be both.
#include <assert.h>
#include <stdint.h>

#include "kernels/ll.h"

int
main(void)
{
    uint32_t number = UINT32_MAX - 100, before = 0;
    for (int i = 0; i < 200; ++i) {
        uint32_t next = WM_LL_NEXT(number);
        assert(next != 0 && next % 2 != number % 2);
        assert((int32_t)(next - number) > 0);
        if (before != 0)
            assert(WM_LL_LAST_BUT_ONE(next) == before);
        before = number;
        number = next;
    }
    assert(number < 200);
    return 0;
}

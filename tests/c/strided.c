// SPDX-License-Identifier: BSD-3-Clause
// Whether two pieces of strided memory share a byte, against a look at every
// byte of them. Built and run by tests/test_comm_layer.py.
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "array/copy.h"
#include "array/strided.h"

#define BYTES 300
#define CASES 200000

static char memory[3 * BYTES];

int
wm_copy_layout(const wm_layout_t *layout, int device, CUstream stream,
               wm_error_t *err)
{
    (void)layout, (void)device, (void)stream, (void)err;
    return WM_ERR_CUDA;
}

static int
draw(int from, int to)
{
    return from + rand() % (to - from + 1);
}

static void
draw_strided(wm_strided_t *made)
{
    wm_strided_init(made, memory + BYTES + draw(0, BYTES - 1), draw(1, 4));
    made->ndim = draw(0, 3);
    for (int i = 0; i < made->ndim; ++i) {
        made->shape[i] = draw(1, 4);
        made->strides[i] = draw(-20, 20);
    }
}

static void
mark(const wm_strided_t *strided, int dim, char *data, char *marks)
{
    if (dim < strided->ndim) {
        for (int i = 0; i < strided->shape[dim]; ++i)
            mark(strided, dim + 1, data + i * strided->strides[dim], marks);
        return;
    }
    memset(marks + (data - memory), 1, (size_t)strided->run);
}

int
main(void)
{
    static char one[sizeof memory], other[sizeof memory];
    int shared = 0;
    srand(7);
    for (int i = 0; i < CASES; ++i) {
        wm_strided_t a, b;
        int found = 0;
        draw_strided(&a);
        draw_strided(&b);
        memset(one, 0, sizeof one);
        memset(other, 0, sizeof other);
        mark(&a, 0, a.data, one);
        mark(&b, 0, b.data, other);
        for (size_t k = 0; k < sizeof memory; ++k)
            found |= one[k] & other[k];
        assert(wm_strided_share(&a, &b) == found);
        shared += found;
    }
    assert(shared > CASES / 10 && shared < CASES - CASES / 10);
    return 0;
}

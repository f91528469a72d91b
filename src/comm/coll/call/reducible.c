// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/call/reducible.h"

#include <stdatomic.h>

#include "array/dtype.h"
#include "comm/coll/call/half.h"
#include "comm/message/element.h"

// Returns the element numbers of MPI's names for the types of array/dtype.h,
// and for pairs.
static const int64_t *
known_numbers(void)
{
    static _Atomic bool made;
    static int64_t numbers[WM_REDUCE_TYPES];
    const MPI_Datatype types[WM_REDUCE_TYPES] = {
#define X(NAME, name, typestr, bytes, code, format, type)                     \
    [WM_REDUCE_##NAME] = type,
        WM_DTYPE_ROWS(X)
#undef X
            [WM_REDUCE_FLOAT_INT] = MPI_FLOAT_INT,
        [WM_REDUCE_DOUBLE_INT] = MPI_DOUBLE_INT,
        [WM_REDUCE_LONG_INT] = MPI_LONG_INT,
        [WM_REDUCE_INT_INT] = MPI_2INT,
        [WM_REDUCE_SHORT_INT] = MPI_SHORT_INT,
    };
    for (int i = 0; i < WM_REDUCE_TYPES && !made; ++i)
        numbers[i] = types[i] != MPI_DATATYPE_NULL
                         ? wm_element_number(types[i])
                         : 0;
    made = true;
    return numbers;
}

int
wm_reducible_op(MPI_Op op)
{
    const MPI_Op ops[WM_REDUCE_OPS] = {
        [WM_REDUCE_SUM] = MPI_SUM,
        [WM_REDUCE_PROD] = MPI_PROD,
        [WM_REDUCE_MIN] = MPI_MIN,
        [WM_REDUCE_MAX] = MPI_MAX,
        [WM_REDUCE_LAND] = MPI_LAND,
        [WM_REDUCE_LOR] = MPI_LOR,
        [WM_REDUCE_LXOR] = MPI_LXOR,
        [WM_REDUCE_BAND] = MPI_BAND,
        [WM_REDUCE_BOR] = MPI_BOR,
        [WM_REDUCE_BXOR] = MPI_BXOR,
        [WM_REDUCE_MINLOC] = MPI_MINLOC,
        [WM_REDUCE_MAXLOC] = MPI_MAXLOC,
        // In MPI, these two are for windows only.
        [WM_REDUCE_REPLACE] = MPI_OP_NULL,
        [WM_REDUCE_NO_OP] = MPI_OP_NULL,
        [WM_REDUCE_AVG] = MPI_OP_NULL,
    };
    int at = 0;
    while (at < WM_REDUCE_OPS && (ops[at] == MPI_OP_NULL || ops[at] != op))
        ++at;
    return at;
}

bool
wm_reducible_reduces(MPI_Op op)
{
    return op != MPI_OP_NULL && op != MPI_REPLACE && op != MPI_NO_OP;
}

// Finds the kernels' name of MPI's type; returns false if there is none.
static bool
find_type(MPI_Datatype type, wm_reduce_type_t *kernel_type)
{
    int of = 0;
    const int64_t *numbers = known_numbers();
    if (type == MPI_DATATYPE_NULL)
        return false;
    if (wm_half_is(type, kernel_type))
        return true;
    int64_t number = wm_element_number(type == MPI_BYTE ? MPI_UINT8_T : type);
    while (of < WM_REDUCE_TYPES && numbers[of] != number)
        ++of;
    *kernel_type = (wm_reduce_type_t)of;
    return of < WM_REDUCE_TYPES;
}

bool
wm_reducible(MPI_Datatype type, size_t size, MPI_Op op,
             wm_reduce_type_t *kernel_type, wm_reduce_op_t *kernel_op)
{
    int at = wm_reducible_op(op);
    *kernel_op = (wm_reduce_op_t)at;
    return at < WM_REDUCE_OPS && find_type(type, kernel_type)
           && wm_reduce_takes(*kernel_type, *kernel_op)
           && wm_reduce_size(*kernel_type) == size;
}

const char *
wm_reducible_type_name(unsigned type)
{
    return type < WM_DTYPES         ? wm_dtype_info((wm_dtype_t)type)->name
           : type < WM_REDUCE_TYPES ? wm_element_name(known_numbers()[type])
                                    : "another datatype";
}

const char *
wm_reducible_name_of(MPI_Datatype type)
{
    wm_reduce_type_t known = WM_REDUCE_TYPES;
    const char *name = wm_element_of(type);
    (void)find_type(type, &known);
    return name != NULL ? name : wm_reducible_type_name(known);
}

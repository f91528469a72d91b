// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/call/reducible.h"

#include <stdatomic.h>

#include "array/dtype.h"
#include "comm/coll/call/half.h"
#include "comm/engine/posted.h"
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

// Returns MPI's name of an operation; MPI_OP_NULL if it has none.
static MPI_Op
mpi_op(unsigned op)
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
    return op < WM_REDUCE_OPS ? ops[op] : MPI_OP_NULL;
}

int
wm_reducible_op(MPI_Op op)
{
    unsigned at = 0;
    while (at < WM_REDUCE_OPS && (op == MPI_OP_NULL || mpi_op(at) != op))
        ++at;
    return (int)at;
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

// Elements that MPI alone reduces, and a kernels' type that takes the same
// operations.
static const struct {
    MPI_Datatype type;
    wm_reduce_type_t as;
} of_mpi[] = {
    {MPI_LONG_DOUBLE, WM_REDUCE_FLOAT64},
    {MPI_C_LONG_DOUBLE_COMPLEX, WM_REDUCE_COMPLEX128},
    {MPI_LONG_DOUBLE_INT, WM_REDUCE_DOUBLE_INT},
    {MPI_REAL16, WM_REDUCE_FLOAT64},
    {MPI_COMPLEX32, WM_REDUCE_COMPLEX128},
    {MPI_LOGICAL, WM_REDUCE_BOOL},
    {MPI_2REAL, WM_REDUCE_DOUBLE_INT},
    {MPI_2DOUBLE_PRECISION, WM_REDUCE_DOUBLE_INT},
};

bool
wm_reducible_element(MPI_Datatype type, wm_reduce_type_t *number)
{
    if (find_type(type, number))
        return true;
    int64_t of = type != MPI_DATATYPE_NULL ? wm_element_number(type) : 0;
    *number = (wm_reduce_type_t)(WM_REDUCE_TYPES + of);
    return wm_element_is_known(of)
           && (wm_reducible_takes(*number, WM_REDUCE_SUM)
               || wm_reducible_takes(*number, WM_REDUCE_LAND)
               || wm_reducible_takes(*number, WM_REDUCE_MINLOC));
}

// Returns MPI's type of a number from WM_REDUCE_TYPES on.
static MPI_Datatype
type_of_mpi(unsigned number)
{
    return wm_element_type((int64_t)number - WM_REDUCE_TYPES);
}

bool
wm_reducible_takes(unsigned type, unsigned op)
{
    if (op >= WM_REDUCE_OPS)
        return false;
    if (type < WM_REDUCE_TYPES)
        return wm_reduce_takes(type, op);
    MPI_Datatype of = type_of_mpi(type);
    for (size_t i = 0; i < sizeof of_mpi / sizeof *of_mpi; ++i)
        if (of != MPI_DATATYPE_NULL && of_mpi[i].type == of)
            return mpi_op(op) != MPI_OP_NULL
                   && wm_reduce_takes(of_mpi[i].as, op)
                   && wm_reducible_size(type) > 0;
    return false;
}

size_t
wm_reducible_size(unsigned type)
{
    MPI_Aint low = 0, extent = 0;
    if (type < WM_REDUCE_TYPES)
        return wm_reduce_size(type);
    MPI_Type_get_extent(type_of_mpi(type), &low, &extent);
    return (size_t)extent;
}

int
wm_reducible_reduce(unsigned type, wm_reduce_op_t op, void *dst,
                    const void *src, size_t count, wm_error_t *err)
{
    const void *sources[] = {src, dst};
    if (type < WM_REDUCE_TYPES) {
        wm_reduce_host(type, op, dst, sources, 2, count);
        return 0;
    }
    return wm_mpi_check(
        MPI_Reduce_local(src, dst, (int)count, type_of_mpi(type), mpi_op(op)),
        "MPI_Reduce_local", err);
}

const char *
wm_reducible_type_name(unsigned type)
{
    return type < WM_DTYPES         ? wm_dtype_info((wm_dtype_t)type)->name
           : type < WM_REDUCE_TYPES ? wm_element_name(known_numbers()[type])
                                    : wm_element_name(type - WM_REDUCE_TYPES);
}

const char *
wm_reducible_name_of(MPI_Datatype type)
{
    wm_reduce_type_t known = WM_REDUCE_TYPES;
    const char *name = wm_element_of(type);
    (void)find_type(type, &known);
    return name != NULL ? name : wm_reducible_type_name(known);
}

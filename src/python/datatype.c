// SPDX-License-Identifier: BSD-3-Clause
#include "python/datatype.h"

MPI_Datatype
wm_datatype_of(wm_dtype_t dtype)
{
    switch (dtype) {
    case WM_BOOL:
        return MPI_C_BOOL;
    case WM_INT8:
        return MPI_INT8_T;
    case WM_INT16:
        return MPI_INT16_T;
    case WM_INT32:
        return MPI_INT32_T;
    case WM_INT64:
        return MPI_INT64_T;
    case WM_UINT8:
        return MPI_UINT8_T;
    case WM_UINT16:
        return MPI_UINT16_T;
    case WM_UINT32:
        return MPI_UINT32_T;
    case WM_UINT64:
        return MPI_UINT64_T;
    case WM_FLOAT32:
        return MPI_FLOAT;
    case WM_FLOAT64:
        return MPI_DOUBLE;
    case WM_COMPLEX64:
        return MPI_C_FLOAT_COMPLEX;
    case WM_COMPLEX128:
        return MPI_C_DOUBLE_COMPLEX;
    default:
        return MPI_DATATYPE_NULL;
    }
}

// How a datatype was made: 1 with the one type within, which release_inner()
// takes, 0 where there is none, -1 where there are several or the MPI does not
// tell. Types made with large counts answer only to calls of MPI 4.
static int
look_inside(MPI_Datatype type, int *combiner, MPI_Datatype *inner)
{
    int integer[32];
    MPI_Aint address[2];
#if MPI_VERSION >= 4
    MPI_Count integers, addresses, counts, types, count[32];
    if (MPI_Type_get_envelope_c(type, &integers, &addresses, &counts, &types,
                                combiner)
            != MPI_SUCCESS
        || types > 1 || integers > 32 || addresses > 2 || counts > 32)
        return -1;
    if (types == 1
        && MPI_Type_get_contents_c(type, integers, addresses, counts, types,
                                   integer, address, count, inner)
               != MPI_SUCCESS)
        return -1;
#else
    int integers, addresses, types;
    if (MPI_Type_get_envelope(type, &integers, &addresses, &types, combiner)
            != MPI_SUCCESS
        || types > 1 || integers > 32 || addresses > 2)
        return -1;
    if (types == 1
        && MPI_Type_get_contents(type, integers, addresses, types, integer,
                                 address, inner)
               != MPI_SUCCESS)
        return -1;
#endif
    return (int)types;
}

// Named types are not ours to free.
static void
release_inner(MPI_Datatype inner)
{
    int combiner;
    MPI_Datatype within;
    int types = look_inside(inner, &combiner, &within);
    if (types == 1)
        release_inner(within);
    if (types != 0)
        MPI_Type_free(&inner);
}

bool
wm_datatype_is_dense(MPI_Datatype type)
{
    MPI_Aint low = 0, extent = 0, true_low = 0, true_extent = 0;
    int size = 0, combiner;
    MPI_Datatype inner;
    MPI_Type_get_extent(type, &low, &extent);
    MPI_Type_get_true_extent(type, &true_low, &true_extent);
    MPI_Type_size(type, &size);
    if (low != 0 || true_low != 0 || extent != size || true_extent != size)
        return false;
    int types = look_inside(type, &combiner, &inner);
    if (types <= 0)
        return types == 0;
    bool dense =
        (combiner == MPI_COMBINER_DUP || combiner == MPI_COMBINER_CONTIGUOUS
         || combiner == MPI_COMBINER_RESIZED || combiner == MPI_COMBINER_VECTOR
         || combiner == MPI_COMBINER_HVECTOR
         || combiner == MPI_COMBINER_SUBARRAY)
        && wm_datatype_is_dense(inner);
    release_inner(inner);
    return dense;
}

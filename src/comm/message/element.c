// SPDX-License-Identifier: BSD-3-Clause
#include "comm/message/element.h"

#include <stddef.h>
#include <string.h>

// The first row with a name gives its number. For 64-bit Linux.
static const struct {
    MPI_Datatype type;
    const char *name;
} rows[] = {
    {MPI_DOUBLE, "float64"},
    {MPI_FLOAT, "float32"},
    {MPI_INT64_T, "int64"},
    {MPI_INT32_T, "int32"},
    {MPI_UINT8_T, "uint8"},
    {MPI_BYTE, "byte"},
    {MPI_INT8_T, "int8"},
    {MPI_INT16_T, "int16"},
    {MPI_UINT16_T, "uint16"},
    {MPI_UINT32_T, "uint32"},
    {MPI_UINT64_T, "uint64"},
    {MPI_C_BOOL, "bool"},
    {MPI_C_FLOAT_COMPLEX, "complex64"},
    {MPI_C_DOUBLE_COMPLEX, "complex128"},
    {MPI_LONG, "int64"},
    {MPI_INT, "int32"},
    {MPI_LONG_LONG, "int64"},
    {MPI_SHORT, "int16"},
    {MPI_SIGNED_CHAR, "int8"},
    {MPI_UNSIGNED_CHAR, "uint8"},
    {MPI_UNSIGNED_SHORT, "uint16"},
    {MPI_UNSIGNED, "uint32"},
    {MPI_UNSIGNED_LONG, "uint64"},
    {MPI_UNSIGNED_LONG_LONG, "uint64"},
    {MPI_AINT, "int64"},
    {MPI_OFFSET, "int64"},
    {MPI_COUNT, "int64"},
    {MPI_CHAR, "char"},
    {MPI_WCHAR, "wchar_t"},
    {MPI_PACKED, "packed"},
    {MPI_LONG_DOUBLE, "longdouble"},
    {MPI_C_LONG_DOUBLE_COMPLEX, "clongdouble"},
    {MPI_FLOAT_INT, "pair of float32 and int32"},
    {MPI_DOUBLE_INT, "pair of float64 and int32"},
    {MPI_LONG_INT, "pair of int64 and int32"},
    {MPI_2INT, "pair of int32 and int32"},
    {MPI_SHORT_INT, "pair of int16 and int32"},
    {MPI_LONG_DOUBLE_INT, "pair of longdouble and int32"},
    {MPI_CXX_BOOL, "bool"},
    {MPI_CXX_FLOAT_COMPLEX, "complex64"},
    {MPI_CXX_DOUBLE_COMPLEX, "complex128"},
    {MPI_INTEGER, "int32"},
    {MPI_REAL, "float32"},
    {MPI_DOUBLE_PRECISION, "float64"},
    {MPI_COMPLEX, "complex64"},
    {MPI_DOUBLE_COMPLEX, "complex128"},
    {MPI_INTEGER1, "int8"},
    {MPI_INTEGER2, "int16"},
    {MPI_INTEGER4, "int32"},
    {MPI_INTEGER8, "int64"},
    {MPI_REAL4, "float32"},
    {MPI_REAL8, "float64"},
    {MPI_COMPLEX8, "complex64"},
    {MPI_COMPLEX16, "complex128"},
    {MPI_CXX_LONG_DOUBLE_COMPLEX, "clongdouble"},
    {MPI_REAL16, "real16"},
    {MPI_COMPLEX32, "complex32"},
    {MPI_LOGICAL, "logical"},
    {MPI_2INTEGER, "pair of int32 and int32"},
    {MPI_2REAL, "pair of float32 and float32"},
    {MPI_2DOUBLE_PRECISION, "pair of float64 and float64"},
};
#define ROWS (sizeof rows / sizeof *rows)

static size_t
row_of(MPI_Datatype type)
{
    size_t row = 0;
    while (row < ROWS && rows[row].type != type)
        ++row;
    return row;
}

const char *
wm_element_of(MPI_Datatype type)
{
    size_t row = type != MPI_BYTE ? row_of(type) : ROWS;
    return row < ROWS ? rows[row].name : NULL;
}

int64_t
wm_element_number(MPI_Datatype type)
{
    size_t row = row_of(type), first = 0;
    if (row < ROWS) {
        while (strcmp(rows[first].name, rows[row].name) != 0)
            ++first;
        return 1 + (int64_t)first;
    }
    MPI_Aint low = 0, extent = 0;
    MPI_Count size = 0;
    MPI_Type_size_x(type, &size);
    MPI_Type_get_extent(type, &low, &extent);
    uint64_t both = (uint64_t)size * 0x9e3779b97f4a7c15u + (uint64_t)extent;
    return (int64_t)(ROWS + 1 + (both >> 9));
}

bool
wm_element_is_known(int64_t number)
{
    return number > 0 && (uint64_t)number <= ROWS;
}

MPI_Datatype
wm_element_type(int64_t number)
{
    return wm_element_is_known(number) ? rows[number - 1].type
                                       : MPI_DATATYPE_NULL;
}

const char *
wm_element_name(int64_t number)
{
    return wm_element_is_known(number) ? rows[number - 1].name
                                       : "another datatype";
}

unsigned long long
wm_element_count(int64_t number, uint64_t nbytes)
{
    int size = 0;
    if (wm_element_is_known(number))
        MPI_Type_size(rows[number - 1].type, &size);
    return size > 0 ? nbytes / (unsigned)size : nbytes;
}

// SPDX-License-Identifier: BSD-3-Clause
#define _GNU_SOURCE
#include "array/dtype.h"

#include <string.h>

// DLPack's type codes.
enum {
    DL_INT = 0,
    DL_UINT = 1,
    DL_FLOAT = 2,
    DL_BFLOAT = 4,
    DL_COMPLEX = 5,
    DL_BOOL = 6,
};

static const wm_dtype_info_t infos[WM_DTYPES] = {
#define X(NAME, name, typestr, bytes, code, format, mpi)                      \
    {name, typestr, bytes, DL_##code, 8 * (bytes), format},
    WM_DTYPE_ROWS(X)
#undef X
};

_Static_assert(WM_INT64 == WM_INT8 + 3 && WM_UINT64 == WM_UINT8 + 3
                   && WM_FLOAT64 == WM_FLOAT16 + 2,
               "they stand in order of size");

const wm_dtype_info_t *
wm_dtype_info(wm_dtype_t dtype)
{
    return &infos[dtype];
}

int
wm_dtype_from_typestr(const char *typestr, wm_dtype_t *dtype, wm_error_t *err)
{
    size_t length = strnlen(typestr, 8);
    if (length < 2 || length >= 8 || strchr("<>=|", typestr[0]) == NULL) {
        return wm_error_set(err, WM_ERR_TYPE, 0,
                            "\"%.20s\" is not a typestring: expected one "
                            "such as \"<f4\"",
                            typestr);
    }
    for (int i = 0; i < WM_DTYPES; i++) {
        if (infos[i].typestr == NULL
            || strcmp(infos[i].typestr + 1, typestr + 1) != 0)
            continue;
        if (typestr[0] == '>' && infos[i].itemsize > 1) {
            return wm_error_set(
                err, WM_ERR_TYPE, 0,
                "\"%s\" is %s in big-endian byte order: convert the array to "
                "native byte order (\"%s\") first",
                typestr, infos[i].name, infos[i].typestr);
        }
        *dtype = (wm_dtype_t)i;
        return 0;
    }
    return wm_error_set(err, WM_ERR_TYPE, 0,
                        "element type \"%s\" is not supported: use bool, an "
                        "integer, float16/32/64, complex64/128 or bfloat16",
                        typestr);
}

int
wm_dtype_from_dlpack(uint8_t code, uint8_t bits, uint16_t lanes,
                     wm_dtype_t *dtype, wm_error_t *err)
{
    if (lanes != 1) {
        return wm_error_set(err, WM_ERR_TYPE, 0,
                            "DLPack vector types (lanes = %d) are not "
                            "supported: view them as scalars with one more "
                            "dimension",
                            lanes);
    }
    for (int i = 0; i < WM_DTYPES; i++) {
        if (infos[i].dlpack_code == code && infos[i].dlpack_bits == bits) {
            *dtype = (wm_dtype_t)i;
            return 0;
        }
    }
    return wm_error_set(err, WM_ERR_TYPE, 0,
                        "DLPack element type (code %d, %d bits) is not "
                        "supported: use bool, an integer, float16/32/64, "
                        "complex64/128 or bfloat16",
                        code, bits);
}

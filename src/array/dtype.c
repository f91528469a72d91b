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
    [WM_BOOL] = {"bool", "|b1", 1, DL_BOOL, 8},
    [WM_INT8] = {"int8", "|i1", 1, DL_INT, 8},
    [WM_INT16] = {"int16", "<i2", 2, DL_INT, 16},
    [WM_INT32] = {"int32", "<i4", 4, DL_INT, 32},
    [WM_INT64] = {"int64", "<i8", 8, DL_INT, 64},
    [WM_UINT8] = {"uint8", "|u1", 1, DL_UINT, 8},
    [WM_UINT16] = {"uint16", "<u2", 2, DL_UINT, 16},
    [WM_UINT32] = {"uint32", "<u4", 4, DL_UINT, 32},
    [WM_UINT64] = {"uint64", "<u8", 8, DL_UINT, 64},
    [WM_FLOAT16] = {"float16", "<f2", 2, DL_FLOAT, 16},
    [WM_FLOAT32] = {"float32", "<f4", 4, DL_FLOAT, 32},
    [WM_FLOAT64] = {"float64", "<f8", 8, DL_FLOAT, 64},
    [WM_COMPLEX64] = {"complex64", "<c8", 8, DL_COMPLEX, 64},
    [WM_COMPLEX128] = {"complex128", "<c16", 16, DL_COMPLEX, 128},
    [WM_BFLOAT16] = {"bfloat16", NULL, 2, DL_BFLOAT, 16},
};

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
            || strcmp(infos[i].typestr + 1, typestr + 1) != 0) {
            continue;
        }
        if (typestr[0] == '>' && infos[i].itemsize > 1) {
            return wm_error_set(
                err, WM_ERR_TYPE, 0,
                "\"%s\" is %s in big-endian byte order: convert it to "
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

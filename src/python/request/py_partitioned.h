// SPDX-License-Identifier: BSD-3-Clause
// Psend_init and Precv_init of communicators. GIL held.
#ifndef WM_PYTHON_REQUEST_PY_PARTITIONED_H
#define WM_PYTHON_REQUEST_PY_PARTITIONED_H

#include "python/core/module.h"

WM_PY_DECLARE_FASTCALL(wm_py_comm_Psend_init)
WM_PY_DECLARE_FASTCALL(wm_py_comm_Precv_init)

#endif

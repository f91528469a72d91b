// SPDX-License-Identifier: BSD-3-Clause
#include "python/core/module.h"

PyObject *
wm_py_cold(const char *module, const char *function, const char *format, ...)
{
    PyObject *result = NULL, *arguments = NULL;
    PyObject *found = PyImport_ImportModule(module);
    PyObject *call = found != NULL ? PyObject_GetAttrString(found, function)
                                   : NULL;
    if (call != NULL) {
        va_list values;
        va_start(values, format);
        arguments = Py_VaBuildValue(format, values);
        va_end(values);
    }
    if (arguments != NULL)
        result = PyObject_CallObject(call, arguments);
    Py_XDECREF(found);
    Py_XDECREF(call);
    Py_XDECREF(arguments);
    return result;
}

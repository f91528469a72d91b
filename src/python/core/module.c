// SPDX-License-Identifier: BSD-3-Clause
#include "python/core/module.h"

#include "array/kernels.h"
#include "cuda/driver.h"
#include "cuda/memory.h"
#include "comm/engine/engine.h"
#include "comm/engine/links.h"
#include "comm/link/ucx_library.h"
#include "cuda/library.h"
#include "cuda/settings.h"
#include "python/core/mpi4py.h"

#ifndef WM_VERSION
#define WM_VERSION "0+unknown"
#endif

static wm_state_t nothing;
wm_state_t *wm_py_state = &nothing;

PyDoc_STRVAR(
    memory_stats_doc,
    "_memory_stats()\n--\n\n"
    "Return the memory that warpmpi has allocated in this process, as\n"
    "a dict of ints: bytes of device and of pinned host memory, bytes\n"
    "in use, number of blocks, and number of calls of the driver's\n"
    "allocators.");

static PyObject *
memory_stats(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    wm_memory_stats_t s;
    wm_memory_stats(&s);
    return Py_BuildValue(
        "{s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:n}", "device_bytes",
        (Py_ssize_t)s.device_bytes, "device_bytes_used",
        (Py_ssize_t)s.device_bytes_used, "pinned_bytes",
        (Py_ssize_t)s.pinned_bytes, "pinned_bytes_used",
        (Py_ssize_t)s.pinned_bytes_used, "blocks", (Py_ssize_t)s.blocks,
        "pinned_blocks", (Py_ssize_t)s.pinned_blocks, "device_allocations",
        (Py_ssize_t)s.device_allocations, "pinned_allocations",
        (Py_ssize_t)s.pinned_allocations);
}

PyDoc_STRVAR(
    driver_version_doc,
    "get_cuda_driver_version()\n--\n\n"
    "The CUDA version that the driver supports, as (major, minor); None\n"
    "where there is no driver.");

static PyObject *
driver_version(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    int version;
    WM_PY_UNLOCKED(version = wm_driver_version());
    if (version == 0)
        Py_RETURN_NONE;
    return Py_BuildValue("ii", version / 1000, version % 1000 / 10);
}

PyDoc_STRVAR(kernels_cuda_doc,
             "_kernels_cuda()\n--\n\n"
             "The version of CUDA that compiled the kernels, and to which "
             "code; the\ndriver must be for this major version, or a newer "
             "one.");

static PyObject *
kernels_cuda(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return Py_BuildValue("iis", wm_kernels_cuda / 1000,
                         wm_kernels_cuda % 1000 / 10, wm_kernels_codes);
}

PyDoc_STRVAR(
    settings_doc,
    "_settings()\n--\n\n"
    "The environment variables that are read at run time: a dict\n"
    "of (type, default, values, ranks, help) by name. Default \"\": off.");

static PyObject *
settings(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    PyObject *result = PyDict_New();
    for (int i = 0; i < WM_SETTINGS_KNOWN && result != NULL; ++i) {
        const wm_setting_row_t *row = &wm_setting_rows[i];
        PyObject *value = Py_BuildValue(
            "sssss", wm_setting_types[row->type], row->standard, row->values,
            wm_setting_ranks[row->ranks], row->help);
        if (value == NULL
            || PyDict_SetItemString(result, row->name, value) < 0)
            Py_CLEAR(result);
        Py_XDECREF(value);
    }
    return result;
}

PyDoc_STRVAR(links_doc,
             "_links()\n--\n\n"
             "The names of the transports, in order of preference.");

static PyObject *
links(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    static const char names[] =
#define X(name) " " #name
        WM_LINKS(X);
#undef X
    PyObject *text = PyUnicode_FromString(names);
    PyObject *result = text != NULL ? PyUnicode_Split(text, NULL, -1) : NULL;
    Py_XDECREF(text);
    return result;
}

PyDoc_STRVAR(ucx_doc, "_ucx()\n--\n\n"
                      "UCX's version, path and transports, or why it is of no "
                      "use; None: it was\nnot asked.");

static PyObject *
ucx(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    wm_engine_lock();
    const char *told = wm_ucx_tell();
    wm_engine_unlock();
    return told != NULL ? PyUnicode_FromString(told) : Py_NewRef(Py_None);
}

PyMethodDef wm_py_module_functions[] = {
    {"_kernels_cuda", kernels_cuda, METH_NOARGS, kernels_cuda_doc},
    {"_links", links, METH_NOARGS, links_doc},
    {"_memory_stats", memory_stats, METH_NOARGS, memory_stats_doc},
    {"_settings", settings, METH_NOARGS, settings_doc},
    {"_ucx", ucx, METH_NOARGS, ucx_doc},
    {"get_cuda_driver_version", driver_version, METH_NOARGS,
     driver_version_doc},
    {0},
};

static int
intern_names(wm_state_t *state)
{
#define X(name, text)                                                         \
    if ((state->names.name = PyUnicode_InternFromString(text)) == NULL)       \
        return -1;
    WM_PY_NAMES(X)
#undef X
    return 0;
}

static int
add_types(PyObject *module, wm_state_t *state)
{
    PyTypeObject *mpi_request = wm_py_mpi_request_type();
    PyTypeObject *mpi_prequest = wm_py_mpi_prequest_type();
    PyTypeObject *mpi_message = wm_py_mpi_message_type();
    PyTypeObject *mpi_win = wm_py_mpi_win_type();
    const struct {
        PyType_Spec *spec;
        PyTypeObject **type;
        PyTypeObject **bases[2];
    } rows[] = {
#define X(name, ...)                                                          \
    {&wm_py_##name##_spec, &state->name##_type, {__VA_ARGS__}},
        WM_PY_TYPES(X)
#undef X
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        PyTypeObject **const *bases = rows[i].bases;
        PyObject *tuple = NULL;
        if (bases[0] != NULL) {
            tuple = PyTuple_Pack(bases[1] != NULL ? 2 : 1, *bases[0],
                                 bases[1] != NULL ? *bases[1] : NULL);
            if (tuple == NULL)
                return -1;
        }
        *rows[i].type = (PyTypeObject *)PyType_FromModuleAndSpec(
            module, rows[i].spec, tuple);
        Py_XDECREF(tuple);
        if (*rows[i].type == NULL
            || PyModule_AddType(module, *rows[i].type) < 0)
            return -1;
    }
    return 0;
}

static int
add_functions(PyObject *module)
{
#define X(name)                                                               \
    if (PyModule_AddFunctions(module, wm_py_##name##_functions) < 0)          \
        return -1;
    WM_PY_FUNCTIONS(X)
#undef X
    return 0;
}

// Packages may have libraries that the core opens.
static int
set_library_folders(void)
{
    PyObject *path = PySys_GetObject("path"); // borrowed
    PyObject *colon = PyUnicode_FromString(":");
    PyObject *text = NULL;
    int code = -1;
    if (path == NULL || colon == NULL)
        goto done;
    text = PyUnicode_Join(colon, path);
    const char *folders = text != NULL ? PyUnicode_AsUTF8(text) : NULL;
    if (folders != NULL)
        wm_library_set_folders(folders);
    PyErr_Clear(); // a program may put anything into sys.path
    code = 0;
done:
    Py_XDECREF(text);
    Py_XDECREF(colon);
    return code;
}

static int
execute(PyObject *module)
{
    static bool executed;
    if (PyInterpreterState_Get() != PyInterpreterState_Main())
        return wm_py_fail(PyExc_ImportError,
                          "warpmpi does not support sub-interpreters");
    if (executed)
        return wm_py_fail(PyExc_ImportError,
                          "warpmpi._core can be loaded only once a process");
    wm_py_state = PyModule_GetState(module);
    if (wm_py_watch_gil() < 0 || wm_py_add_exceptions(module) < 0
        || wm_py_watch_children() < 0 || set_library_folders() < 0
        || wm_py_mpi_import() < 0 || intern_names(wm_py_state) < 0
        || add_types(module, wm_py_state) < 0 || add_functions(module) < 0
        || PyModule_AddStringConstant(module, "__version__", WM_VERSION) < 0)
        return -1;
    executed = true; // after a failure the import may be repeated
    return 0;
}

static int
module_traverse(PyObject *module, visitproc visit, void *arg)
{
    wm_state_t *state = PyModule_GetState(module);
#define X(name, ...) Py_VISIT(state->name##_type);
    WM_PY_TYPES(X)
#undef X
#define X(name) Py_VISIT(state->name);
    WM_PY_OBJECTS(X)
#undef X
    for (size_t i = 0; i < WM_MAX_DEVICES + 1; ++i)
        Py_VISIT(state->devices[i]);
    for (size_t i = 0; i < WM_DTYPES; ++i)
        Py_VISIT(state->dtypes[i]);
    for (size_t i = 0; i < WM_TYPES_KEPT; ++i)
        Py_VISIT(state->libraries[i].type);
    return 0;
}

static int
module_clear(PyObject *module)
{
    wm_state_t *state = PyModule_GetState(module);
#define X(name, ...) Py_CLEAR(state->name##_type);
    WM_PY_TYPES(X)
#undef X
#define X(name) Py_CLEAR(state->name);
    WM_PY_OBJECTS(X)
#undef X
#define X(name, text) Py_CLEAR(state->names.name);
    WM_PY_NAMES(X)
#undef X
    for (size_t i = 0; i < WM_MAX_DEVICES + 1; ++i)
        Py_CLEAR(state->devices[i]);
    for (size_t i = 0; i < WM_DTYPES; ++i)
        Py_CLEAR(state->dtypes[i]);
    for (size_t i = 0; i < WM_TYPES_KEPT; ++i)
        Py_CLEAR(state->libraries[i].type);
    return 0;
}

// Leaves an empty state for code that outlives the module.
static void
module_free(void *module)
{
    (void)module_clear(module);
    if (PyModule_GetState(module) == wm_py_state)
        wm_py_state = &nothing;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_USED},
#endif
    {0, NULL},
};

PyDoc_STRVAR(
    module_doc,
    "The C core of warpmpi. Its public names are those of the package\n"
    "warpmpi.");

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,   .m_name = "warpmpi._core",
    .m_doc = module_doc,     .m_size = sizeof(wm_state_t),
    .m_slots = slots,        .m_traverse = module_traverse,
    .m_clear = module_clear, .m_free = module_free,
};

PyMODINIT_FUNC
PyInit__core(void)
{
    return PyModuleDef_Init(&definition);
}

// SPDX-License-Identifier: BSD-3-Clause
#include "python/staging/runs.h"

#include <limits.h>
#include <stdlib.h>

#include "python/array/py_array.h"
#include "python/message/blocks.h"
#include "python/message/datatype.h"
#include "python/message/elements.h"
#include "python/message/specification.h"

static const char runs_name[] = "warpmpi.runs";

typedef struct {
    const char *base; // the offsets of the parts count from here
    wm_typemap_t parts;
} runs_t;

static void
runs_free(runs_t *runs)
{
    wm_py_typemap_free(&runs->parts);
    free(runs);
}

static void
free_capsule(PyObject *capsule)
{
    runs_free(PyCapsule_GetPointer(capsule, runs_name));
}

static runs_t *
runs_new(void)
{
    runs_t *runs = malloc(sizeof *runs);
    if (runs == NULL)
        PyErr_NoMemory();
    else
        wm_py_typemap_init(&runs->parts, INT_MAX);
    return runs;
}

// Returns the result of _runs. Takes over the runs, whose offsets count from
// `base`; NULL: from the lowest byte.
static PyObject *
tell(runs_t *runs, char *base, bool exact)
{
    char *low = base, *high = base;
    wm_py_typemap_bounds(&runs->parts, &low, &high);
    runs->base = base != NULL ? base : low;
    PyObject *capsule = PyCapsule_New(runs, runs_name, free_capsule);
    if (capsule == NULL)
        runs_free(runs);
    return capsule != NULL ? Py_BuildValue(
               "nnNN", (Py_ssize_t)((uintptr_t)low - (uintptr_t)base),
               (Py_ssize_t)(high - low), capsule, PyBool_FromLong(exact))
                           : NULL;
}

// Drops an exception that says that MPI or mpi4py refuses the buffer: the call
// reports it. Returns 0, or -1 if the exception is another one.
static int
drop_wrong(void)
{
    if (PyErr_ExceptionMatches(PyExc_TypeError)
        || PyErr_ExceptionMatches(PyExc_ValueError)
        || PyErr_ExceptionMatches(PyExc_AttributeError)
        || PyErr_ExceptionMatches(PyExc_LookupError)
        || PyErr_ExceptionMatches(PyExc_ArithmeticError)
        || PyErr_ExceptionMatches(wm_py_state->mpi_exception))
        PyErr_Clear();
    return PyErr_Occurred() != NULL ? -1 : 0;
}

// Measures the elements of a block.
static int
measure(const wm_py_block_t *block, Py_ssize_t itemsize, const char *name,
        wm_extent_t *of)
{
    *of = (wm_extent_t){
        .size = itemsize, .high = itemsize, .extent = itemsize};
    if (block->datatype == NULL)
        return 0;
    return block->type != MPI_DATATYPE_NULL
               ? wm_py_datatype_measure(block->type, name, of)
               : wm_py_mpi_fail(MPI_ERR_TYPE,
                                "%s: MPI.DATATYPE_NULL is no datatype", name);
}

// Checks that the bytes of a block are in memory of `nbytes` bytes. Returns 0,
// or 1 with a ValueError naming the argument.
static int
check_within(const wm_py_block_t *block, const wm_extent_t *of, size_t nbytes,
             const char *name)
{
    __int128 last = (__int128)(block->count - 1) * of->extent;
    __int128 low = (__int128)block->at + of->low + (last < 0 ? last : 0);
    __int128 high = (__int128)block->at + of->high + (last > 0 ? last : 0);
    if (low >= 0 && high <= (__int128)nbytes)
        return 0;
    bool told = low >= PY_SSIZE_T_MIN && high <= PY_SSIZE_T_MAX;
    PyErr_Format(PyExc_ValueError,
                 "%s: bytes %zd to %zd are not all in the array of %zu bytes",
                 name, told ? (Py_ssize_t)low : block->at,
                 told ? (Py_ssize_t)high : PY_SSIZE_T_MAX, nbytes);
    return 1;
}

// The memory that blocks are in: an array's, or all from address 0 on.
typedef struct {
    char *data;
    size_t nbytes;
    Py_ssize_t itemsize;
} memory_t;

// Adds the bytes of the blocks. Returns 0, or 1 if these include gaps; 2 with
// a ValueError naming the argument if a block is not within the memory; or -1
// with another exception.
static int
add_blocks(const wm_py_blocks_t *blocks, const memory_t *memory,
           const char *name, wm_typemap_t *parts)
{
    int code = 0;
    for (int i = 0; i < blocks->count; ++i) {
        const wm_py_block_t *block = &blocks->blocks[i];
        MPI_Datatype type = block->type;
        MPI_Count count = block->count;
        wm_extent_t of;
        if (measure(block, memory->itemsize, name, &of) < 0)
            return -1;
        if (count <= 0 || of.size == 0)
            continue;
        if (check_within(block, &of, memory->nbytes, name) != 0)
            return 2;
        if (block->datatype == NULL) {
            type = MPI_BYTE;
            count *= of.size;
            of.extent = 1;
        }
        // NOLINTNEXTLINE(performance-no-int-to-ptr): may be an address
        char *data = (char *)((uintptr_t)memory->data + (size_t)block->at);
        int added = wm_py_datatype_cover(type, count, of.extent, data, parts);
        if (added < 0) {
            PyErr_NoMemory();
            return -1;
        }
        code |= added;
    }
    return code;
}

PyDoc_STRVAR(
    runs_doc,
    "_runs(buffer, staging, form, count, name, /)\n--\n\n"
    "Return the bytes of a buffer that a call may access, at the same\n"
    "offsets in its staging copy: (offset of the first, bytes from there to\n"
    "the last, runs for _stage_copy and _staged, True if gaps in elements\n"
    "are not among them).\n\n"
    "form: \"\" for one block; n, v or w for `count` of them. staging: the\n"
    "copy, or the origin (_origin) of the buffer; the first offset is then\n"
    "an address, from which the others count. Returns None if the list is\n"
    "not valid, so that mpi4py raises. Raises ValueError, naming `name`, if\n"
    "the bytes are not within the staging copy.");

static PyObject *
runs_of(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *buffer, *staging;
    const char *form, *name;
    int count;
    wm_py_blocks_t blocks;
    memory_t memory = {NULL, PY_SSIZE_T_MAX, 1};
    if (!PyArg_ParseTuple(args, "OOsis:_runs", &buffer, &staging, &form,
                          &count, &name))
        return NULL;
    bool copied = PyObject_TypeCheck(staging, wm_py_state->array_type);
    Py_ssize_t origin = copied ? 0 : PyLong_AsSsize_t(staging);
    runs_t *runs = PyErr_Occurred() ? NULL : runs_new();
    if (runs == NULL)
        return NULL;
    if (copied) {
        const wm_array_t *host = wm_py_array_of(staging);
        memory = (memory_t){host->data, wm_array_nbytes(host),
                            wm_dtype_info(host->dtype)->itemsize};
    }
    int code = wm_py_blocks_read(
        buffer, wm_py_blocks_form(form), count, memory.itemsize,
        copied ? (Py_ssize_t)memory.nbytes : 0, &blocks);
    for (int i = 0; i < blocks.count; ++i)
        blocks.blocks[i].at += origin;
    if (code == 0)
        code = add_blocks(&blocks, &memory, name, &runs->parts);
    wm_py_blocks_free(&blocks);
    if (code == 0 || code == 1)
        return tell(runs, memory.data, code == 0);
    runs_free(runs);
    return code > 0 || drop_wrong() < 0 ? NULL : Py_NewRef(Py_None);
}

PyObject *
wm_py_runs_origin(PyObject *buffer, const char *form)
{
    PyObject *first = wm_py_message_array(buffer);
    if (first == buffer) // no list
        Py_RETURN_NONE;
    if (first == Py_None || wm_py_mpi_is_bottom(first))
        return PyLong_FromLong(0);
    return wm_py_mpi_is_address(first)
                   && wm_py_blocks_has_counts(buffer, wm_py_blocks_form(form))
               ? PyObject_GetAttrString(first, "address")
               : Py_NewRef(Py_None);
}

PyDoc_STRVAR(
    origin_doc,
    "_origin(buffer, form, /)\n--\n\n"
    "Return the address from which the offsets of a buffer count, or\n"
    "None: that of MPI.BOTTOM, also as None in a list, and of an\n"
    "address with counts. Counts, displacements and datatypes alone\n"
    "tell the bytes of such a buffer.");

static PyObject *
origin_of(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *buffer;
    const char *form;
    return PyArg_ParseTuple(args, "Os:_origin", &buffer, &form)
               ? wm_py_runs_origin(buffer, form)
               : NULL;
}

enum { HOST, GPU, MIXED };

// Finds the memory of blocks over MPI.BOTTOM. Returns HOST, GPU or MIXED; or
// -1 with an exception.
static int
find_place(const wm_py_blocks_t *blocks, Py_ssize_t origin, const char *name)
{
    uintptr_t first = 0;
    bool any = false;
    for (int i = 0; i < blocks->count; ++i) {
        const wm_py_block_t *block = &blocks->blocks[i];
        wm_extent_t of;
        wm_pointer_t memory;
        if (block->count <= 0)
            continue;
        if (measure(block, 1, name, &of) < 0)
            return -1;
        int code = wm_py_elements_allocation(
            &of, block->datatype != NULL ? block->type : MPI_BYTE,
            origin + block->at, block->count, name, &memory);
        if (code < 0)
            return -1;
        uintptr_t base = wm_memory_on_device(&memory) ? memory.base : 0;
        if (code > 0 || (any && base != first))
            return MIXED;
        first = base;
        any = true;
    }
    return first != 0 ? GPU : HOST;
}

int
wm_py_runs_on_device(PyObject *buffer, Py_ssize_t origin, const char *form,
                     const char *name)
{
    wm_py_blocks_t blocks;
    int place = wm_py_blocks_read(buffer, wm_py_blocks_form(form), -1, 1, 0,
                                  &blocks);
    if (place == 0)
        place = find_place(&blocks, origin, name);
    wm_py_blocks_free(&blocks);
    if (place == MIXED)
        return wm_py_elements_refuse_mix(name);
    return place < 0 ? drop_wrong() : place;
}

PyDoc_STRVAR(
    blocks_doc,
    "_blocks(buffer, form, count, itemsize, nbytes, /)\n--\n\n"
    "Return the blocks of a buffer as mpi4py reads its list, for\n"
    "`count` ranks or neighbours: (byte offset, elements, datatype),\n"
    "None for that of the array. form: as for _runs; \"\" and n have\n"
    "one block for all elements. Raises what is wrong with the list.");

static PyObject *
blocks_of(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *buffer;
    const char *form;
    int count;
    Py_ssize_t itemsize, nbytes;
    wm_py_blocks_t blocks;
    if (!PyArg_ParseTuple(args, "Osinn:_blocks", &buffer, &form, &count,
                          &itemsize, &nbytes)
        || wm_py_blocks_read(buffer, wm_py_blocks_form(form), count, itemsize,
                             nbytes, &blocks)
               < 0)
        return NULL;
    PyObject *list = PyList_New(blocks.count);
    for (int i = 0; i < blocks.count && list != NULL; ++i) {
        const wm_py_block_t *block = &blocks.blocks[i];
        PyObject *kind = block->datatype != NULL ? block->datatype : Py_None;
        PyObject *each = Py_BuildValue("nnO", block->at, block->count, kind);
        if (each != NULL)
            PyList_SET_ITEM(list, i, each);
        else
            Py_CLEAR(list);
    }
    wm_py_blocks_free(&blocks);
    return list;
}

wm_staged_t *
wm_py_runs_read(PyObject *object, char *staging, size_t nbytes)
{
    Py_ssize_t offset = 0, length = 0;
    const runs_t *runs = NULL;
    if (PyCapsule_IsValid(object, runs_name))
        runs = PyCapsule_GetPointer(object, runs_name);
    else if (!PyArg_ParseTuple(object, "nn:runs", &offset, &length))
        return NULL;
    size_t count = runs != NULL ? (size_t)runs->parts.count : 1;
    wm_staged_t *staged = calloc(1, sizeof *staged
                                        + count * sizeof *staged->runs);
    if (staged == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    staged->staging = staging;
    staged->count = count;
    for (size_t i = 0; i < count && runs != NULL; ++i) {
        staged->runs[i] = runs->parts.parts[i];
        staged->runs[i].data = staging
                               + (runs->parts.parts[i].data - runs->base);
    }
    bool fits = runs != NULL || (offset >= 0 && length >= 0);
    if (fits && runs == NULL)
        wm_strided_init(&staged->runs[0], staging + offset, length);
    if (fits && wm_runs_fit(staged->runs, count, staging, nbytes))
        return staged;
    free(staged);
    PyErr_SetString(PyExc_ValueError, "runs: beyond the end of the array");
    return NULL;
}

PyMethodDef wm_py_runs_functions[] = {
    {"_blocks", blocks_of, METH_VARARGS, blocks_doc},
    {"_origin", origin_of, METH_VARARGS, origin_doc},
    {"_runs", runs_of, METH_VARARGS, runs_doc},
    {0},
};

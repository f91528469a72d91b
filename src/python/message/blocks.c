// SPDX-License-Identifier: BSD-3-Clause
#include "python/message/blocks.h"

#include <limits.h>

#include "python/message/specification.h"

// The items of a list after its array. New references; NULL: not given.
typedef struct {
    PyObject *counts, *displs, *types;
} items_t;

static PyObject *
item_of(PyObject *list, Py_ssize_t at)
{
    PyObject *item = PySequence_Fast_GET_ITEM(list, at);
    return item != Py_None ? Py_NewRef(item) : NULL;
}

static void
items_clear(items_t *items)
{
    Py_CLEAR(items->counts);
    Py_CLEAR(items->displs);
    Py_CLEAR(items->types);
}

static bool
is_listed(PyObject *object)
{
    return PyList_Check(object) || PyTuple_Check(object);
}

// Replaces the counts by the two items of a pair of counts and displacements.
static int
split_pair(items_t *items)
{
    PyObject *pair = PySequence_Fast(items->counts, "counts: expected a pair");
    bool is_pair = pair != NULL && PySequence_Fast_GET_SIZE(pair) == 2;
    if (is_pair) {
        items->displs = item_of(pair, 1);
        Py_XSETREF(items->counts, item_of(pair, 0));
    }
    else if (pair != NULL)
        PyErr_Format(PyExc_ValueError,
                     "counts: expected (counts, displs), not %zd items",
                     PySequence_Fast_GET_SIZE(pair));
    Py_XDECREF(pair);
    return is_pair ? 0 : -1;
}

// Splits the list of Alltoallw, which ends with datatypes.
static int
split_separate(PyObject *list, items_t *items)
{
    Py_ssize_t rest = PySequence_Fast_GET_SIZE(list) - 1;
    if (rest < 1)
        return wm_py_fail(PyExc_ValueError,
                          "datatypes: give one for each rank");
    items->types = item_of(list, rest);
    if (rest == 2 || rest == 3)
        items->counts = item_of(list, 1);
    if (rest == 3)
        items->displs = item_of(list, 2);
    return rest == 2 && items->counts != NULL ? split_pair(items) : 0;
}

static int
split(PyObject *list, wm_block_form_t form, items_t *items)
{
    Py_ssize_t rest = PySequence_Fast_GET_SIZE(list) - 1;
    if (form == WM_SEPARATE)
        return split_separate(list, items);
    if (rest == 1
        && wm_py_mpi_names_datatype(PySequence_Fast_GET_ITEM(list, 1))) {
        items->types = item_of(list, 1);
        return 0;
    }
    if (rest > 3)
        return wm_py_fail(
            PyExc_ValueError,
            "expected [array, counts, displs, datatype], not %zd items",
            rest + 1);
    if (rest > 0)
        items->counts = item_of(list, 1);
    if (rest > 1)
        items->types = item_of(list, rest);
    if (rest == 3)
        items->displs = item_of(list, 2);
    bool paired = rest < 3 && items->counts != NULL
                  && (PyTuple_Check(items->counts)
                      || (form != WM_VARYING && PyList_Check(items->counts)));
    return paired ? split_pair(items) : 0;
}

// Replaces a code by its datatype.
static int
name_type(PyObject **type)
{
    if (PyUnicode_Check(*type))
        Py_XSETREF(*type, wm_py_mpi_datatype_from_code(*type));
    else if (!wm_py_mpi_is_datatype(*type))
        return wm_py_fail(
            PyExc_TypeError,
            "datatype: %R is not a datatype; give displacements with their "
            "counts, as a tuple: [array, (counts, displs), datatype]",
            *type);
    return *type != NULL ? 0 : -1;
}

static int
measure(PyObject *datatype, MPI_Datatype *type, MPI_Aint *extent)
{
    MPI_Aint low;
    if (wm_py_mpi_datatype(datatype, "datatype", type) < 0)
        return -1;
    if (*type == MPI_DATATYPE_NULL)
        return wm_py_mpi_fail(MPI_ERR_TYPE,
                              "the datatype is MPI.DATATYPE_NULL, or was "
                              "freed: give a datatype");
    MPI_Type_get_extent(*type, &low, extent);
    return 0;
}

// Integers: a tuple; or `first`, each `step` more than the one before, and the
// first `longer` of them one more.
typedef struct {
    PyObject *sequence; // NULL: none
    Py_ssize_t first, step, longer;
} numbers_t;

static bool
is_number(PyObject *object)
{
    return PyLong_CheckExact(object)
           || (PyIndex_Check(object)
               && !PyObject_HasAttrString(object, "__len__"));
}

static int
numbers_of(PyObject *object, numbers_t *numbers)
{
    if (object == NULL)
        return wm_py_fail(PyExc_TypeError,
                          "counts: give displacements with their counts");
    if (is_number(object)) {
        numbers->first = PyNumber_AsSsize_t(object, PyExc_OverflowError);
        return numbers->first == -1 && PyErr_Occurred() ? -1 : 0;
    }
    if (!is_listed(object) && PyObject_CheckBuffer(object)
        && wm_py_message_on_device(object))
        return wm_py_fail(PyExc_TypeError,
                          "counts: the numbers lie in GPU memory, which the "
                          "host cannot read: give a list, or a NumPy array");
    numbers->sequence = PySequence_Tuple(object);
    return numbers->sequence != NULL ? 0 : -1;
}

// Checks that there is a number for each block. A `count` of -1 becomes the
// length of the sequence.
static int
numbers_match(const numbers_t *numbers, int *count)
{
    if (numbers->sequence == NULL)
        return 0;
    Py_ssize_t length = PyTuple_GET_SIZE(numbers->sequence);
    if (*count < 0 && length <= INT_MAX)
        *count = (int)length;
    if (length == *count)
        return 0;
    return wm_py_fail(PyExc_ValueError, "counts: expected %d numbers, not %zd",
                      *count, length);
}

static int
refuse_overflow(void)
{
    return wm_py_fail(PyExc_OverflowError,
                      "counts: the blocks end beyond the address space");
}

static int
number_at(const numbers_t *numbers, int i, Py_ssize_t *number)
{
    if (numbers->sequence == NULL)
        return __builtin_mul_overflow(numbers->step, (Py_ssize_t)i, number)
                       || __builtin_add_overflow(
                           *number, numbers->first + (i < numbers->longer),
                           number)
                   ? refuse_overflow()
                   : 0;
    *number = PyNumber_AsSsize_t(PyTuple_GET_ITEM(numbers->sequence, i),
                                 PyExc_OverflowError);
    return *number == -1 && PyErr_Occurred() ? -1 : 0;
}

static int
allocate(int count, wm_py_blocks_t *blocks)
{
    blocks->blocks = PyMem_Malloc(((size_t)count + 1)
                                  * sizeof *blocks->blocks);
    if (blocks->blocks == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    blocks->count = count;
    for (int i = 0; i < count; ++i)
        blocks->blocks[i] = (wm_py_block_t){.type = MPI_DATATYPE_NULL};
    return 0;
}

// Fills places and counts. `displs` counts `extent` bytes; NULL: the blocks
// are one behind the other.
static int
fill(const numbers_t *counts, const numbers_t *displs, Py_ssize_t extent,
     wm_py_blocks_t *blocks)
{
    Py_ssize_t place = 0;
    for (int i = 0; i < blocks->count; ++i) {
        wm_py_block_t *block = &blocks->blocks[i];
        if (number_at(counts, i, &block->count) < 0
            || (displs != NULL && number_at(displs, i, &place) < 0))
            return -1;
        if (__builtin_mul_overflow(place, extent, &block->at)
            || (displs == NULL
                && __builtin_add_overflow(place, block->count, &place)))
            return refuse_overflow();
    }
    return 0;
}

// Fills the blocks from the numbers in a list. `counts` are those without any
// in the list.
static int
read_numbers(const items_t *items, bool varying, int count, Py_ssize_t extent,
             numbers_t counts, wm_py_blocks_t *blocks)
{
    numbers_t displs = {0};
    bool packed = varying && items->displs == NULL;
    int code = items->counts != NULL ? numbers_of(items->counts, &counts) : 0;
    if (code == 0 && items->displs != NULL)
        code = numbers_of(items->displs, &displs);
    if (varying && displs.sequence == NULL) { // one number is that of a step
        displs.step = displs.first;
        displs.first = 0;
    }
    if (code == 0)
        code = numbers_match(&counts, &count);
    if (code == 0)
        code = numbers_match(&displs, &count);
    if (code == 0)
        code = allocate(count < 0 ? 1 : count, blocks);
    if (code == 0)
        code = fill(&counts, packed ? NULL : &displs, extent, blocks);
    Py_XDECREF(counts.sequence);
    Py_XDECREF(displs.sequence);
    return code;
}

// Reads the blocks of Alltoallw. Their places are bytes.
static int
read_separate(items_t *items, int count, wm_py_blocks_t *blocks)
{
    PyObject *types = items->types != NULL ? PySequence_List(items->types)
                                           : NULL;
    blocks->kept = types;
    if (types == NULL || (items->counts == NULL) != (items->displs == NULL)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError,
                            "give counts, displs and datatypes");
        return -1;
    }
    if (count < 0)
        count = (int)PyList_GET_SIZE(types);
    if (read_numbers(items, false, count, 1, (numbers_t){.first = 1}, blocks)
        < 0)
        return -1;
    if (PyList_GET_SIZE(types) != blocks->count)
        return wm_py_fail(PyExc_ValueError, "expected %d datatypes, not %zd",
                          blocks->count, PyList_GET_SIZE(types));
    for (int i = 0; i < blocks->count; ++i) {
        wm_py_block_t *block = &blocks->blocks[i];
        PyObject **type = &((PyListObject *)types)->ob_item[i];
        if (*type == Py_None)
            continue;
        if (name_type(type) < 0
            || wm_py_mpi_datatype(*type, "datatype", &block->type) < 0)
            return -1;
        block->datatype = *type;
    }
    return 0;
}

// Reads the blocks of a v-form, whose places count elements.
static int
read_varying(const items_t *items, int count, Py_ssize_t nbytes,
             Py_ssize_t extent, wm_py_blocks_t *blocks)
{
    numbers_t counts = {0};
    if (items->counts == NULL && (extent <= 0 || count < 0))
        return wm_py_fail(PyExc_ValueError, "counts: give one for each rank");
    if (items->counts == NULL && count > 0) { // as even as possible
        counts.first = nbytes / extent / count;
        counts.longer = nbytes / extent % count;
    }
    return read_numbers(items, true, count, extent, counts, blocks);
}

// Reads the only block of the other forms; WM_EQUAL counts that of a rank.
static int
read_all(const items_t *items, wm_block_form_t form, int count,
         Py_ssize_t nbytes, Py_ssize_t extent, wm_py_blocks_t *blocks)
{
    wm_py_block_t *block;
    if (allocate(1, blocks) < 0)
        return -1;
    block = &blocks->blocks[0];
    if (items->displs != NULL)
        block->at = PyNumber_AsSsize_t(items->displs, PyExc_OverflowError);
    if (items->counts != NULL)
        block->count = PyNumber_AsSsize_t(items->counts, PyExc_OverflowError);
    if (PyErr_Occurred())
        return -1;
    if (__builtin_mul_overflow(block->at, extent, &block->at)
        || __builtin_mul_overflow(
            block->count,
            (Py_ssize_t)(form == WM_EQUAL && count >= 0 ? count : 1),
            &block->count))
        return refuse_overflow();
    if (items->counts != NULL)
        return 0;
    if (extent <= 0)
        return wm_py_fail(PyExc_ValueError, "give a count");
    block->count = block->at > nbytes ? -1 : (nbytes - block->at) / extent;
    return 0;
}

static int
read_items(items_t *items, wm_block_form_t form, int count,
           Py_ssize_t itemsize, Py_ssize_t nbytes, wm_py_blocks_t *blocks)
{
    MPI_Datatype type = MPI_DATATYPE_NULL;
    MPI_Aint extent = itemsize;
    if (form == WM_SEPARATE)
        return read_separate(items, count, blocks);
    if (items->types != NULL
        && (name_type(&items->types) < 0
            || measure(items->types, &type, &extent) < 0))
        return -1;
    blocks->kept = Py_XNewRef(items->types);
    int code =
        form == WM_VARYING
            ? read_varying(items, count, nbytes, (Py_ssize_t)extent, blocks)
            : read_all(items, form, count, nbytes, (Py_ssize_t)extent, blocks);
    for (int i = 0; i < blocks->count; ++i) {
        blocks->blocks[i].type = type;
        blocks->blocks[i].datatype = items->types;
    }
    return code;
}

int
wm_py_blocks_read(PyObject *buffer, wm_block_form_t form, int count,
                  Py_ssize_t itemsize, Py_ssize_t nbytes,
                  wm_py_blocks_t *blocks)
{
    items_t items = {NULL, NULL, NULL};
    *blocks = (wm_py_blocks_t){0};
    // Code of the items may change a list meanwhile.
    PyObject *list = is_listed(buffer) ? PySequence_Tuple(buffer)
                                       : PyTuple_Pack(1, buffer);
    int code = list != NULL ? split(list, form, &items) : -1;
    if (code == 0)
        code = read_items(&items, form, count, itemsize, nbytes, blocks);
    items_clear(&items);
    Py_XDECREF(list);
    if (code < 0)
        wm_py_blocks_free(blocks);
    return code;
}

void
wm_py_blocks_free(wm_py_blocks_t *blocks)
{
    PyMem_Free(blocks->blocks);
    Py_CLEAR(blocks->kept);
    *blocks = (wm_py_blocks_t){0};
}

bool
wm_py_blocks_has_counts(PyObject *buffer, wm_block_form_t form)
{
    items_t items = {NULL, NULL, NULL};
    bool wrong = is_listed(buffer) && split(buffer, form, &items) < 0;
    bool given = wrong || form == WM_SEPARATE || items.counts != NULL;
    PyErr_Clear();
    items_clear(&items);
    return given;
}

// Returns a count times `blocks`; other objects unchanged.
static PyObject *
times(PyObject *count, int blocks)
{
    PyObject *index = PyIndex_Check(count) ? PyNumber_Index(count) : NULL;
    if (index == NULL && PyErr_ExceptionMatches(PyExc_TypeError))
        PyErr_Clear(); // its reader tells
    if (index == NULL)
        return PyErr_Occurred() ? NULL : Py_NewRef(count);
    PyObject *by = PyLong_FromLong(blocks);
    PyObject *product = by != NULL ? PyNumber_Multiply(index, by) : NULL;
    Py_DECREF(index);
    Py_XDECREF(by);
    return product;
}

// Does likewise for a count, or for a pair of a count and a displacement. The
// code of the count may change the list.
static PyObject *
times_of(PyObject *given, int blocks)
{
    if (!is_listed(given) || PySequence_Fast_GET_SIZE(given) != 2)
        return times(given, blocks);
    PyObject *pair = PySequence_Tuple(given);
    PyObject *all = pair != NULL ? Py_BuildValue(
                        "NO", times(PyTuple_GET_ITEM(pair, 0), blocks),
                        PyTuple_GET_ITEM(pair, 1))
                                 : NULL;
    Py_XDECREF(pair);
    return all;
}

PyObject *
wm_py_blocks_of_all(PyObject *buffer, int blocks)
{
    if (!is_listed(buffer) || PySequence_Fast_GET_SIZE(buffer) < 2)
        return Py_NewRef(buffer);
    PyObject *list = PySequence_List(buffer);
    PyObject *count = list != NULL && PyList_GET_SIZE(list) > 1
                          ? times_of(PyList_GET_ITEM(list, 1), blocks)
                          : NULL;
    if (count == NULL || PyList_SetItem(list, 1, count) < 0)
        Py_CLEAR(list);
    return list;
}

wm_block_form_t
wm_py_blocks_form(const char *name)
{
    return *name == 'n'   ? WM_EQUAL
           : *name == 'v' ? WM_VARYING
           : *name == 'w' ? WM_SEPARATE
                          : WM_WHOLE;
}

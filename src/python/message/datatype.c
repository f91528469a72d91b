// SPDX-License-Identifier: BSD-3-Clause
#include "python/message/datatype.h"

#include <limits.h>
#include <stdlib.h>

#include "comm/engine/optional_mpi.h"
#include "comm/engine/posted.h"
#include "python/core/mpi4py.h"

// Returns mpi4py's type for NumPy's float16, which no MPI standard names.
static MPI_Datatype
half_type(void)
{
    static MPI_Datatype found;
    static bool looked;
    int size = 0;
    if (looked)
        return found;
    found = MPI_DATATYPE_NULL;
    PyObject *code = PyUnicode_FromString("e");
    PyObject *type = code != NULL ? wm_py_mpi_datatype_from_code(code) : NULL;
    if (type != NULL && wm_py_mpi_datatype(type, "datatype", &found) == 0
        && (found == MPI_DATATYPE_NULL
            || MPI_Type_size(found, &size) != MPI_SUCCESS || size != 2))
        found = MPI_DATATYPE_NULL;
    looked = true;
    PyErr_Clear();
    Py_XDECREF(code);
    Py_XDECREF(type);
    return found;
}

MPI_Datatype
wm_py_datatype_of(wm_dtype_t dtype)
{
    static const MPI_Datatype types[WM_DTYPES] = {
#define X(NAME, name, typestr, bytes, code, format, mpi) mpi,
        WM_DTYPE_ROWS(X)
#undef X
    };
    return dtype == WM_FLOAT16 ? half_type() : types[dtype];
}

// The constructor of a datatype. `numbers` are its counts and then its
// addresses, in the order of the constructor.
typedef struct {
    int combiner;
    size_t count, types;
    MPI_Count *numbers;
    MPI_Datatype *inner;
} contents_t;

typedef MPI_Count envelope_t[4];

// Types made with large counts answer only to calls of MPI 4, which give
// addresses among the counts, and the integers of subarrays around these.
static bool
get_envelope(MPI_Datatype type, envelope_t sizes, int *combiner)
{
#if MPI_VERSION >= 4
    if (MPI_Type_get_envelope_c != NULL)
        return MPI_Type_get_envelope_c(type, &sizes[0], &sizes[1], &sizes[2],
                                       &sizes[3], combiner)
               == MPI_SUCCESS;
#endif
    int integers, addresses, types;
    if (MPI_Type_get_envelope(type, &integers, &addresses, &types, combiner)
        != MPI_SUCCESS)
        return false;
    sizes[0] = integers;
    sizes[1] = addresses;
    sizes[2] = 0;
    sizes[3] = types;
    return true;
}

static bool
get_contents(MPI_Datatype type, const envelope_t sizes, int *integers,
             MPI_Aint *addresses, MPI_Count *counts, MPI_Datatype *types)
{
#if MPI_VERSION >= 4
    if (MPI_Type_get_contents_c != NULL)
        return MPI_Type_get_contents_c(type, sizes[0], sizes[1], sizes[2],
                                       sizes[3], integers, addresses, counts,
                                       types)
               == MPI_SUCCESS;
#endif
    (void)counts;
    return MPI_Type_get_contents(type, (int)sizes[0], (int)sizes[1],
                                 (int)sizes[3], integers, addresses, types)
           == MPI_SUCCESS;
}

bool
wm_py_datatype_is_predefined(MPI_Datatype type)
{
    envelope_t sizes;
    int combiner;
    return get_envelope(type, sizes, &combiner) && sizes[3] == 0;
}

static void
contents_free(contents_t *contents)
{
    for (size_t i = 0; i < contents->types; ++i)
        if (!wm_py_datatype_is_predefined(contents->inner[i]))
            MPI_Type_free(&contents->inner[i]);
    free(contents->inner);
    free(contents->numbers);
}

static void
join_numbers(contents_t *contents, const envelope_t sizes, const int *integers,
             const MPI_Aint *addresses, const MPI_Count *counts)
{
    size_t n = 0;
    bool around = sizes[2] > 0 && sizes[0] > 1;
    MPI_Count first = around ? 1 : sizes[0];
    for (MPI_Count i = 0; i < first; ++i)
        contents->numbers[n++] = integers[i];
    for (MPI_Count i = 0; i < sizes[2]; ++i)
        contents->numbers[n++] = counts[i];
    for (MPI_Count i = first; i < sizes[0]; ++i)
        contents->numbers[n++] = integers[i];
    for (MPI_Count i = 0; i < sizes[1]; ++i)
        contents->numbers[n++] = addresses[i];
    contents->count = n;
}

// Reads a type's constructor. Returns false if MPI does not tell.
// contents_free() frees the contents.
static bool
look_inside(MPI_Datatype type, contents_t *contents)
{
    envelope_t sizes;
    *contents = (contents_t){0};
    if (!get_envelope(type, sizes, &contents->combiner))
        return false;
    if (sizes[3] == 0)
        return true;
    size_t total = (size_t)sizes[0] + (size_t)sizes[1] + (size_t)sizes[2];
    int *integers = calloc((size_t)sizes[0] + 1, sizeof *integers);
    MPI_Aint *addresses = calloc((size_t)sizes[1] + 1, sizeof *addresses);
    MPI_Count *counts = calloc((size_t)sizes[2] + 1, sizeof *counts);
    contents->numbers = calloc(total + 1, sizeof *contents->numbers);
    contents->inner = calloc((size_t)sizes[3], sizeof *contents->inner);
    bool told = integers != NULL && addresses != NULL && counts != NULL
                && contents->numbers != NULL && contents->inner != NULL
                && get_contents(type, sizes, integers, addresses, counts,
                                contents->inner);
    if (told) {
        contents->types = (size_t)sizes[3];
        join_numbers(contents, sizes, integers, addresses, counts);
    }
    free(integers);
    free(addresses);
    free(counts);
    if (!told)
        contents_free(contents);
    return told;
}

void
wm_py_typemap_init(wm_typemap_t *parts, int most)
{
    parts->parts = &parts->first;
    parts->count = 0;
    parts->room = 1;
    parts->most = most;
}

void
wm_py_typemap_free(wm_typemap_t *parts)
{
    if (parts->parts != &parts->first)
        free(parts->parts);
    wm_py_typemap_init(parts, parts->most);
}

static bool
parts_grow(wm_typemap_t *parts)
{
    int room = 2 * parts->room;
    bool first = parts->parts == &parts->first;
    wm_strided_t *grown = realloc(first ? NULL : parts->parts,
                                  (size_t)room * sizeof *grown);
    if (grown == NULL)
        return false;
    if (first)
        grown[0] = parts->first;
    parts->parts = grown;
    parts->room = room;
    return true;
}

// Appends `part`, moved by `offset` bytes.
static bool
parts_add(wm_typemap_t *parts, const wm_strided_t *part, MPI_Aint offset)
{
    wm_strided_t next = *part;
    next.data = wm_strided_moved(next.data, offset);
    if (next.run == 0)
        return true;
    if (parts->count > 0
        && wm_strided_append(&parts->parts[parts->count - 1], &next))
        return true;
    if (parts->count == parts->most
        || (parts->count == parts->room && !parts_grow(parts)))
        return false;
    parts->parts[parts->count++] = next;
    return true;
}

static bool
parts_add_all(wm_typemap_t *parts, const wm_typemap_t *added, MPI_Aint offset)
{
    bool done = true;
    for (int i = 0; i < added->count && done; ++i)
        done = parts_add(parts, &added->parts[i], offset);
    return done;
}

static void
parts_move(wm_typemap_t *parts, MPI_Aint offset)
{
    for (int i = 0; i < parts->count; ++i)
        parts->parts[i].data = wm_strided_moved(parts->parts[i].data, offset);
}

// Repeats all parts `count` times, `stride` bytes apart.
static bool
parts_repeat(wm_typemap_t *parts, MPI_Count count, MPI_Count stride)
{
    if (count == 0)
        parts->count = 0;
    if (parts->count == 0 || count == 1
        || (parts->count == 1
            && wm_strided_repeat(&parts->parts[0], count, stride)))
        return true;
    // One part of each copy may continue the copy before.
    int apart = parts->count > 1 ? parts->count - 1 : 1;
    if (count > parts->most / apart)
        return false;
    wm_typemap_t once;
    wm_py_typemap_init(&once, parts->count);
    bool done = parts_add_all(&once, parts, 0);
    for (MPI_Count i = 1; i < count && done; ++i)
        done = parts_add_all(parts, &once, (MPI_Aint)(i * stride));
    wm_py_typemap_free(&once);
    return done;
}

// Repeats the parts as blocks at any places.
static bool
repeat_unevenly(const MPI_Count *places, const MPI_Count *lengths,
                MPI_Count length, MPI_Count count, MPI_Count unit,
                MPI_Aint extent, wm_typemap_t *parts)
{
    wm_typemap_t once = *parts, block;
    if (once.parts == &parts->first)
        once.parts = &once.first;
    wm_py_typemap_init(parts, parts->most);
    bool done = true;
    for (MPI_Count i = 0; i < count && done; ++i) {
        wm_py_typemap_init(&block, once.most);
        done = parts_add_all(&block, &once, (MPI_Aint)(places[i] * unit))
               && parts_repeat(&block, lengths != NULL ? lengths[i] : length,
                               extent)
               && parts_add_all(parts, &block, 0);
        wm_py_typemap_free(&block);
    }
    wm_py_typemap_free(&once);
    return done;
}

// Repeats the parts as blocks at places counted in `unit` bytes, of `length`
// elements each, or of those in `lengths`, unless that is NULL.
static bool
repeat_blocks(const MPI_Count *places, const MPI_Count *lengths,
              MPI_Count length, MPI_Count count, MPI_Count unit,
              MPI_Aint extent, wm_typemap_t *parts)
{
    MPI_Count step = count > 1 ? places[1] - places[0] : 0;
    bool even = true;
    for (MPI_Count i = 1; i < count; ++i)
        even &= places[i] - places[i - 1] == step
                && (lengths == NULL || lengths[i] == lengths[0]);
    if (!even)
        return repeat_unevenly(places, lengths, length, count, unit, extent,
                               parts);
    if (count > 0)
        parts_move(parts, (MPI_Aint)(places[0] * unit));
    if (count > 0 && lengths != NULL)
        length = lengths[0];
    return parts_repeat(parts, length, extent)
           && parts_repeat(parts, count, step * unit);
}

static bool
repeat_indexed(const contents_t *contents, MPI_Count unit, MPI_Aint extent,
               wm_typemap_t *parts)
{
    MPI_Count count = contents->numbers[0];
    const MPI_Count *lengths = contents->numbers + 1;
    return repeat_blocks(lengths + count, lengths, 0, count, unit, extent,
                         parts);
}

static bool
repeat_subarray(const contents_t *contents, MPI_Aint extent,
                wm_typemap_t *parts)
{
    int ndim = (int)contents->numbers[0];
    const MPI_Count *sizes = contents->numbers + 1;
    const MPI_Count *subsizes = sizes + ndim, *starts = subsizes + ndim;
    bool fortran = starts[ndim] == MPI_ORDER_FORTRAN;
    MPI_Count stride = extent;
    for (int i = 0; i < ndim; ++i) { // the fastest first
        int at = fortran ? i : ndim - 1 - i;
        parts_move(parts, (MPI_Aint)(starts[at] * stride));
        if (!parts_repeat(parts, subsizes[at], stride))
            return false;
        stride *= sizes[at];
    }
    return true;
}

// Repeats the inner type as the constructor says.
static bool
repeat(const contents_t *contents, wm_typemap_t *parts)
{
    const MPI_Count *numbers = contents->numbers;
    MPI_Aint unused, extent;
    MPI_Type_get_extent(contents->inner[0], &unused, &extent);
    switch (contents->combiner) {
    case MPI_COMBINER_DUP:
    case MPI_COMBINER_RESIZED:
        return true;
    case MPI_COMBINER_CONTIGUOUS:
        return parts_repeat(parts, numbers[0], extent);
    case MPI_COMBINER_VECTOR:
        return parts_repeat(parts, numbers[1], extent)
               && parts_repeat(parts, numbers[0], numbers[2] * extent);
    case MPI_COMBINER_HVECTOR:
        return parts_repeat(parts, numbers[1], extent)
               && parts_repeat(parts, numbers[0], numbers[2]);
    case MPI_COMBINER_INDEXED_BLOCK:
        return repeat_blocks(numbers + 2, NULL, numbers[1], numbers[0], extent,
                             extent, parts);
    case MPI_COMBINER_HINDEXED_BLOCK:
        return repeat_blocks(numbers + 2, NULL, numbers[1], numbers[0], 1,
                             extent, parts);
    case MPI_COMBINER_INDEXED:
        return repeat_indexed(contents, extent, extent, parts);
    case MPI_COMBINER_HINDEXED:
        return repeat_indexed(contents, 1, extent, parts);
    case MPI_COMBINER_SUBARRAY:
        return repeat_subarray(contents, extent, parts);
    default:
        return false;
    }
}

// MPI may hold its lock while a reduction in Python waits for the GIL, so MPI
// is asked about derived types without the GIL. MPICH and Open MPI tell how a
// type was made, and its size, without a lock; nothing else is asked about
// predefined types.

static bool
decode_predefined(MPI_Datatype type, wm_strided_t *strided)
{
    MPI_Aint low = 0, extent = 0;
    MPI_Count size = 0;
    MPI_Type_get_true_extent(type, &low, &extent);
    MPI_Type_size_x(type, &size);
    wm_strided_init(strided, strided->data, size);
    return size > 0 && low == 0 && extent == size;
}

static bool
decode(MPI_Datatype type, char *data, wm_typemap_t *parts);

// Decodes blocks that have a type each.
static bool
decode_structure(const contents_t *contents, char *data, wm_typemap_t *parts)
{
    MPI_Count count = contents->numbers[0];
    const MPI_Count *lengths = contents->numbers + 1;
    const MPI_Count *places = lengths + count;
    bool decoded = true;
    for (MPI_Count i = 0; i < count && decoded; ++i) {
        wm_typemap_t block;
        MPI_Aint unused, extent;
        if (lengths[i] == 0)
            continue;
        MPI_Type_get_extent(contents->inner[i], &unused, &extent);
        wm_py_typemap_init(&block, parts->most);
        decoded = decode(contents->inner[i], wm_strided_moved(data, places[i]),
                         &block)
                  && parts_repeat(&block, lengths[i], extent)
                  && parts_add_all(parts, &block, 0);
        wm_py_typemap_free(&block);
    }
    return decoded;
}

static bool
decode(MPI_Datatype type, char *data, wm_typemap_t *parts)
{
    contents_t contents;
    if (!look_inside(type, &contents))
        return false;
    if (contents.types == 0) {
        wm_strided_t strided = {.data = data};
        return decode_predefined(type, &strided)
               && parts_add(parts, &strided, 0);
    }
    bool decoded = contents.combiner == MPI_COMBINER_STRUCT
                       ? decode_structure(&contents, data, parts)
                       : contents.types == 1
                             && decode(contents.inner[0], data, parts)
                             && repeat(&contents, parts);
    contents_free(&contents);
    return decoded;
}

void
wm_py_typemap_bounds(const wm_typemap_t *parts, char **low, char **high)
{
    for (int i = 0; i < parts->count; ++i) {
        char *from, *behind;
        wm_strided_bounds(&parts->parts[i], &from, &behind);
        *low = i == 0 || from < *low ? from : *low;
        *high = i == 0 || behind > *high ? behind : *high;
    }
}

// Returns true if the parts agree with MPI's extents, by which bounds are
// checked. Open MPI 5 walks some bytes forwards that were defined backwards,
// and its extents differ then.
static bool
lies_as_told(MPI_Datatype type, char *data, const wm_typemap_t *parts)
{
    char *low = NULL, *high = NULL;
    MPI_Aint first = 0, length = 0;
    MPI_Type_get_true_extent(type, &first, &length);
    wm_py_typemap_bounds(parts, &low, &high);
    return parts->count == 0
           || (low == wm_strided_moved(data, first)
               && high == wm_strided_moved(low, length));
}

bool
wm_py_datatype_parts(MPI_Datatype type, MPI_Count number, MPI_Aint extent,
                     char *data, int most, wm_typemap_t *parts)
{
    bool decoded;
    wm_py_typemap_init(parts, most);
    if (wm_py_datatype_is_predefined(type))
        decoded = decode(type, data, parts);
    else
        WM_PY_UNLOCKED(decoded = decode(type, data, parts));
    return decoded && lies_as_told(type, data, parts)
           && parts_repeat(parts, number, extent);
}

bool
wm_py_datatype_decode(MPI_Datatype type, wm_strided_t *strided)
{
    wm_typemap_t parts;
    char *data = strided->data;
    bool decoded = wm_py_datatype_parts(type, 1, 0, data, 1, &parts);
    if (decoded && parts.count > 0)
        *strided = parts.parts[0];
    else if (decoded)
        wm_strided_init(strided, data, 0);
    wm_py_typemap_free(&parts);
    return decoded;
}

// Repeats one part, by so many parts if it cannot have another dimension.
static bool
parts_add_repeated(wm_typemap_t *parts, const wm_strided_t *part,
                   MPI_Count count, MPI_Aint stride)
{
    wm_strided_t all = *part;
    if (wm_strided_repeat(&all, count, stride))
        return parts_add(parts, &all, 0);
    bool added = true;
    for (MPI_Count i = 0; i < count && added; ++i)
        added = parts_add(parts, part, (MPI_Aint)(i * stride));
    return added;
}

int
wm_py_datatype_cover(MPI_Datatype type, MPI_Count number, MPI_Aint extent,
                     char *data, wm_typemap_t *parts)
{
    wm_typemap_t one;
    bool told = wm_py_datatype_parts(type, 1, extent, data, INT_MAX, &one);
    if (!told) {
        MPI_Aint low = 0, length = 0;
        MPI_Type_get_true_extent(type, &low, &length);
        wm_py_typemap_free(&one);
        wm_strided_init(&one.parts[one.count++], data + low, length);
    }
    bool added = true;
    for (int i = 0; i < one.count && added; ++i)
        added = parts_add_repeated(parts, &one.parts[i], number, extent);
    wm_py_typemap_free(&one);
    return added ? !told : -1;
}

static bool
blocks(MPI_Datatype type, MPI_Aint base, bool (*accept)(MPI_Aint at))
{
    contents_t contents;
    if (wm_py_datatype_is_predefined(type))
        return accept(base);
    if (!look_inside(type, &contents))
        return false;
    bool accepted = true;
    MPI_Count count = contents.count > 0 ? contents.numbers[0] : 0;
    const MPI_Count *places = NULL, *lengths = NULL;
    switch (contents.combiner) {
    case MPI_COMBINER_HINDEXED:
    case MPI_COMBINER_STRUCT:
        lengths = contents.numbers + 1;
        places = lengths + count;
        break;
    case MPI_COMBINER_HINDEXED_BLOCK:
        places = contents.numbers + 2;
        break;
    default: // the addresses are those of the type inside, if it has any
        count = 1;
    }
    for (MPI_Count i = 0; i < count && accepted; ++i)
        accepted = (lengths != NULL && lengths[i] == 0)
                   || blocks(contents.inner[contents.types > 1 ? i : 0],
                             base + (places != NULL ? (MPI_Aint)places[i] : 0),
                             accept);
    contents_free(&contents);
    return accepted;
}

bool
wm_py_datatype_blocks(MPI_Datatype type, MPI_Aint base,
                      bool (*accept)(MPI_Aint at))
{
    bool accepted;
    WM_PY_UNLOCKED(accepted = blocks(type, base, accept));
    return accepted;
}

static MPI_Datatype
element(MPI_Datatype type)
{
    contents_t contents;
    if (!look_inside(type, &contents))
        return MPI_DATATYPE_NULL;
    if (contents.types == 0)
        return type;
    MPI_Datatype found = element(contents.inner[0]);
    for (size_t i = 1; i < contents.types; ++i)
        if (element(contents.inner[i]) != found)
            found = MPI_DATATYPE_NULL;
    contents_free(&contents);
    return found;
}

MPI_Datatype
wm_py_datatype_element(MPI_Datatype type)
{
    MPI_Datatype found = type;
    if (wm_py_datatype_is_predefined(type))
        return found;
    WM_PY_UNLOCKED(found = element(type));
    return found;
}

bool
wm_py_datatype_is_dense(MPI_Datatype type)
{
    char origin;
    wm_strided_t strided = {.data = &origin};
    MPI_Aint low = 0, extent = 0;
    MPI_Type_get_extent(type, &low, &extent);
    return wm_py_datatype_decode(type, &strided) && strided.ndim == 0
           && strided.data == &origin && strided.run == extent;
}

// Makes MPI check a datatype, which it does only when it uses the type.
static int
check_committed(MPI_Datatype type, wm_error_t *err)
{
    char none = 0;
    int position = 0, code;
    WM_PY_UNLOCKED(
        code = wm_mpi_check(
            MPI_Pack(&none, 0, type, &none, 1, &position, MPI_COMM_SELF),
            "the datatype cannot be used, call Commit() first", err));
    return code;
}

int
wm_py_datatype_copy(MPI_Datatype type, const char *argument,
                    MPI_Datatype *copy)
{
    MPI_Datatype made = MPI_DATATYPE_NULL;
    wm_error_t err;
    int result;
    WM_PY_UNLOCKED(result = MPI_Type_contiguous(1, type, &made));
    bool committed = result == MPI_SUCCESS && check_committed(type, &err) == 0;
    if (committed)
        WM_PY_UNLOCKED(result = MPI_Type_commit(&made));
    if (wm_mpi_check(result, "copying the datatype", &err) < 0)
        return wm_py_raise_of(argument, &err);
    *copy = made;
    return 0;
}

int
wm_py_datatype_measure(MPI_Datatype type, const char *argument,
                       wm_extent_t *extent)
{
    MPI_Aint low = 0, length = 0;
    wm_error_t err;
    if (!wm_py_datatype_is_predefined(type) && check_committed(type, &err) < 0)
        return wm_py_raise_of(argument, &err);
    MPI_Type_get_true_extent(type, &low, &length);
    extent->low = low;
    extent->high = low + length;
    MPI_Type_get_extent(type, &low, &extent->extent);
    MPI_Type_size_x(type, &extent->size);
    return 0;
}

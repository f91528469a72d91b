// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/call/half.h"

#include <stdatomic.h>

#include "comm/engine/posted.h"
#include "comm/message/element.h"
#include "cuda/lock.h"

// Numbers after all those of wm_element_number.
#define FIRST_NUMBER (((int64_t)1 << 55) + 4096)

#define KINDS(X)                                                              \
    X(FLOAT16, "float16", wm_float16_t) X(BFLOAT16, "bfloat16", wm_bfloat16_t)
#define OPS(X, ...)                                                           \
    X(SUM, __VA_ARGS__)                                                       \
    X(PROD, __VA_ARGS__) X(MIN, __VA_ARGS__) X(MAX, __VA_ARGS__)

#define KIND(KIND, name, type_t) KIND,
#define OP(OP, unused) OP,
enum { KINDS(KIND) KIND_COUNT };
enum { OPS(OP, ) OP_COUNT };

// The operations, as MPI calls them: `read` is the first operand.
#define COMPUTE(OP, KIND)                                                     \
    static void KIND##_##OP(void *read, void *into, int *count,               \
                            MPI_Datatype *type)                               \
    {                                                                         \
        (void)type;                                                           \
        wm_reduce_host(WM_REDUCE_##KIND, WM_REDUCE_##OP, into,                \
                       (const void *[]){read, into}, 2, (size_t)*count);      \
    }
#define ALL(KIND, name, type_t) OPS(COMPUTE, KIND)
KINDS(ALL)

static MPI_User_function *const functions[KIND_COUNT][OP_COUNT] = {
#define FUNCTION(OP, KIND) KIND##_##OP,
#define ROW(KIND, name, type_t) [KIND] = {OPS(FUNCTION, KIND)},
    KINDS(ROW)};

static const struct {
    const char *name;
    wm_reduce_type_t reduced;
    int nbytes;
} kinds[KIND_COUNT] = {
#define FACTS(KIND, name, type_t)                                             \
    [KIND] = {name, WM_REDUCE_##KIND, sizeof(type_t)},
    KINDS(FACTS)};

static atomic_bool made;
static MPI_Datatype types[KIND_COUNT];
static MPI_Op ops[KIND_COUNT][OP_COUNT];

static int
half_make(wm_error_t *err)
{
    int code = MPI_SUCCESS;
    for (int kind = 0; kind < KIND_COUNT && code == MPI_SUCCESS; ++kind) {
        code = MPI_Type_contiguous(kinds[kind].nbytes, MPI_BYTE, &types[kind]);
        if (code == MPI_SUCCESS)
            code = MPI_Type_set_name(types[kind], kinds[kind].name);
        if (code == MPI_SUCCESS)
            code = MPI_Type_commit(&types[kind]);
        for (int op = 0; op < OP_COUNT && code == MPI_SUCCESS; ++op)
            code = MPI_Op_create(functions[kind][op], 1, &ops[kind][op]);
    }
    return wm_mpi_check(code, "MPI_Op_create", err);
}

int
wm_half_prepare(wm_error_t *err)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    if (atomic_load(&made))
        return 0;
    wm_lock(&mutex);
    int code = atomic_load(&made) ? 0 : half_make(err);
    if (code == 0)
        atomic_store(&made, true);
    pthread_mutex_unlock(&mutex);
    return code;
}

MPI_Datatype
wm_half_type(wm_reduce_type_t reduced)
{
    int kind = 0;
    while (kind < KIND_COUNT && kinds[kind].reduced != reduced)
        ++kind;
    return kind < KIND_COUNT ? types[kind] : MPI_DATATYPE_NULL;
}

// Returns KIND_COUNT for any other type.
static int
half_kind_of(MPI_Datatype type)
{
    int kind = 0;
    if (!atomic_load(&made))
        return KIND_COUNT;
    while (kind < KIND_COUNT && types[kind] != type)
        ++kind;
    return kind;
}

static int
half_index_of(MPI_Op op)
{
    const MPI_Op known[OP_COUNT] = {
#define KNOWN(OP, unused) [OP] = MPI_##OP,
        OPS(KNOWN, )};
    int at = 0;
    while (at < OP_COUNT && known[at] != op)
        ++at;
    return at;
}

bool
wm_half_has(MPI_Op op)
{
    return half_index_of(op) < OP_COUNT;
}

MPI_Op
wm_half_op(MPI_Datatype type, MPI_Op op)
{
    int kind = half_kind_of(type), at = half_index_of(op);
    return kind < KIND_COUNT && at < OP_COUNT ? ops[kind][at] : op;
}

int64_t
wm_half_number(MPI_Datatype type)
{
    int kind = half_kind_of(type);
    return kind < KIND_COUNT ? FIRST_NUMBER + kind : wm_element_number(type);
}

const char *
wm_half_name(int64_t number)
{
    return number >= FIRST_NUMBER && number < FIRST_NUMBER + KIND_COUNT
               ? kinds[number - FIRST_NUMBER].name
               : wm_element_name(number);
}

bool
wm_half_is(MPI_Datatype type, wm_reduce_type_t *reduced)
{
    int kind = half_kind_of(type);
    if (kind < KIND_COUNT)
        *reduced = kinds[kind].reduced;
    return kind < KIND_COUNT;
}

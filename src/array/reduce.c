// SPDX-License-Identifier: BSD-3-Clause
#include "array/reduce.h"

#include <stdalign.h>
#include <string.h>

#include "array/dtype.h"
#include "array/kernels.h"
#include "kernels/fold.h"

#define BLOCK 512
#define BLOCKS_PER_SM 2
#define BLOCK_LOADS 1024 // loads of a block before another shares them

static const struct {
    size_t size, alignment;
} elements[WM_KERNEL_REDUCTIONS] = {
#define X(name, element_t, acc_t) {sizeof(element_t), alignof(element_t)},
    WM_REDUCE_KERNEL_ROWS(X)
#undef X
};

typedef enum {
    LOGICAL,
    SIGNED,
    UNSIGNED,
    FLOAT,
    COMPLEX,
    PAIR,
    FAMILIES,
} family_t;

static const struct {
    int kernel;
    family_t family;
} types[WM_REDUCE_TYPES] = {
#define X(NAME, name, family) {WM_KERNEL_##name, family},
    WM_REDUCE_TYPE_ROWS(X)
#undef X
};

#define X(NAME, name, typestr, bytes, ...)                                    \
    _Static_assert((int)WM_REDUCE_##NAME == (int)WM_##NAME,                   \
                   "a wm_dtype_t is a wm_reduce_type_t");
WM_DTYPE_ROWS(X)
#undef X
_Static_assert((int)WM_REDUCE_FLOAT_INT == (int)WM_DTYPES,
               "behind them come the pairs");
_Static_assert(sizeof(wm_reduce_params_t) <= 4096, "what a kernel is given");

#define BIT(OP) (1u << WM_REDUCE_##OP)
#define ARITHMETIC (BIT(SUM) | BIT(PROD) | BIT(AVG))
#define ORDER (BIT(MIN) | BIT(MAX))
#define LOGIC (BIT(LAND) | BIT(LOR) | BIT(LXOR))
#define BITS (BIT(BAND) | BIT(BOR) | BIT(BXOR))

bool
wm_reduce_takes(wm_reduce_type_t type, wm_reduce_op_t op)
{
    static const unsigned int taken[FAMILIES] = {
        [LOGICAL] = LOGIC,
        [SIGNED] = ARITHMETIC | ORDER | LOGIC | BITS,
        [UNSIGNED] = ARITHMETIC | ORDER | LOGIC | BITS,
        [FLOAT] = ARITHMETIC | ORDER,
        [COMPLEX] = ARITHMETIC,
        [PAIR] = BIT(MINLOC) | BIT(MAXLOC),
    };
    const unsigned int any = BIT(REPLACE) | BIT(NO_OP);
    return type < WM_REDUCE_TYPES && op < WM_REDUCE_OPS
           && ((taken[types[type].family] | any) >> op & 1) != 0;
}

size_t
wm_reduce_size(wm_reduce_type_t type)
{
    return elements[types[type].kernel].size;
}

// Returns the number that kernels and folds have for the operation.
static uint32_t
operation(wm_reduce_type_t type, wm_reduce_op_t op)
{
    const bool has_sign = types[type].family == SIGNED;
    return has_sign && op == WM_REDUCE_MIN   ? WM_REDUCE_MIN_SIGNED
           : has_sign && op == WM_REDUCE_MAX ? WM_REDUCE_MAX_SIGNED
           : op == WM_REDUCE_AVG             ? WM_REDUCE_SUM
                                             : op;
}

static wm_average_t
average_of(wm_reduce_type_t type, wm_reduce_op_t op, int n)
{
    if (op != WM_REDUCE_AVG || n == 0) // 0: this rank reduces nothing
        return (wm_average_t){.divisor = 0};
    return (wm_average_t){
        .divisor = types[type].family == SIGNED ? -n : n,
        .reciprocal = UINT64_MAX / (uint64_t)n, // of 1 it is never used
        .factor = 1.0 / n,
    };
}

int
wm_reduce_row(wm_reduce_type_t type, wm_reduce_op_t op, int n,
              uint32_t *called, wm_average_t *average)
{
    *called = operation(type, op);
    *average = average_of(type, op, n);
    return types[type].kernel;
}

// Returns the only source that matters; NULL if several do.
static const void *
copied(wm_reduce_op_t op, const void *const *src, int n)
{
    if (op == WM_REDUCE_REPLACE)
        return src[n - 1];
    return n == 1 || op == WM_REDUCE_NO_OP ? src[0] : NULL;
}

// Divides the elements into vectors and single ones, by the addresses.
static void
reduce_divide(wm_reduce_params_t *params, int kernel, size_t count)
{
    const size_t size = elements[kernel].size;
    const uintptr_t dst = (uintptr_t)params->dst[0];
    uintptr_t any = dst, unlike = 0;
    for (uint32_t i = 1; i < params->targets; i++) {
        any |= (uintptr_t)params->dst[i];
        unlike |= (uintptr_t)params->dst[i] ^ dst;
    }
    for (uint32_t i = 0; i < params->n; i++) {
        any |= (uintptr_t)params->src[i];
        unlike |= (uintptr_t)params->src[i] ^ dst;
    }
    const size_t head = -dst % WM_REDUCE_VECTOR;
    params->aligned = any % elements[kernel].alignment == 0;
    params->vectors = 0;
    params->head = count;
    if (unlike % WM_REDUCE_VECTOR == 0 && head % size == 0
        && head / size < count) {
        params->head = head / size;
        params->vectors = (count - params->head) * size / WM_REDUCE_VECTOR;
    }
    params->singles = count - params->vectors * (WM_REDUCE_VECTOR / size);
}

uint64_t
wm_reduce_blocks(const wm_reduce_params_t *params)
{
    uint64_t units = params->vectors + params->singles;
    uint64_t blocks = (units * params->n + BLOCK_LOADS - 1) / BLOCK_LOADS;
    return blocks > 0 ? blocks : 1;
}

static int
reduce_launch(int device, int kernel, wm_reduce_params_t *params,
              CUstream stream, wm_error_t *err)
{
    const wm_device_t *facts;
    int code = wm_kernels_prepare(device, WM_KERNELS_REDUCE, err);
    if (code == 0)
        code = wm_device_get(device, &facts, err);
    if (code < 0)
        return code;
    // The memory of several ranks comes over links, and results go over links:
    // more blocks would slow each other down.
    const bool far = params->n > 2 || (params->n == 1 && params->targets > 1);
    const uint64_t sms = (uint64_t)facts->multiprocessors;
    const uint64_t most = far ? sms / 2 : sms * BLOCKS_PER_SM;
    uint64_t blocks = wm_reduce_blocks(params);
    if (blocks > most && most > 0)
        blocks = most;
    return wm_kernels_launch(device, WM_KERNELS_REDUCE, kernel,
                             (uint32_t)blocks, BLOCK, params, stream, err);
}

// Returns the kernel that copies bytes, as many at a time as addresses and
// size allow: computing would change the bits of a NaN.
static int
copy_kernel(const wm_reduce_params_t *params, size_t nbytes)
{
    uintptr_t all = (uintptr_t)params->src[0] | nbytes;
    for (uint32_t i = 0; i < params->targets; i++)
        all |= (uintptr_t)params->dst[i];
    return all % 8 == 0   ? WM_KERNEL_uint64
           : all % 4 == 0 ? WM_KERNEL_uint32
           : all % 2 == 0 ? WM_KERNEL_uint16
                          : WM_KERNEL_uint8;
}

static bool
reduce_is_taken(const wm_reduction_t *reduction, wm_error_t *err)
{
    const int n = reduction->n;
    if (n >= 1 && n <= WM_REDUCE_SOURCES && reduction->targets >= 1
        && reduction->targets <= WM_REDUCE_TARGETS
        && wm_reduce_takes(reduction->type, reduction->op))
        return true;
    (void)!wm_error_set(err, WM_ERR_VALUE, 0,
                        "no operation %d of %d sources of type %d",
                        (int)reduction->op, n, (int)reduction->type);
    return false;
}

// Fills the used members of the parameters; returns the kernel.
static int
reduce_describe(const wm_reduction_t *reduction, const void *only,
                wm_reduce_params_t *params)
{
    const size_t targets = (size_t)reduction->targets;
    int kernel = types[reduction->type].kernel;
    size_t count = reduction->count;
    params->op = operation(reduction->type, reduction->op);
    params->average = average_of(
        reduction->type, only != NULL ? WM_REDUCE_NO_OP : reduction->op,
        reduction->divisor > 0 ? reduction->divisor : reduction->n);
    params->n = only != NULL ? 1 : (uint32_t)reduction->n;
    params->targets = (uint32_t)targets;
    params->signal = reduction->signal;
    memcpy(params->dst, reduction->dst, targets * sizeof(*reduction->dst));
    memcpy(params->src, only != NULL ? &only : reduction->src,
           params->n * sizeof(*reduction->src));
    if (only != NULL) {
        const size_t nbytes = count * wm_reduce_size(reduction->type);
        kernel = copy_kernel(params, nbytes);
        count = nbytes / elements[kernel].size;
    }
    reduce_divide(params, kernel, count);
    return kernel;
}

int
wm_reduce_enqueue(int device, const wm_reduction_t *reduction, CUstream stream,
                  wm_error_t *err)
{
    if (!reduce_is_taken(reduction, err))
        return WM_ERR_VALUE;
    wm_reduce_params_t params;
    const void *only = copied(reduction->op, reduction->src, reduction->n);
    if (reduction->count == 0
        || (reduction->targets == 1 && only == reduction->dst[0]
            && reduction->signal.word == NULL))
        return 0;
    int kernel = reduce_describe(reduction, only, &params);
    return reduce_launch(device, kernel, &params, stream, err);
}

int
wm_reduce_describe(const wm_reduction_t *reduction, wm_reduce_params_t *params)
{
    const void *only = copied(reduction->op, reduction->src, reduction->n);
    return only != NULL || reduction->count == 0
               ? -1
               : reduce_describe(reduction, NULL, params);
}

int
wm_reduce_launch(int device, wm_reduce_type_t type, wm_reduce_op_t op,
                 void *dst, const void *const *src, int n, size_t count,
                 CUstream stream, wm_error_t *err)
{
    const wm_reduction_t reduction = {
        .type = type,
        .op = op,
        .dst = &dst,
        .targets = 1,
        .src = src,
        .n = n,
        .count = count,
    };
    return wm_reduce_enqueue(device, &reduction, stream, err);
}

// Adds the sources from `first` on to those of a round. Returns the first one
// that has no place.
static int
many_collect(const wm_reduce_many_t *many, int first, const void **src, int *n)
{
    while (*n < WM_REDUCE_SOURCES && first < many->n) {
        src[(*n)++] = first == many->own
                          ? many->its
                          : many->sources + (size_t)first * many->each;
        ++first;
    }
    return first;
}

int
wm_reduce_many(int device, const wm_reduce_many_t *many, CUstream stream,
               wm_error_t *err)
{
    const bool averages = many->op == WM_REDUCE_AVG;
    int code = 0;
    for (int done = 0; done < many->n && code == 0;) {
        const void *src[WM_REDUCE_SOURCES] = {many->sums};
        int n = done > 0;
        done = many_collect(many, done, src, &n);
        bool last = done == many->n;
        void *dst = last ? many->dst : many->sums;
        const wm_reduction_t reduction = {
            .type = many->type,
            .op = averages && !last ? WM_REDUCE_SUM : many->op,
            .dst = &dst,
            .targets = 1,
            .src = src,
            .n = n,
            .divisor = many->divisor > 0 ? many->divisor : many->n,
            .count = many->count,
        };
        code = wm_reduce_enqueue(device, &reduction, stream, err);
    }
    return code;
}

#define AT_ONCE 256 // elements on the stack; source addresses may be unaligned

#define X(name, element_t, acc_t)                                             \
    static void fold_##name(uint32_t op, wm_average_t average, char *dst,     \
                            const void *const *src, int n, size_t count)      \
    {                                                                         \
        element_t each[AT_ONCE];                                              \
        acc_t acc[AT_ONCE], values[AT_ONCE];                                  \
        for (size_t at = 0; at < count; at += AT_ONCE) {                      \
            const size_t offset = at * sizeof(element_t);                     \
            const int part = count - at < AT_ONCE ? (int)(count - at)         \
                                                  : AT_ONCE;                  \
            const size_t nbytes = (size_t)part * sizeof(element_t);           \
            for (int s = 0; s < n; s++) {                                     \
                acc_t *to = s == 0 ? acc : values;                            \
                memcpy(each, (const char *)src[s] + offset, nbytes);          \
                for (int i = 0; i < part; i++)                                \
                    to[i] = wm_widen_##name(each[i]);                         \
                if (s > 0)                                                    \
                    wm_fold_##name(op, acc, values, part);                    \
            }                                                                 \
            wm_divide_##name(&average, acc, part);                            \
            for (int i = 0; i < part; i++)                                    \
                each[i] = wm_narrow_##name(acc[i]);                           \
            memcpy(dst + offset, each, nbytes);                               \
        }                                                                     \
    }
WM_REDUCE_KERNEL_ROWS(X)
#undef X

typedef void (*fold_t)(uint32_t op, wm_average_t average, char *dst,
                       const void *const *src, int n, size_t count);

static const fold_t folds[WM_KERNEL_REDUCTIONS] = {
#define X(name, ...) fold_##name,
    WM_REDUCE_KERNEL_ROWS(X)
#undef X
};

void
wm_reduce_host(wm_reduce_type_t type, wm_reduce_op_t op, void *dst,
               const void *const *src, int n, size_t count)
{
    const void *only = copied(op, src, n);
    if (only == NULL)
        folds[types[type].kernel](operation(type, op), average_of(type, op, n),
                                  dst, src, n, count);
    else if (only != dst && count > 0)
        memcpy(dst, only, count * wm_reduce_size(type));
}

void
wm_reduce_divide(wm_reduce_type_t type, void *sums, int n, size_t count)
{
    const void *const src[] = {sums};
    if (n > 1)
        folds[types[type].kernel](WM_REDUCE_SUM,
                                  average_of(type, WM_REDUCE_AVG, n), sums,
                                  src, 1, count);
}

// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/call/coll_table.h"

#include <stddef.h>

static const struct {
    wm_coll_arguments_t
#define X(LIST, ...) LIST,
        WM_COLL_ARGUMENTS(X)
#undef X
            last;
} lists = {
#define X(LIST, number, needed, op_at, root_at, ...)                          \
    .LIST = {.names = {__VA_ARGS__},                                          \
             .count = (number),                                               \
             .required = (needed),                                            \
             .op = (op_at),                                                   \
             .root = (root_at)},
    WM_COLL_ARGUMENTS(X)
#undef X
};

enum {
#define X(LIST, number, needed, op_at, root_at, ...)                          \
    REDUCES_##LIST = (op_at) >= 0, ROOTED_##LIST = (root_at) >= 0,
    WM_COLL_ARGUMENTS(X)
#undef X
};

#define HAS(flags, flag) (((flags) & (flag)) != 0)

// A call between neighbors has, once its neighbors are known, blocks of any
// lengths for all ranks.
static const wm_coll_row_t rows[WM_COLL_KINDS] = {
#define X(NAME, Name, iname, LIST, SENDS, RECEIVES, flags)                    \
    [WM_COLL_##NAME] = {                                                      \
        .name = #Name,                                                        \
        .arguments = &lists.LIST,                                             \
        .sends = WM_##SENDS,                                                  \
        .receives = WM_##RECEIVES,                                            \
        .shape = {                                                            \
            .scatters = WM_##SENDS != WM_WHOLE                                \
                        || HAS(flags, WM_UNEVEN | WM_NEIGHBORS),              \
            .gathers = WM_##RECEIVES != WM_WHOLE || HAS(flags, WM_NEIGHBORS), \
            .rooted = ROOTED_##LIST,                                          \
            .reduces = REDUCES_##LIST,                                        \
            .varies = WM_##SENDS >= WM_VARYING || WM_##RECEIVES >= WM_VARYING \
                      || HAS(flags, WM_NEIGHBORS),                            \
            .outward = HAS(flags, WM_OUTWARD),                                \
            .uneven = HAS(flags, WM_UNEVEN),                                  \
            .prefix = HAS(flags, WM_PREFIX),                                  \
            .inclusive = HAS(flags, WM_INCLUSIVE),                            \
            .overlaid = HAS(flags, WM_OVERLAID),                              \
            .neighbors = HAS(flags, WM_NEIGHBORS),                            \
        }},
    WM_COLLECTIVES(X)
#undef X
        [WM_COLL_UNKNOWN] = {.arguments = &lists.NONE},
    [WM_COLL_ON_STREAM] = {.arguments = &lists.NONE},
    [WM_COLL_CAPTURED] = {.arguments = &lists.NONE},
    [WM_COLL_MAKING] = {.arguments = &lists.NONE},
    [WM_COLL_HALO] = {.arguments = &lists.NONE},
};

const wm_coll_row_t *
wm_coll_row(wm_coll_kind_t kind)
{
    return &rows[kind];
}

const wm_shape_t *
wm_coll_shape(wm_coll_kind_t kind)
{
    return &rows[kind].shape;
}

const char *
wm_call_name(wm_coll_kind_t kind)
{
    switch ((int)kind) {
    case WM_COLL_ON_STREAM:
        return "a collective on a stream";
    case WM_COLL_CAPTURED:
        return "a captured collective";
    case WM_COLL_MAKING:
        return "the making of a shared array, a window or a halo";
    case WM_COLL_HALO:
        return "an exchange of a halo";
    default:
        return (unsigned)kind < WM_COLL_KINDS && rows[kind].name != NULL
                   ? rows[kind].name
                   : "another call";
    }
}

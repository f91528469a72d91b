// SPDX-License-Identifier: BSD-3-Clause
// The table of MPI's collectives, one row each. Shapes, argument readers, the
// methods of streams and, by `_core._collectives()`, Python's tables are made
// from this table. Constant; any thread.
#ifndef WM_COMM_COLL_CALL_COLL_TABLE_H
#define WM_COMM_COLL_CALL_COLL_TABLE_H

#include <stdbool.h>

// Argument lists: as text in a Python signature, after `self`, and by name:
// X(LIST, number of arguments, number of required ones, position of op,
// position of root, names...); a position of -1: there is none.
#define WM_TEXT_NONE ""
#define WM_TEXT_BUF_ROOT ", buf, root=0"
#define WM_TEXT_BUFS ", sendbuf, recvbuf"
#define WM_TEXT_BUFS_ROOT ", sendbuf, recvbuf, root=0"
#define WM_TEXT_BUFS_OP ", sendbuf, recvbuf, op=..."
#define WM_TEXT_BUFS_OP_ROOT ", sendbuf, recvbuf, op=..., root=0"
#define WM_TEXT_BUFS_COUNTS_OP ", sendbuf, recvbuf, recvcounts, op=..."
#define WM_COLL_ARGUMENTS(X)                                                  \
    X(NONE, 0, 0, -1, -1, NULL)                                               \
    X(BUF_ROOT, 2, 1, -1, 1, "buf", "root")                                   \
    X(BUFS, 2, 2, -1, -1, "sendbuf", "recvbuf")                               \
    X(BUFS_ROOT, 3, 2, -1, 2, "sendbuf", "recvbuf", "root")                   \
    X(BUFS_OP, 3, 2, 2, -1, "sendbuf", "recvbuf", "op")                       \
    X(BUFS_OP_ROOT, 4, 2, 2, 3, "sendbuf", "recvbuf", "op", "root")           \
    X(BUFS_COUNTS_OP, 4, 2, 3, -1, "sendbuf", "recvbuf", "recvcounts", "op")

// The blocks of a buffer: one block; one for each rank, all of one length;
// with given lengths and offsets; also with given datatypes.
typedef enum { WM_WHOLE, WM_EQUAL, WM_VARYING, WM_SEPARATE } wm_block_form_t;

enum {
    WM_OUTWARD = 1,    // the root sends; in other rooted calls it receives
    WM_UNEVEN = 2,     // each rank receives a block of its own length
    WM_PREFIX = 4,     // a rank receives the reduction of the ranks before it
    WM_INCLUSIVE = 8,  // WM_PREFIX, and of the rank itself
    WM_OVERLAID = 16,  // in place, a rank receives over data that others read
    WM_NEIGHBORS = 32, // between neighbors of a topology
};

// Ranks publish the number of a row: a new one counts WM_WIRE_VERSION up.
// X(NAME, Name, nonblocking name, arguments, form of the send buffer,
// form of the receive buffer, flags)
#define WM_COLLECTIVES(X)                                                     \
    X(BARRIER, Barrier, Ibarrier, NONE, WHOLE, WHOLE, 0)                      \
    X(BCAST, Bcast, Ibcast, BUF_ROOT, WHOLE, WHOLE, WM_OUTWARD)               \
    X(ALLREDUCE, Allreduce, Iallreduce, BUFS_OP, WHOLE, WHOLE, 0)             \
    X(GATHER, Gather, Igather, BUFS_ROOT, WHOLE, EQUAL, 0)                    \
    X(GATHERV, Gatherv, Igatherv, BUFS_ROOT, WHOLE, VARYING, 0)               \
    X(SCATTER, Scatter, Iscatter, BUFS_ROOT, EQUAL, WHOLE, WM_OUTWARD)        \
    X(SCATTERV, Scatterv, Iscatterv, BUFS_ROOT, VARYING, WHOLE, WM_OUTWARD)   \
    X(ALLGATHER, Allgather, Iallgather, BUFS, WHOLE, EQUAL, 0)                \
    X(ALLGATHERV, Allgatherv, Iallgatherv, BUFS, WHOLE, VARYING, 0)           \
    X(ALLTOALL, Alltoall, Ialltoall, BUFS, EQUAL, EQUAL, WM_OVERLAID)         \
    X(ALLTOALLV, Alltoallv, Ialltoallv, BUFS, VARYING, VARYING, WM_OVERLAID)  \
    X(ALLTOALLW, Alltoallw, Ialltoallw, BUFS, SEPARATE, SEPARATE,             \
      WM_OVERLAID)                                                            \
    X(NEIGHBOR_ALLGATHER, Neighbor_allgather, Ineighbor_allgather, BUFS,      \
      WHOLE, EQUAL, WM_NEIGHBORS)                                             \
    X(NEIGHBOR_ALLGATHERV, Neighbor_allgatherv, Ineighbor_allgatherv, BUFS,   \
      WHOLE, VARYING, WM_NEIGHBORS)                                           \
    X(NEIGHBOR_ALLTOALL, Neighbor_alltoall, Ineighbor_alltoall, BUFS, EQUAL,  \
      EQUAL, WM_NEIGHBORS)                                                    \
    X(NEIGHBOR_ALLTOALLV, Neighbor_alltoallv, Ineighbor_alltoallv, BUFS,      \
      VARYING, VARYING, WM_NEIGHBORS)                                         \
    X(NEIGHBOR_ALLTOALLW, Neighbor_alltoallw, Ineighbor_alltoallw, BUFS,      \
      SEPARATE, SEPARATE, WM_NEIGHBORS)                                       \
    X(REDUCE, Reduce, Ireduce, BUFS_OP_ROOT, WHOLE, WHOLE, 0)                 \
    X(REDUCE_SCATTER_BLOCK, Reduce_scatter_block, Ireduce_scatter_block,      \
      BUFS_OP, EQUAL, WHOLE, WM_OVERLAID)                                     \
    X(REDUCE_SCATTER, Reduce_scatter, Ireduce_scatter, BUFS_COUNTS_OP, WHOLE, \
      WHOLE, WM_UNEVEN | WM_OVERLAID)                                         \
    X(SCAN, Scan, Iscan, BUFS_OP, WHOLE, WHOLE,                               \
      WM_PREFIX | WM_INCLUSIVE | WM_OVERLAID)                                 \
    X(EXSCAN, Exscan, Iexscan, BUFS_OP, WHOLE, WHOLE, WM_PREFIX | WM_OVERLAID)

typedef enum {
    WM_COLL_UNKNOWN,
#define X(NAME, ...) WM_COLL_##NAME,
    WM_COLLECTIVES(X)
#undef X
        WM_COLL_ON_STREAM,
    WM_COLL_CAPTURED,
    WM_COLL_MAKING,
    WM_COLL_HALO,
    WM_COLL_KINDS,
} wm_coll_kind_t;

typedef struct {
    const char *names[4];
    int count, required;
    int op, root; // positions; -1: none
} wm_coll_arguments_t;

// The use that a call makes of its buffers.
typedef struct {
    bool scatters; // a rank sends a block to each rank
    bool gathers;  // a rank receives a block from each rank
    bool rooted, reduces, varies;
    bool outward, uneven, prefix, inclusive, overlaid, neighbors; // the flags
} wm_shape_t;

typedef struct {
    const char *name; // as users know it; NULL: not a collective of MPI
    const wm_coll_arguments_t *arguments;
    wm_block_form_t sends, receives;
    wm_shape_t shape;
} wm_coll_row_t;

// Returns the row of a collective; borrowed, static.
const wm_coll_row_t *
wm_coll_row(wm_coll_kind_t kind);

const wm_shape_t *
wm_coll_shape(wm_coll_kind_t kind);

// Returns the name that users know; borrowed, static. Accepts any number, as
// other ranks publish `kind`.
const char *
wm_call_name(wm_coll_kind_t kind);

#endif

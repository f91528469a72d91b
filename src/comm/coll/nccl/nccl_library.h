// SPDX-License-Identifier: BSD-3-Clause
// NCCL, opened at first use and never linked: the part of its interface that
// we use, declared here, and one table of function pointers. Loaded once by
// any thread; a failure is latched and told each time.
#ifndef WM_COMM_COLL_NCCL_NCCL_LIBRARY_H
#define WM_COMM_COLL_NCCL_NCCL_LIBRARY_H

#include <cuda.h>
#include <stddef.h>

#include "comm/coll/call/coll_engine.h"

#define WM_NCCL_OLDEST 22000 // 2.20.0, as ncclGetVersion says

typedef struct wm_nccl_handle wm_nccl_handle_t; // what ncclComm_t points to

typedef enum {
    WM_NCCL_SUCCESS = 0,
    WM_NCCL_REMOTE_ERROR = 6,
    WM_NCCL_IN_PROGRESS = 7,
} wm_nccl_result_t;

#define WM_NCCL_UINT8 1 // ncclDataType_t: we move bytes alone

typedef struct {
    char bytes[128];
} wm_nccl_id_t; // ncclUniqueId

// ncclConfig_t of 2.20, with which those of later versions begin.
typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking, cga, min_ctas, max_ctas; // INT_MIN: NCCL's default
    const char *net;
    int share;
} wm_nccl_config_t;

// X(name without nccl, type of the result, arguments)
#define WM_NCCL_FUNCTIONS(X)                                                  \
    X(GetVersion, wm_nccl_result_t, (int *version))                           \
    X(GetErrorString, const char *, (wm_nccl_result_t result))                \
    X(GetLastError, const char *, (wm_nccl_handle_t * comm))                  \
    X(GetUniqueId, wm_nccl_result_t, (wm_nccl_id_t * id))                     \
    X(CommInitRankConfig, wm_nccl_result_t,                                   \
      (wm_nccl_handle_t * *comm, int ranks, wm_nccl_id_t id, int rank,        \
       wm_nccl_config_t *config))                                             \
    X(CommSplit, wm_nccl_result_t,                                            \
      (wm_nccl_handle_t * comm, int color, int key, wm_nccl_handle_t **child, \
       wm_nccl_config_t *config))                                             \
    X(CommGetAsyncError, wm_nccl_result_t,                                    \
      (wm_nccl_handle_t * comm, wm_nccl_result_t * state))                    \
    X(CommFinalize, wm_nccl_result_t, (wm_nccl_handle_t * comm))              \
    X(CommDestroy, wm_nccl_result_t, (wm_nccl_handle_t * comm))               \
    X(CommAbort, wm_nccl_result_t, (wm_nccl_handle_t * comm))                 \
    X(GroupStart, wm_nccl_result_t, (void))                                   \
    X(GroupEnd, wm_nccl_result_t, (void))                                     \
    X(Send, wm_nccl_result_t,                                                 \
      (const void *data, size_t count, int type, int peer,                    \
       wm_nccl_handle_t *comm, CUstream stream))                              \
    X(Recv, wm_nccl_result_t,                                                 \
      (void *data, size_t count, int type, int peer, wm_nccl_handle_t *comm,  \
       CUstream stream))                                                      \
    X(AllGather, wm_nccl_result_t,                                            \
      (const void *send, void *receive, size_t count, int type,               \
       wm_nccl_handle_t *comm, CUstream stream))                              \
    X(Broadcast, wm_nccl_result_t,                                            \
      (const void *send, void *receive, size_t count, int type, int root,     \
       wm_nccl_handle_t *comm, CUstream stream))

typedef struct {
#define X(name, result, arguments) result(*name) arguments;
    WM_NCCL_FUNCTIONS(X)
#undef X
} wm_nccl_functions_t;

// The table; valid only after wm_nccl_load() returned 0.
extern wm_nccl_functions_t wm_nccl;

// Opens the library. Fails with WM_ERR_STATE: there is none, or it is too old.
WM_MUST_CHECK int
wm_nccl_load(wm_error_t *err);

// Returns its version, such as 22809 for 2.28.9; 0: not loaded.
int
wm_nccl_version(void);

// The doctor tells this of it.
extern const wm_coll_library_t wm_nccl_for_people;

// Returns a configuration with NCCL's defaults.
wm_nccl_config_t
wm_nccl_config(int blocking);

// Turns a result into 0, or an error with the name of the call and NCCL's
// text; its detail is the result. In progress is no error.
WM_MUST_CHECK int
wm_nccl_check(wm_nccl_result_t result, const char *call, wm_error_t *err);

// Calls a function: WM_NCCL(err, CommAbort, comm).
#define WM_NCCL(err, name, ...)                                               \
    wm_nccl_check(wm_nccl.name(__VA_ARGS__), "nccl" #name, err)

#endif

// SPDX-License-Identifier: BSD-3-Clause
// The part of UCX's interface (UCP, 1.17 and newer) that we use, from its
// documentation. UCX reads only those members of a struct that its mask
// names, and newer versions add members behind those of older ones, so the
// structs here end in room.
#ifndef WM_COMM_LINK_UCX_ABI_H
#define WM_COMM_LINK_UCX_ABI_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

// ucs_status_t is a packed enum: one byte.
typedef int8_t wm_ucs_status_t;
enum {
    WM_UCS_OK = 0,
    WM_UCS_INPROGRESS = 1,
    WM_UCS_ERR_CANCELED = -16,
    WM_UCS_ERR_LAST = -100,
};

// A request; or NULL: it has ended; or a status from -1 to -100.
typedef void *wm_ucs_request_t;

enum { WM_UCS_MEMORY_HOST = 0, WM_UCS_MEMORY_CUDA = 1 };
enum { WM_UCS_THREAD_SERIALIZED = 1 };

typedef struct {
    uint64_t mask; // WM_UCP_PARAM_…
    uint64_t features;
    size_t request_size;
    void *request_init, *request_cleanup;
    uint64_t tag_sender_mask;
    int mt_workers_shared;
    char room[256];
} wm_ucp_params_t;
enum { WM_UCP_PARAM_FEATURES = 1, WM_UCP_PARAM_MT_WORKERS_SHARED = 1 << 5 };
enum {
    WM_UCP_FEATURE_TAG = 1,
    WM_UCP_FEATURE_RMA = 1 << 1,
    WM_UCP_FEATURE_WAKEUP = 1 << 4,
};

typedef struct {
    uint64_t mask;
    size_t request_size;
    int thread_mode;
    uint64_t memory_types; // bits 1 << WM_UCS_MEMORY_…
    char room[256];
} wm_ucp_context_attr_t;
enum { WM_UCP_ATTR_MEMORY_TYPES = 1 << 2 };

typedef struct {
    uint64_t mask;
    int thread_mode;
    char room[512];
} wm_ucp_worker_params_t;
enum { WM_UCP_WORKER_PARAM_THREAD_MODE = 1 };

typedef struct {
    uint64_t mask;
    const void *address;
    int err_mode;
    void (*err_handler)(void *argument, void *ep, wm_ucs_status_t status);
    void *err_argument;
    char room[512];
} wm_ucp_ep_params_t;
enum {
    WM_UCP_EP_PARAM_REMOTE_ADDRESS = 1,
    WM_UCP_EP_PARAM_ERR_HANDLER = 1 << 2,
};

typedef struct {
    uint64_t mask;
    void *address;
    size_t length;
    unsigned flags, prot;
    int memory_type;
    char room[256];
} wm_ucp_mem_map_params_t;
enum {
    WM_UCP_MEM_MAP_ADDRESS = 1,
    WM_UCP_MEM_MAP_LENGTH = 1 << 1,
    WM_UCP_MEM_MAP_MEMORY_TYPE = 1 << 4,
};

// Of an operation.
typedef struct {
    uint32_t mask; // WM_UCP_OP_…
    uint32_t flags;
    void *request, *callback;
    uint64_t datatype;
    void *user_data, *reply_buffer;
    int memory_type;
    void *recv_info, *memh;
    char room[128];
} wm_ucp_op_t;
enum {
    WM_UCP_OP_MEMORY_TYPE = 1 << 6,
    WM_UCP_OP_MEMH = 1 << 8,
    WM_UCP_OP_NO_IMM_CMPL = 1 << 16, // always returns a request
};

typedef struct {
    uint64_t sender_tag;
    size_t length;
} wm_ucp_tag_info_t;

// X(result, name, arguments): the functions.
#define WM_UCX_FUNCTIONS(X)                                                   \
    X(void, ucp_get_version, (unsigned *, unsigned *, unsigned *))            \
    X(const char *, ucs_status_string, (wm_ucs_status_t))                     \
    X(wm_ucs_status_t, ucp_config_read,                                       \
      (const char *, const char *, void **))                                  \
    X(wm_ucs_status_t, ucp_config_modify,                                     \
      (void *, const char *, const char *))                                   \
    X(void, ucp_config_release, (void *))                                     \
    X(wm_ucs_status_t, ucp_init_version,                                      \
      (unsigned, unsigned, const wm_ucp_params_t *, const void *, void **))   \
    X(wm_ucs_status_t, ucp_context_query, (void *, wm_ucp_context_attr_t *))  \
    X(void, ucp_context_print_info, (void *, FILE *))                         \
    X(void, ucp_cleanup, (void *))                                            \
    X(wm_ucs_status_t, ucp_worker_create,                                     \
      (void *, const wm_ucp_worker_params_t *, void **))                      \
    X(void, ucp_worker_destroy, (void *))                                     \
    X(wm_ucs_status_t, ucp_worker_get_address, (void *, void **, size_t *))   \
    X(void, ucp_worker_release_address, (void *, void *))                     \
    X(unsigned, ucp_worker_progress, (void *))                                \
    X(wm_ucs_status_t, ucp_worker_get_efd, (void *, int *))                   \
    X(wm_ucs_status_t, ucp_worker_arm, (void *))                              \
    X(wm_ucs_status_t, ucp_ep_create,                                         \
      (void *, const wm_ucp_ep_params_t *, void **))                          \
    X(wm_ucs_request_t, ucp_ep_close_nbx, (void *, const wm_ucp_op_t *))      \
    X(wm_ucs_status_t, ucp_mem_map,                                           \
      (void *, const wm_ucp_mem_map_params_t *, void **))                     \
    X(wm_ucs_status_t, ucp_mem_unmap, (void *, void *))                       \
    X(wm_ucs_status_t, ucp_rkey_pack, (void *, void *, void **, size_t *))    \
    X(void, ucp_rkey_buffer_release, (void *))                                \
    X(wm_ucs_status_t, ucp_ep_rkey_unpack, (void *, const void *, void **))   \
    X(void, ucp_rkey_destroy, (void *))                                       \
    X(wm_ucs_request_t, ucp_put_nbx,                                          \
      (void *, const void *, size_t, uint64_t, void *, const wm_ucp_op_t *))  \
    X(wm_ucs_request_t, ucp_get_nbx,                                          \
      (void *, void *, size_t, uint64_t, void *, const wm_ucp_op_t *))        \
    X(wm_ucs_request_t, ucp_ep_flush_nbx, (void *, const wm_ucp_op_t *))      \
    X(wm_ucs_request_t, ucp_tag_send_nbx,                                     \
      (void *, const void *, size_t, uint64_t, const wm_ucp_op_t *))          \
    X(wm_ucs_request_t, ucp_tag_recv_nbx,                                     \
      (void *, void *, size_t, uint64_t, uint64_t, const wm_ucp_op_t *))      \
    X(wm_ucs_status_t, ucp_tag_recv_request_test,                             \
      (void *, wm_ucp_tag_info_t *))                                          \
    X(wm_ucs_status_t, ucp_request_check_status, (void *))                    \
    X(void, ucp_request_cancel, (void *, void *))                             \
    X(void, ucp_request_free, (void *))

typedef struct {
#define X(result, name, arguments) result(*name) arguments;
    WM_UCX_FUNCTIONS(X)
#undef X
} wm_ucx_functions_t;

#endif

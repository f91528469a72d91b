// SPDX-License-Identifier: BSD-3-Clause
// The part of UCX's interface that the double has, from its documentation.
#ifndef SIMUCX_UCP_ABI_H
#define SIMUCX_UCP_ABI_H

#include <cstddef>
#include <cstdint>
#include <cstdio>

enum ucs_status_t : int8_t {
    UCS_OK = 0,
    UCS_INPROGRESS = 1,
    UCS_ERR_IO_ERROR = -3,
    UCS_ERR_INVALID_PARAM = -5,
    UCS_ERR_UNREACHABLE = -6,
    UCS_ERR_MESSAGE_TRUNCATED = -9,
    UCS_ERR_BUSY = -15,
    UCS_ERR_CANCELED = -16,
    UCS_ERR_CONNECTION_RESET = -25,
};

enum { HOST = 0, CUDA = 1 }; // ucs_memory_type_t

struct ucp_params_t {
    uint64_t field_mask, features; // mask: features 1, mt_workers_shared 32
    size_t request_size;
    void *request_init, *request_cleanup;
    uint64_t tag_sender_mask;
    int mt_workers_shared;
};

struct ucp_context_attr_t {
    uint64_t field_mask; // memory_types 4
    size_t request_size;
    int thread_mode;
    uint64_t memory_types;
};

struct ucp_worker_params_t {
    uint64_t field_mask; // thread_mode 1
    int thread_mode;     // 0 single, 1 serialized, 2 multi
};

struct ucp_ep_params_t {
    uint64_t field_mask; // address 1, err_mode 2, err_handler 4
    const void *address;
    int err_mode;
    void (*err_handler)(void *argument, void *ep, ucs_status_t status);
    void *err_argument;
};

struct ucp_mem_map_params_t {
    uint64_t field_mask; // address 1, length 2, memory_type 16
    void *address;
    size_t length;
    unsigned flags, prot;
    int memory_type;
};

struct ucp_request_param_t {
    uint32_t op_attr_mask; // flags 16, memory_type 64, memh 256, below
    uint32_t flags;
    void *request, *cb;
    uint64_t datatype;
    void *user_data, *reply_buffer;
    int memory_type;
    void *recv_info, *memh;
};
constexpr uint32_t NO_IMM_CMPL = 1 << 16;

struct ucp_tag_recv_info_t {
    uint64_t sender_tag;
    size_t length;
};

#define UCP_API extern "C" __attribute__((visibility("default")))

#endif

// SPDX-License-Identifier: BSD-3-Clause
#include "comm/link/ucx_keys.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/list.h"

struct wm_ucx_exposed {
    wm_ucx_exposed_t *next, *prev;
    void *context, *handle; // handle NULL: the registration has ended
    bool on_device;
};

struct wm_ucx_key {
    wm_ucx_key_t *next, *prev;
    const void *ep;
    void *rkey; // NULL: it has ended
    uint64_t address, nbytes;
};

// Before UCX's own key.
typedef struct {
    uint64_t address, nbytes;
} key_head_t;

static wm_ucx_exposed_t *first_exposed, *last_exposed;
static wm_ucx_key_t *first_key, *last_key;

static size_t
exposed_write_key(const wm_ucx_exposed_t *exposed, const key_head_t *head,
                  char *key, size_t room)
{
    void *packed;
    size_t nbytes = 0;
    if (wm_ucx.ucp_rkey_pack(exposed->context, exposed->handle, &packed,
                             &nbytes)
        != WM_UCS_OK)
        return 0;
    if (sizeof *head + nbytes <= room) {
        memcpy(key, head, sizeof *head);
        memcpy(key + sizeof *head, packed, nbytes);
    }
    wm_ucx.ucp_rkey_buffer_release(packed);
    return sizeof *head + nbytes;
}

size_t
wm_ucx_expose(const wm_ucx_t *ucx, void *memory, size_t nbytes, bool on_device,
              void *key, size_t room, wm_ucx_exposed_t **exposed)
{
    const key_head_t head = {(uintptr_t)memory, nbytes};
    wm_ucp_mem_map_params_t params = {
        .mask = WM_UCP_MEM_MAP_ADDRESS | WM_UCP_MEM_MAP_LENGTH
                | WM_UCP_MEM_MAP_MEMORY_TYPE,
        .address = memory,
        .length = nbytes,
        .memory_type = on_device ? WM_UCS_MEMORY_CUDA : WM_UCS_MEMORY_HOST,
    };
    wm_ucx_exposed_t *made = calloc(1, sizeof *made);
    if (made == NULL)
        return 0;
    made->context = ucx->context;
    made->on_device = on_device;
    if (wm_ucx.ucp_mem_map(ucx->context, &params, &made->handle)
        != WM_UCS_OK) {
        free(made);
        return 0;
    }
    WM_LIST_APPEND(first_exposed, last_exposed, made);
    size_t length = exposed_write_key(made, &head, key, room);
    if (length == 0) {
        (void)wm_ucx_conceal(made);
        wm_ucx_exposed_free(made);
    }
    else
        *exposed = made;
    return length;
}

bool
wm_ucx_conceal(wm_ucx_exposed_t *exposed)
{
    if (exposed->handle == NULL)
        return false;
    (void)wm_ucx.ucp_mem_unmap(exposed->context, exposed->handle);
    exposed->handle = NULL;
    WM_LIST_REMOVE(first_exposed, last_exposed, exposed);
    return exposed->on_device;
}

void
wm_ucx_exposed_free(wm_ucx_exposed_t *exposed)
{
    free(exposed);
}

bool
wm_ucx_exposes(void)
{
    return first_exposed != NULL;
}

int
wm_ucx_key_open(void *ep, const void *bytes, size_t nbytes, wm_ucx_key_t **key,
                wm_error_t *err)
{
    key_head_t head;
    if (nbytes <= sizeof head)
        return wm_error_set(err, WM_ERR_STATE, 0, "the key is damaged");
    memcpy(&head, bytes, sizeof head);
    wm_ucx_key_t *made = calloc(1, sizeof *made);
    if (made == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    *made = (wm_ucx_key_t){
        .ep = ep,
        .address = head.address,
        .nbytes = head.nbytes,
    };
    wm_ucs_status_t status = wm_ucx.ucp_ep_rkey_unpack(
        ep, (const char *)bytes + sizeof head, &made->rkey);
    if (status != WM_UCS_OK) {
        free(made);
        return wm_error_set(err, WM_ERR_STATE, 0,
                            "UCX does not reach the peer's memory: %s",
                            wm_ucx.ucs_status_string(status));
    }
    WM_LIST_APPEND(first_key, last_key, made);
    *key = made;
    return 0;
}

static void
key_end(wm_ucx_key_t *key)
{
    wm_ucx.ucp_rkey_destroy(key->rkey);
    key->rkey = NULL;
    WM_LIST_REMOVE(first_key, last_key, key);
}

void
wm_ucx_key_close(wm_ucx_key_t *key)
{
    if (key->rkey != NULL)
        key_end(key);
    free(key);
}

void
wm_ucx_keys_close(const void *ep)
{
    for (wm_ucx_key_t *one = first_key, *next; one != NULL; one = next) {
        next = one->next;
        if (one->ep == ep)
            key_end(one);
    }
}

void *
wm_ucx_key_find(const wm_ucx_key_t *key, uint64_t offset, size_t nbytes,
                uint64_t *address)
{
    if (nbytes > key->nbytes || offset > key->nbytes - nbytes)
        return NULL;
    *address = key->address + offset;
    return key->rkey;
}

void
wm_ucx_keys_end(void)
{
    while (first_exposed != NULL)
        (void)wm_ucx_conceal(first_exposed);
}

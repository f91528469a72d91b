// SPDX-License-Identifier: BSD-3-Clause
// The link by UCX (UCP's tags), for payloads between hosts. MPI matches the
// message, and both ends know the payload's number. Endpoints have no error
// handling (UCP_ERR_HANDLING_MODE_PEER), with which UCX does not pipeline
// device memory: MPI reports that a peer died.
//
// A tag is the sender's id (40 bits) and the number (24 bits). Chunks of one
// number come in the order in which they were sent.
#include "comm/link/link.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "comm/engine/engine.h"
#include "comm/link/ucx_keys.h"
#include "comm/link/ucx_library.h"
#include "comm/link/ucx_memory.h"
#include "cuda/driver.h"
#include "cuda/library.h"
#include "cuda/list.h"

#define NUMBER_BITS 24
#define ROUNDS 8 // calls of UCX in one round of the engine, at most
// After a peer's death, data that it has sent before may still arrive. They
// have arrived when UCX had nothing to do for QUIET_US, or after LATE_US.
#define QUIET_US 100000
#define LATE_US 2000000
// A chunk that UCX has failed is told so long after, unless MPI reports the
// peer's death first.
#define TOLD_US 5000000
#define CLOSE_US 2000000    // for the endpoints, in MPI_Finalize
#define EMULATED_BYTES 2048 // most of a put or get without RDMA
#define BUCKETS 256         // of peers, by id

// A chunk under way, or one that has ended: it has no request, but a status.
typedef struct flight {
    struct flight *next, *prev;
    struct end_point *to;
    void *request;
    wm_ucx_memory_t *memory; // NULL: the memory is not registered
    int device;              // -1: host memory
    bool receives;
    wm_ucs_status_t status;
    size_t nbytes;  // that have come
    int64_t failed; // when the status was first seen; 0: it was not
} flight_t;

// A peer that is connected.
typedef struct end_point {
    struct end_point *next;
    wm_peer_t *peer;
    uint64_t id;    // in the tags of what it sends
    void *ep;       // NULL: nothing was sent to it
    void *address;  // until there is `ep`
    bool broken;    // UCX has no connection any more
    bool refused;   // UCX cannot make `ep`
    int64_t died;   // when MPI reported that; 0: it has not
    bool abandoned; // it died, and nothing arrives from it any more
    flight_t *first, *last;
} end_point_t;

// Before UCX's address of a process.
typedef struct {
    uint64_t id;
} address_head_t;

static wm_ucx_t *ucx; // NULL: UCX is not open
static uint64_t own_id;
static void *own_address;
static size_t own_length;
static end_point_t *peers[BUCKETS];
static int dying;       // peers that died, and are not abandoned yet
static int64_t busy_at; // when UCX last had anything to do
static bool unasked;    // UCX serves without WARPMPI_TRANSPORT
static bool lost;       // requests were abandoned
// Chunks of device memory that are under way, and exposed device memory.
static int on_device;
static int64_t concealing;  // since a failure is waited for; 0: none
static int own_device = -1; // whose; -1: there were none
static char ended;          // the flight of a chunk that has ended

static int
ucx_start(bool asked, wm_error_t *err)
{
    if (own_address != NULL)
        return 0;
    wm_ucx_t *made;
    int code = wm_ucx_open(asked, &made, err);
    if (code < 0)
        return code;
    if (getrandom(&own_id, sizeof own_id, 0) != sizeof own_id)
        return wm_error_set(err, WM_ERR_SYSTEM, errno, "getrandom: %s",
                            strerror(errno));
    own_id >>= NUMBER_BITS;
    if (wm_ucx.ucp_worker_get_address(made->worker, &own_address, &own_length)
        != WM_UCS_OK) {
        own_address = NULL;
        return wm_error_set(err, WM_ERR_VALUE, 0,
                            "UCX gives no address of this process");
    }
    ucx = made;
    return 0;
}

// Unasked, it serves where MPI does not take device memory, and UCX has RDMA.
static int
ucx_open(bool asked, wm_error_t *err)
{
    if (asked) {
        int code = ucx_start(true, err);
        if (code < 0)
            wm_error_context(err, "WARPMPI_TRANSPORT=ucx");
        return code;
    }
    static unsigned long long declined_at; // wm_library_loads(); engine lock
    if (wm_library_loads() == declined_at)
        return 1;
    bool wanted = wm_mpi_is_cuda_aware() != 1 && !wm_driver_is_absent()
                  && wm_ucx_is_likely();
    unasked = wanted && ucx_start(false, NULL) == 0 && ucx->rdma;
    if (!unasked)
        declined_at = wm_library_loads();
    return unasked ? 0 : 1;
}

static size_t
ucx_address(void *into, size_t room)
{
    address_head_t head = {.id = own_id};
    if (own_address == NULL)
        return 0;
    size_t nbytes = sizeof head + own_length;
    if (nbytes <= room) {
        memcpy(into, &head, sizeof head);
        memcpy((char *)into + sizeof head, own_address, own_length);
    }
    return nbytes;
}

static end_point_t *
end_point_of(const wm_peer_t *peer)
{
    return peer->own[WM_LINK_ucx];
}

// Keeps the address; the endpoint is made when it is needed.
static int
ucx_connect(wm_peer_t *peer, const void *address, size_t nbytes,
            wm_error_t *err)
{
    address_head_t head;
    if (nbytes <= sizeof head)
        return wm_error_set(err, WM_ERR_STATE, 0, "the address is damaged");
    memcpy(&head, address, sizeof head);
    end_point_t **bucket = &peers[head.id % BUCKETS];
    for (end_point_t *one = *bucket; one != NULL; one = one->next)
        if (one->id == head.id)
            return wm_error_set(err, WM_ERR_STATE, 0,
                                "another process has the same id by chance");
    end_point_t *made = calloc(1, sizeof *made);
    char *copy = made != NULL ? malloc(nbytes - sizeof head) : NULL;
    if (copy == NULL) {
        free(made);
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    }
    memcpy(copy, (const char *)address + sizeof head, nbytes - sizeof head);
    *made = (end_point_t){
        .next = *bucket, .peer = peer, .id = head.id, .address = copy};
    *bucket = made;
    peer->own[WM_LINK_ucx] = made;
    return 0;
}

static void
end_point_free(end_point_t *one)
{
    for (flight_t *each = one->first, *next; each != NULL; each = next) {
        next = each->next;
        free(each);
    }
    free(one->address);
    free(one);
}

static void
ucx_disconnect(wm_peer_t *peer)
{
    end_point_t *one = end_point_of(peer), **at = &peers[one->id % BUCKETS];
    while (*at != one)
        at = &(*at)->next;
    *at = one->next;
    peer->own[WM_LINK_ucx] = NULL;
    end_point_free(one);
}

// UCX says so also without error handling: the peer has left, or has died.
static void
end_point_break(void *one, void *ep, wm_ucs_status_t status)
{
    (void)ep, (void)status;
    ((end_point_t *)one)->broken = true;
}

// Makes the endpoint at the first need. Returns false, and keeps the reason,
// if UCX cannot: then the link does not reach the peer.
static bool
end_point_make(end_point_t *one)
{
    wm_ucp_ep_params_t params = {
        .mask = WM_UCP_EP_PARAM_REMOTE_ADDRESS | WM_UCP_EP_PARAM_ERR_HANDLER,
        .address = one->address,
        .err_handler = end_point_break,
        .err_argument = one,
    };
    if (one->ep != NULL || one->refused)
        return one->ep != NULL;
    wm_ucs_status_t status = wm_ucx.ucp_ep_create(ucx->worker, &params,
                                                  &one->ep);
    free(one->address);
    one->address = NULL;
    if (status == WM_UCS_OK)
        return true;
    one->ep = NULL;
    wm_error_t err;
    wm_error_set(&err, WM_ERR_STATE, 0, "UCX cannot connect to the peer: %s",
                 wm_ucx.ucs_status_string(status));
    wm_peer_refuse(one->peer, WM_LINK_ucx, err.text);
    one->refused = true;
    return false;
}

static bool
ucx_reach(const wm_peer_t *peer, const wm_pointer_t *into, const char **reason)
{
    end_point_t *one = end_point_of(peer);
    bool asked = wm_link_is_asked(&wm_link_ucx), reaches = false;
    if (peer->self)
        *reason = "the peer is this process";
    else if (one == NULL || ucx == NULL)
        *reason = peer->refused[WM_LINK_ucx];
    else if (one->died != 0)
        *reason = "the peer has died";
    else if (!asked && wm_node_shares(peer))
        *reason = "the peer is on this host";
    else if (!asked && (!unasked || !wm_link_is_asked(NULL)))
        *reason = "WARPMPI_TRANSPORT does not select it";
    else if (!asked && into != NULL && !wm_memory_on_device(into))
        *reason = "the buffer is host memory, which MPI delivers";
    else if (!end_point_make(one))
        *reason = peer->refused[WM_LINK_ucx];
    else {
        *reason = "UCX delivers GPU data";
        reaches = true;
    }
    return reaches;
}

// Memory that migrates is staged. So is memory of any device but the first one
// that was used here: UCX works in the context that is current.
static bool
ucx_unstaged(const wm_peer_t *peer, const wm_pointer_t *memory)
{
    (void)peer;
    if (ucx == NULL || !ucx->cuda || memory->kind != WM_MEMORY_DEVICE)
        return false;
    if (own_device < 0)
        own_device = memory->device;
    return memory->device == own_device;
}

static uint64_t
tag_of(uint64_t id, uint32_t number)
{
    return id << NUMBER_BITS | (number & ((1u << NUMBER_BITS) - 1));
}

static void
flight_land(flight_t *one, wm_ucs_status_t status)
{
    if (one->request != NULL)
        wm_ucx.ucp_request_free(one->request);
    one->request = NULL;
    one->status = status;
    if (one->memory != NULL)
        wm_ucx_memory_release(one->memory);
    one->memory = NULL;
    on_device -= one->device >= 0;
}

static wm_ucs_status_t
flight_look(flight_t *one)
{
    wm_ucp_tag_info_t info = {0};
    wm_ucs_status_t status;
    if (one->request == NULL)
        return one->status;
    status = one->receives
                 ? wm_ucx.ucp_tag_recv_request_test(one->request, &info)
                 : wm_ucx.ucp_request_check_status(one->request);
    one->nbytes = info.length;
    if (status != WM_UCS_INPROGRESS)
        flight_land(one, status);
    return status;
}

static void
flight_free(flight_t *one)
{
    WM_LIST_REMOVE(one->to->first, one->to->last, one);
    free(one);
}

// Makes a flight, and what UCX is told of its memory.
static flight_t *
flight_new(const wm_carry_t *way, bool receives, wm_ucp_op_t *op,
           wm_error_t *err)
{
    end_point_t *to = end_point_of(way->peer);
    flight_t *one = NULL;
    if (to->died != 0)
        wm_error_set(err, WM_ERR_STATE, 0, "the peer has died");
    else if ((one = calloc(1, sizeof *one)) == NULL)
        wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    if (one == NULL)
        return NULL;
    *one = (flight_t){.to = to, .device = way->device, .receives = receives};
    if (way->device >= 0 && ucx->rdma)
        one->memory = wm_ucx_memory_acquire(ucx->context, way->memory);
    *op = (wm_ucp_op_t){
        .mask = WM_UCP_OP_MEMORY_TYPE | WM_UCP_OP_NO_IMM_CMPL,
        .memory_type = way->device >= 0 ? WM_UCS_MEMORY_CUDA
                                        : WM_UCS_MEMORY_HOST,
    };
    if (one->memory != NULL) {
        op->mask |= WM_UCP_OP_MEMH;
        op->memh = wm_ucx_memory_handle(one->memory);
    }
    WM_LIST_APPEND(to->first, to->last, one);
    return one;
}

// Ends the start of a flight, for which UCX has returned a request. If UCX
// refuses, test() tells.
static void
flight_begin(flight_t *one, wm_ucs_request_t request, wm_flight_t *flight)
{
    intptr_t status = (intptr_t)request;
    bool ended_now = status <= 0 && status >= WM_UCS_ERR_LAST;
    on_device += one->device >= 0;
    flight->own = one;
    if (ended_now)
        flight_land(one, (wm_ucs_status_t)status);
    else
        one->request = request;
}

// Frees a flight that UCX has refused, and returns an error then.
static int
flight_refused(flight_t *one, wm_error_t *err)
{
    wm_ucs_status_t status = one->status;
    if (one->request != NULL || status == WM_UCS_OK)
        return 0;
    flight_free(one);
    return wm_error_set(err, WM_ERR_STATE, 0, "UCX: %s",
                        wm_ucx.ucs_status_string(status));
}

static int
ucx_send(const wm_carry_t *to, const void *memory, size_t nbytes,
         wm_flight_t *flight, wm_error_t *err)
{
    wm_ucp_op_t op;
    flight->own = &ended;
    if (end_point_of(to->peer)->ep == NULL)
        return wm_error_set(err, WM_ERR_STATE, 0, "UCX has no endpoint");
    flight_t *one = flight_new(to, false, &op, err);
    if (one == NULL)
        return WM_ERR_STATE;
    flight_begin(one,
                 wm_ucx.ucp_tag_send_nbx(one->to->ep, memory, nbytes,
                                         tag_of(own_id, to->number), &op),
                 flight);
    return 0;
}

static int
ucx_receive(const wm_carry_t *from, void *memory, size_t nbytes,
            wm_flight_t *flight, wm_error_t *err)
{
    wm_ucp_op_t op;
    flight->own = &ended;
    flight_t *one = flight_new(from, true, &op, err);
    if (one == NULL)
        return WM_ERR_STATE;
    (void)end_point_make(one->to); // so that close() flushes UCX's answers
    flight_begin(one,
                 wm_ucx.ucp_tag_recv_nbx(ucx->worker, memory, nbytes,
                                         tag_of(one->to->id, from->number),
                                         UINT64_MAX, &op),
                 flight);
    return 0;
}

// Returns true if the failure of a chunk can be told. UCX may see the death of
// a peer before MPI reports it. Then other chunks may still arrive.
static bool
flight_is_told(flight_t *one)
{
    int64_t now = wm_engine_now();
    if (one->failed == 0)
        one->failed = now;
    return one->to->died != 0 ? one->to->abandoned
                              : now - one->failed > TOLD_US;
}

static int
ucx_test(wm_flight_t *flight, size_t *nbytes, wm_error_t *err)
{
    if (flight->own == &ended)
        return 1;
    flight_t *one = flight->own;
    wm_ucs_status_t status = flight_look(one);
    if (status == WM_UCS_INPROGRESS
        || (status != WM_UCS_OK && !flight_is_told(one)))
        return 0;
    if (nbytes != NULL)
        *nbytes = one->nbytes;
    flight_free(one);
    flight->own = &ended;
    return status == WM_UCS_OK
               ? 1
               : wm_error_set(err, WM_ERR_STATE, 0, "UCX: %s",
                              wm_ucx.ucs_status_string(status));
}

// The chunk is not under way: nobody has sent it.
static void
ucx_cancel(wm_flight_t *flight)
{
    flight_t *one = flight->own;
    if (flight->own == &ended)
        return;
    if (one->request != NULL) {
        wm_ucx.ucp_request_cancel(ucx->worker, one->request);
        flight_land(one, WM_UCS_ERR_CANCELED);
    }
    flight_free(one);
    flight->own = &ended;
}

// Receives that have met no chunk end at once. Others are under way: data may
// be in this host's sockets, and UCX still writes our memory.
static void
ucx_died(wm_peer_t *peer)
{
    end_point_t *one = end_point_of(peer);
    if (one->died != 0)
        return;
    one->died = wm_engine_now();
    ++dying;
    for (flight_t *each = one->first; each != NULL; each = each->next)
        if (each->receives && each->request != NULL)
            wm_ucx.ucp_request_cancel(ucx->worker, each->request);
}

// Returns true if nothing arrives any more of what was sent before a failure.
static bool
ucx_is_quiet(int64_t failed, int64_t now)
{
    return now - failed > LATE_US
           || (now - failed > QUIET_US && now - busy_at > QUIET_US);
}

// Gives up the chunks of a peer that died, once nothing arrives any more. UCX
// does not end them, as it does not know that the peer has died, or cannot
// tell.
static void
end_point_abandon(end_point_t *one, int64_t now)
{
    bool any = false;
    for (flight_t *each = one->first; each != NULL; each = each->next)
        any |= flight_look(each) == WM_UCS_INPROGRESS;
    if ((any || wm_ucx_exposes()) && !ucx_is_quiet(one->died, now))
        return;
    for (flight_t *each = one->first; each != NULL && any; each = each->next)
        if (each->request != NULL)
            flight_land(each, WM_UCS_ERR_CANCELED);
    lost |= any;
    one->abandoned = true;
    --dying;
}

// Makes the context of the device memory current that UCX is given, if there
// is any. Returns true if the caller is to leave it.
static bool
ucx_enter(bool device, wm_scope_t *scope)
{
    return device && own_device >= 0
           && wm_device_enter(own_device, scope, NULL) == 0;
}

// Calls UCX until it has nothing to do. Returns true if it had.
static bool
ucx_turn(int rounds)
{
    wm_scope_t scope;
    bool any = false, more = true;
    bool entered = ucx_enter(on_device > 0, &scope);
    for (int round = 0; round < rounds && more; ++round)
        any |= more = wm_ucx.ucp_worker_progress(ucx->worker) != 0;
    if (entered)
        wm_device_leave(&scope);
    return any;
}

static void
ucx_progress(void)
{
    bool any = ucx_turn(ROUNDS);
    if (dying == 0 && (!any || !wm_ucx_exposes()))
        return;
    int64_t now = wm_engine_now();
    busy_at = any ? now : busy_at;
    for (int i = 0; i < BUCKETS; ++i)
        for (end_point_t *one = peers[i]; one != NULL; one = one->next)
            if (one->died != 0 && !one->abandoned)
                end_point_abandon(one, now);
}

static int
ucx_idle_fd(void)
{
    for (int i = 0; i < ROUNDS && ucx->fd >= 0; ++i) {
        if (wm_ucx.ucp_worker_arm(ucx->worker) == WM_UCS_OK)
            return ucx->fd;
        (void)ucx_turn(1);
    }
    return -1;
}

// Makes progress until the request has ended, or until the time is over.
static void
ucx_finish(wm_ucs_request_t request, int64_t until)
{
    intptr_t status = (intptr_t)request;
    if (request == NULL || (status < 0 && status >= WM_UCS_ERR_LAST))
        return;
    while (wm_ucx.ucp_request_check_status(request) == WM_UCS_INPROGRESS
           && wm_engine_now() < until)
        (void)ucx_turn(1);
    lost |= wm_ucx.ucp_request_check_status(request) == WM_UCS_INPROGRESS;
    wm_ucx.ucp_request_free(request);
}

// Ends an endpoint, which flushes UCX's last words about the chunks. A peer
// that has left is not waited for, and neither is one that does not take a
// chunk, as the communicator was revoked.
static void
end_point_close(end_point_t *one, int64_t until)
{
    wm_ucp_op_t op = {0};
    bool ends = one->died == 0;
    (void)ucx_turn(1);
    for (flight_t *each = one->first; each != NULL; each = each->next)
        ends &= flight_look(each) != WM_UCS_INPROGRESS;
    if (one->ep != NULL)
        wm_ucx_keys_close(one->ep);
    if (one->ep != NULL && ends && !one->broken)
        ucx_finish(wm_ucx.ucp_ep_close_nbx(one->ep, &op), until);
    lost |= one->ep != NULL && !ends;
    one->peer->own[WM_LINK_ucx] = NULL;
    end_point_free(one);
}

static void
ucx_close(void)
{
    int64_t until = wm_engine_now() + CLOSE_US;
    wm_scope_t scope;
    bool entered = ucx_enter(true, &scope);
    for (int i = 0; i < BUCKETS; ++i)
        for (end_point_t *one = peers[i], *next; one != NULL; one = next) {
            next = one->next;
            end_point_close(one, until);
        }
    memset(peers, 0, sizeof peers);
    wm_ucx_keys_end();
    wm_ucx_memory_close();
    wm_ucx.ucp_worker_release_address(ucx->worker, own_address);
    wm_ucx_close(lost);
    if (entered)
        wm_device_leave(&scope);
    ucx = NULL;
}

// --- memory of windows ------------------------------------------------------

static size_t
access_expose(void *memory, size_t nbytes, const wm_pointer_t *about,
              void *key, size_t room, void **exposed)
{
    bool device = wm_memory_on_device(about);
    wm_ucx_exposed_t *made = NULL;
    wm_scope_t scope;
    if (ucx == NULL || (device && !ucx_unstaged(NULL, about)))
        return 0;
    bool entered = ucx_enter(device, &scope);
    size_t length = wm_ucx_expose(ucx, memory, nbytes, device, key, room,
                                  &made);
    if (entered)
        wm_device_leave(&scope);
    on_device += length > 0 && device;
    *exposed = made;
    return length;
}

static bool
access_conceal(void *exposed, bool failed)
{
    int64_t now = wm_engine_now();
    wm_scope_t scope;
    if (ucx != NULL && (failed || dying > 0)) {
        if (concealing == 0)
            concealing = now;
        if (!ucx_is_quiet(concealing, now))
            return false;
        concealing = 0;
    }
    bool entered = ucx_enter(on_device > 0, &scope);
    on_device -= wm_ucx_conceal(exposed);
    if (entered)
        wm_device_leave(&scope);
    wm_ucx_exposed_free(exposed);
    return true;
}

static int
access_open(wm_peer_t *peer, const void *key, size_t nbytes, void **opened,
            wm_error_t *err)
{
    end_point_t *one = end_point_of(peer);
    wm_ucx_key_t *made;
    if (ucx == NULL || !end_point_make(one))
        return wm_error_set(err, WM_ERR_STATE, 0, "UCX has no endpoint");
    int code = wm_ucx_key_open(one->ep, key, nbytes, &made, err);
    if (code == 0)
        *opened = made;
    return code;
}

static void
access_close(void *opened)
{
    wm_ucx_key_close(opened);
}

// Without RDMA UCX copies in fragments, each of which waits for the one
// before, and long messages are faster.
static bool
access_takes(const wm_peer_t *peer, const wm_pointer_t *memory, size_t nbytes)
{
    return (!wm_memory_on_device(memory) || ucx_unstaged(peer, memory))
           && ucx != NULL && (nbytes <= EMULATED_BYTES || ucx->rdma);
}

// Makes the flight of an access, for which UCX returns a request, or refuses.
static int
access_begin(const wm_carry_t *way, void *memory, size_t nbytes, void *opened,
             uint64_t offset, bool puts, wm_flight_t *flight, wm_error_t *err)
{
    wm_ucp_op_t op;
    uint64_t at = 0;
    void *key = wm_ucx_key_find(opened, offset, nbytes, &at);
    if (key == NULL)
        return wm_error_set(err, WM_ERR_STATE, 0, "UCX has no key");
    flight_t *one = flight_new(way, false, &op, err);
    if (one == NULL)
        return WM_ERR_STATE;
    flight_begin(
        one,
        puts ? wm_ucx.ucp_put_nbx(one->to->ep, memory, nbytes, at, key, &op)
             : wm_ucx.ucp_get_nbx(one->to->ep, memory, nbytes, at, key, &op),
        flight);
    return flight_refused(one, err);
}

static int
access_put(const wm_carry_t *to, const void *memory, size_t nbytes,
           void *opened, uint64_t offset, wm_flight_t *flight, wm_error_t *err)
{
    return access_begin(to, (void *)(uintptr_t)memory, nbytes, opened, offset,
                        true, flight, err);
}

static int
access_get(const wm_carry_t *from, void *memory, size_t nbytes, void *opened,
           uint64_t offset, wm_flight_t *flight, wm_error_t *err)
{
    return access_begin(from, memory, nbytes, opened, offset, false, flight,
                        err);
}

static int
access_flush(wm_peer_t *peer, wm_flight_t *flight, wm_error_t *err)
{
    const wm_carry_t way = {.peer = peer, .device = -1};
    wm_ucp_op_t op;
    flight_t *one = flight_new(&way, false, &op, err);
    if (one == NULL)
        return WM_ERR_STATE;
    op = (wm_ucp_op_t){.mask = 0};
    flight_begin(one, wm_ucx.ucp_ep_flush_nbx(one->to->ep, &op), flight);
    return flight_refused(one, err);
}

static void
ucx_tell_lacking(const wm_peer_t *peer, size_t room, char *told)
{
    const char *why = wm_ucx_tell();
    if (ucx == NULL && why == NULL)
        why = "not opened, as there is no adapter with RDMA here: set "
              "WARPMPI_TRANSPORT=ucx";
    else if (ucx != NULL && !unasked && !wm_link_is_asked(&wm_link_ucx))
        why = "it has no transport with RDMA: set WARPMPI_TRANSPORT=ucx";
    else if (ucx != NULL)
        (void)ucx_reach(peer, NULL, &why);
    wm_error_cut(why, room, told);
}

static const wm_link_access_t ucx_access = {
    .expose = access_expose,
    .conceal = access_conceal,
    .open = access_open,
    .close = access_close,
    .takes = access_takes,
    .put = access_put,
    .get = access_get,
    .flush = access_flush,
};

const wm_link_t wm_link_ucx = {
    .name = "ucx",
    .title = "UCX",
    .open = ucx_open,
    .source =
        {
            .progress = ucx_progress,
            .idle_fd = ucx_idle_fd,
            .close = ucx_close,
        },
    .address = ucx_address,
    .connect = ucx_connect,
    .disconnect = ucx_disconnect,
    .died = ucx_died,
    .forget_memory = wm_ucx_memory_forget,
    .reach = ucx_reach,
    .unstaged = ucx_unstaged,
    .send = ucx_send,
    .receive = ucx_receive,
    .test = ucx_test,
    .cancel = ucx_cancel,
    .tell_lacking = ucx_tell_lacking,
    .access = &ucx_access,
};

// SPDX-License-Identifier: BSD-3-Clause
// Workers, endpoints, requests, and the matching of tags.
#include "simucx.h"

#include <atomic>
#include <algorithm>
#include <cstring>
#include <iterator>
#include <sys/random.h>

namespace simucx {

constexpr size_t EAGER_BYTES = 8192;
constexpr size_t PIECE_BYTES = 65536;

static std::atomic<int> inside;

Entry::Entry(const char *name) : failed(count_call(name))
{
    if (inside++ > 0)
        refuse("two threads are in one worker");
}

Entry::~Entry()
{
    inside--;
}

static void
forget(Request *request)
{
    request->worker->requests.erase(request->id);
    live("requests", -1);
    delete request;
}

void
complete(Request *request, ucs_status_t status)
{
    request->status = status;
    if (request->freed)
        forget(request);
}

Request *
add(Worker &worker, uint64_t tag)
{
    Request *request = new Request{};
    request->worker = &worker;
    request->id = ++worker.last_request;
    request->tag = tag;
    worker.requests[request->id] = request;
    live("requests", 1);
    return request;
}

Memory
memory_of(Worker &worker, const void *buffer, size_t size,
          const ucp_request_param_t *param)
{
    if ((param->op_attr_mask & 64) == 0)
        refuse("an operation does not say what its memory is");
    Memory memory = {worker.context, (char *)buffer, size, param->memory_type,
                     nullptr};
    if ((param->op_attr_mask & 256) != 0)
        memory.mapping = (Mapping *)param->memh;
    check_memory(memory);
    return memory;
}

Request *
find(Worker &worker, uint64_t id)
{
    auto at = worker.requests.find(id);
    return at == worker.requests.end() ? nullptr : at->second;
}

static void
meet(Worker &worker, Request *request, const Head &head, const char *payload,
     Connection &connection)
{
    request->tag = head.tag;
    request->size = head.size;
    request->matched = true;
    if (head.size > request->memory.size)
        refuse("a message of %zu bytes meets a receive of %zu",
               (size_t)head.size, request->memory.size);
    if (head.kind == RTS) {
        request->other = head.sender;
        wire_push(worker, connection,
                  {RTR, 0, head.tag, head.size, head.sender, request->id, 0});
        return;
    }
    if (head.size > 0)
        write_memory(request->memory, 0, payload, head.size);
    complete(request, UCS_OK);
}

static void
take_piece(Worker &worker, Connection &connection, const Head &head,
           const char *payload)
{
    Request *request = find(worker, head.receiver);
    if (request == nullptr)
        refuse("a piece comes for a request that has ended");
    write_memory(request->memory, head.offset, payload, head.size);
    request->moved += head.size;
    if (request->moved < request->size)
        return;
    wire_push(worker, connection, {ATS, 0, 0, 0, head.sender, 0, 0});
    complete(request, UCS_OK);
}

void
take_frame(Worker &worker, Connection &connection, const Head &head,
           const char *payload)
{
    Request *sender;
    switch (head.kind) {
    case EAGER:
    case RTS:
        for (auto at = worker.posted.begin(); at != worker.posted.end(); ++at)
            if ((((*at)->tag ^ head.tag) & (*at)->mask) == 0) {
                Request *request = *at;
                worker.posted.erase(at);
                return meet(worker, request, head, payload, connection);
            }
        worker.unexpected.push_back(
            {head, std::string(payload, head.kind == EAGER ? head.size : 0),
             &connection});
        return;
    case RTR:
        if ((sender = find(worker, head.sender)) == nullptr)
            refuse("an answer comes for a request that has ended");
        sender->other = head.receiver;
        return wire_push_pieces(worker, connection, sender->id);
    case PIECE:
        return take_piece(worker, connection, head, payload);
    case ATS:
        if ((sender = find(worker, head.sender)) != nullptr)
            complete(sender, UCS_OK);
        return;
    case PUT:
    case GET:
    case FLUSH:
    case FLUSHED:
        return take_access(worker, connection, head, payload);
    default:
        refuse("a frame of an unknown kind has come");
    }
}

bool
push_piece(Worker &worker, Connection &connection, uint64_t id)
{
    Request *request = find(worker, id);
    if (request->kind == FLUSH) {
        wire_push(worker, connection, {FLUSH, 0, 0, 0, id, 0, 0});
        return false;
    }
    size_t left = request->memory.size - request->moved;
    std::string piece(left < PIECE_BYTES ? left : PIECE_BYTES, '\0');
    count_call("piece");
    read_memory(request->memory, request->moved, piece.data(), piece.size());
    bool puts = request->kind == PUT;
    wire_push(worker, connection,
              {request->kind, 0, puts ? request->key : request->tag,
               piece.size(), request->serves ? 0 : id, request->other,
               request->remote + request->moved},
              piece);
    request->moved += piece.size();
    if (request->moved < request->memory.size)
        return true;
    if (puts || request->serves) // nobody answers
        complete(request, UCS_OK);
    return false;
}

static void
finish_flushes(Worker &worker)
{
    if (!wire_is_idle(worker))
        return;
    std::vector<Request *> all;
    for (auto &each : worker.requests)
        if (each.second->flushes && each.second->status == UCS_INPROGRESS)
            all.push_back(each.second);
    for (auto *each : all)
        complete(each, UCS_OK);
}

} // namespace simucx

using namespace simucx;

UCP_API ucs_status_t
ucp_worker_create(Context *context, const ucp_worker_params_t *params,
                  Worker **worker)
{
    ucs_status_t failed = count_call("worker_create");
    if (failed != UCS_OK)
        return failed;
    if ((params->field_mask & 1) == 0 || params->thread_mode < 1)
        refuse("a worker of one thread is used by several");
    Worker *made = new Worker{};
    made->context = context;
    if (getrandom(&made->address.id, sizeof made->address.id, 0) < 0
        || !wire_open(*made))
        return UCS_ERR_IO_ERROR;
    *worker = made;
    return UCS_OK;
}

UCP_API void
ucp_worker_destroy(Worker *worker)
{
    Entry entry("worker_destroy");
    if (worker->keys > 0)
        refuse("%d keys are left", worker->keys);
    for (auto at = worker->requests.begin(); at != worker->requests.end();)
        if ((at++)->second->serves) // its origin has gone
            forget(std::prev(at)->second);
    if (!worker->requests.empty())
        refuse("%zu requests are left", worker->requests.size());
    for (auto &each : worker->connections)
        if (each.fd >= 0 && each.lost)
            refuse("an endpoint is left");
    wire_close(*worker);
    delete worker;
}

UCP_API ucs_status_t
ucp_worker_get_address(Worker *worker, void **address, size_t *size)
{
    *size = sizeof worker->address;
    *address = malloc(*size);
    memcpy(*address, &worker->address, *size);
    return count_call("worker_get_address");
}

UCP_API void
ucp_worker_release_address(Worker *, void *address)
{
    free(address);
}

UCP_API unsigned
ucp_worker_progress(Worker *worker)
{
    Entry entry("worker_progress");
    unsigned events = wire_progress(*worker);
    age_puts(*worker);
    finish_flushes(*worker);
    return events;
}

UCP_API ucs_status_t
ucp_worker_get_efd(Worker *worker, int *fd)
{
    *fd = worker->epoll;
    return count_call("worker_get_efd");
}

UCP_API ucs_status_t
ucp_worker_arm(Worker *worker)
{
    Entry entry("worker_arm");
    return wire_is_quiet(*worker) ? entry.failed : UCS_ERR_BUSY;
}

UCP_API ucs_status_t
ucp_ep_create(Worker *worker, const ucp_ep_params_t *params, Endpoint **ep)
{
    Entry entry("ep_create");
    Address address;
    if (entry.failed != UCS_OK)
        return entry.failed;
    if ((params->field_mask & 2) != 0 && params->err_mode != 0)
        refuse("with error handling UCX does not pipeline device memory");
    memcpy(&address, params->address, sizeof address);
    *ep = new Endpoint{worker, wire_connect(*worker, address)};
    if ((params->field_mask & 4) != 0)
        (*ep)->connection->lost = [made = *ep, call = params->err_handler,
                                   argument = params->err_argument] {
            call(argument, made, UCS_ERR_CONNECTION_RESET);
        };
    live("endpoints", 1);
    return UCS_OK;
}

static void *
flush(Worker *worker)
{
    Request *request = add(*worker, 0);
    request->flushes = true;
    return request;
}

UCP_API void *
ucp_ep_close_nbx(Endpoint *ep, const ucp_request_param_t *param)
{
    Entry entry("ep_close_nbx");
    if ((param->op_attr_mask & 16) != 0 && param->flags != 0)
        return pointer(UCS_ERR_INVALID_PARAM);
    Worker *worker = ep->worker;
    if (ep->connection->fd < 0)
        refuse("an endpoint is closed whose peer has left: UCX prints that");
    ep->connection->lost = nullptr;
    live("endpoints", -1);
    delete ep;
    return flush(worker);
}

UCP_API void *
ucp_tag_send_nbx(Endpoint *ep, const void *buffer, size_t size, uint64_t tag,
                 const ucp_request_param_t *param)
{
    Entry entry("tag_send_nbx");
    if (entry.failed != UCS_OK)
        return pointer(entry.failed);
    Worker &worker = *ep->worker;
    Request *request = add(worker, tag);
    request->memory = memory_of(worker, buffer, size, param);
    request->size = size;
    std::string payload(size <= EAGER_BYTES ? size : 0, '\0');
    if (!payload.empty())
        read_memory(request->memory, 0, payload.data(), size);
    wire_push(
        worker, *ep->connection,
        {size <= EAGER_BYTES ? EAGER : RTS, 0, tag, size, request->id, 0, 0},
        payload);
    if (size > EAGER_BYTES)
        return request;
    complete(request, UCS_OK);
    if ((param->op_attr_mask & NO_IMM_CMPL) != 0)
        return request;
    forget(request);
    return nullptr;
}

UCP_API void *
ucp_tag_recv_nbx(Worker *worker, void *buffer, size_t size, uint64_t tag,
                 uint64_t mask, const ucp_request_param_t *param)
{
    Entry entry("tag_recv_nbx");
    if (entry.failed != UCS_OK)
        return pointer(entry.failed);
    if ((param->op_attr_mask & NO_IMM_CMPL) == 0)
        refuse("a receive that ends at once has no length");
    Request *request = add(*worker, tag);
    request->receives = true;
    request->mask = mask;
    request->memory = memory_of(*worker, buffer, size, param);
    for (auto at = worker->unexpected.begin(); at != worker->unexpected.end();
         ++at)
        if (((tag ^ at->head.tag) & mask) == 0) {
            Unexpected found = *at;
            worker->unexpected.erase(at);
            meet(*worker, request, found.head, found.payload.data(),
                 *found.connection);
            return request;
        }
    worker->posted.push_back(request);
    return request;
}

UCP_API ucs_status_t
ucp_request_check_status(Request *request)
{
    return request->status;
}

UCP_API ucs_status_t
ucp_tag_recv_request_test(Request *request, ucp_tag_recv_info_t *info)
{
    *info = {request->tag, request->size};
    return request->status;
}

UCP_API void
ucp_request_cancel(Worker *worker, Request *request)
{
    Entry entry("request_cancel");
    auto at = std::find(worker->posted.begin(), worker->posted.end(), request);
    if (at == worker->posted.end())
        return;
    worker->posted.erase(at);
    complete(request, UCS_ERR_CANCELED);
}

UCP_API void
ucp_request_free(Request *request)
{
    Entry entry("request_free");
    request->freed = true;
    if (request->status != UCS_INPROGRESS)
        forget(request);
}

// SPDX-License-Identifier: BSD-3-Clause
// Keys, puts, gets and flushes. A put is done late: when a flush asks for it,
// or after some rounds; a get does not wait for the puts before it.
#include "simucx.h"

#include <cstdlib>
#include <cstring>

namespace simucx {

constexpr int LATE_ROUNDS = 200;

// What a key has, and is.
struct Packed {
    uint64_t mapping, base, size;
};

struct Key {
    Worker *worker;
    Packed packed;
};

static void
put(Worker &worker, const Put &one)
{
    Memory memory = keyed_memory(worker.context, one.head.tag, one.head.offset,
                                 one.head.size);
    write_memory(memory, 0, one.payload.data(), one.head.size);
}

static void
do_puts(Worker &worker, const Connection *connection)
{
    for (auto at = worker.puts.begin(); at != worker.puts.end();)
        if (connection == nullptr || at->connection == connection) {
            put(worker, *at);
            at = worker.puts.erase(at);
        }
        else
            ++at;
}

void
age_puts(Worker &worker)
{
    if (!worker.puts.empty() && ++worker.idle > LATE_ROUNDS)
        do_puts(worker, nullptr);
}

void
take_access(Worker &worker, Connection &connection, const Head &head,
            const char *payload)
{
    Request *request;
    switch (head.kind) {
    case PUT:
        worker.puts.push_back(
            {head, std::string(payload, head.size), &connection});
        worker.idle = 0;
        return;
    case GET:
        request = add(worker, head.tag);
        request->serves = request->freed = true;
        request->other = head.sender;
        request->memory = keyed_memory(worker.context, head.tag, head.offset,
                                       head.size);
        return wire_push_pieces(worker, connection, request->id);
    case FLUSH:
        do_puts(worker, &connection);
        return wire_push(worker, connection,
                         {FLUSHED, 0, 0, 0, 0, head.sender, 0});
    default:
        if ((request = find(worker, head.receiver)) == nullptr)
            refuse("a flush ends twice");
        complete(request, UCS_OK);
    }
}

// Makes the request of an access; checks its key and its memory.
static Request *
access(Endpoint *ep, const void *buffer, size_t size, uint64_t remote,
       const Key *key, uint32_t kind, const ucp_request_param_t *param)
{
    Worker &worker = *ep->worker;
    if ((worker.context->features & 2) == 0)
        refuse("the context has no UCP_FEATURE_RMA");
    if (key->worker != &worker)
        refuse("a key of another worker");
    if (remote < key->packed.base
        || remote + size > key->packed.base + key->packed.size)
        refuse("an access beyond the memory of its key");
    if (size == 0)
        refuse("an access of nothing");
    Request *request = add(worker, 0);
    request->memory = memory_of(worker, buffer, size, param);
    request->size = size;
    request->kind = kind;
    request->key = key->packed.mapping;
    return request;
}

} // namespace simucx

using namespace simucx;

UCP_API ucs_status_t
ucp_rkey_pack(Context *context, Mapping *mapping, void **packed, size_t *size)
{
    ucs_status_t failed = count_call("rkey_pack");
    if (failed != UCS_OK)
        return failed;
    std::lock_guard<std::mutex> guard(context->mu);
    if (context->mappings.count(mapping) == 0)
        refuse("a key of a registration that has ended");
    *size = sizeof(Packed);
    *packed = new Packed{(uint64_t)mapping, mapping->base, mapping->size};
    return UCS_OK;
}

UCP_API void
ucp_rkey_buffer_release(Packed *packed)
{
    delete packed;
}

UCP_API ucs_status_t
ucp_ep_rkey_unpack(Endpoint *ep, const void *packed, Key **key)
{
    Entry entry("ep_rkey_unpack");
    if (entry.failed != UCS_OK)
        return entry.failed;
    *key = new Key{ep->worker, {}};
    memcpy(&(*key)->packed, packed, sizeof(Packed));
    ++ep->worker->keys;
    live("keys", 1);
    return UCS_OK;
}

UCP_API void
ucp_rkey_destroy(Key *key)
{
    Entry entry("rkey_destroy");
    --key->worker->keys;
    live("keys", -1);
    delete key;
}

UCP_API void *
ucp_put_nbx(Endpoint *ep, const void *buffer, size_t size, uint64_t remote,
            Key *key, const ucp_request_param_t *param)
{
    Entry entry("put_nbx");
    if (entry.failed != UCS_OK)
        return pointer(entry.failed);
    Request *request = access(ep, buffer, size, remote, key, PUT, param);
    request->remote = remote;
    wire_push_pieces(*ep->worker, *ep->connection, request->id);
    return request;
}

UCP_API void *
ucp_get_nbx(Endpoint *ep, void *buffer, size_t size, uint64_t remote, Key *key,
            const ucp_request_param_t *param)
{
    Entry entry("get_nbx");
    if (entry.failed != UCS_OK)
        return pointer(entry.failed);
    Request *request = access(ep, buffer, size, remote, key, PIECE, param);
    wire_push(*ep->worker, *ep->connection,
              {GET, 0, key->packed.mapping, size, request->id, 0, remote});
    return request;
}

UCP_API void *
ucp_ep_flush_nbx(Endpoint *ep, const ucp_request_param_t *)
{
    Entry entry("ep_flush_nbx");
    if (entry.failed != UCS_OK)
        return pointer(entry.failed);
    Request *request = add(*ep->worker, 0);
    request->kind = FLUSH;
    wire_push_pieces(*ep->worker, *ep->connection, request->id);
    return request;
}

// SPDX-License-Identifier: BSD-3-Clause
// A double of UCX: README.md.
#ifndef SIMUCX_H
#define SIMUCX_H

#include "ucp_abi.h"

#include <deque>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace simucx {

// settings.cpp ------------------------------------------------------------

// Counts a call of ucp_<name>, and returns the failure that it is to have.
ucs_status_t
count_call(const char *name);

// Says what is wrong in the caller, and aborts.
[[noreturn]] void
refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

std::string
setting(const char *name, const char *standard);

// Changes the present number of `requests`, `mappings` or `endpoints`.
void
live(const char *kind, int change);

long
living(const char *kind);

// memory.cpp --------------------------------------------------------------

struct Context {
    std::mutex mu; // of the mappings, which any thread makes and ends
    std::set<struct Mapping *> mappings;
    uint64_t features;
};

struct Mapping {
    uintptr_t base;
    size_t size;
    uint64_t buffer_id; // of the memory when it was registered
};

// Memory of an operation.
struct Memory {
    Context *context;
    char *at;
    size_t size;
    int type;
    Mapping *mapping; // or NULL
};

bool
sees_cuda();

// Refuses memory that is not what the operation says, or whose registration
// has ended or is that of memory which was freed.
void
check_memory(const Memory &memory);

// Returns memory that a peer accesses by a key; refuses a key whose
// registration has ended, and bytes beyond it.
Memory
keyed_memory(Context *context, uint64_t mapping, uint64_t at, size_t size);

void
read_memory(const Memory &memory, size_t offset, void *into, size_t size);

void
write_memory(const Memory &memory, size_t offset, const void *from,
             size_t size);

// wire.cpp ----------------------------------------------------------------

struct Head {
    uint32_t kind, unused;
    uint64_t tag, size; // of the message, or of the piece
    // Requests; offset of the piece. Of a put and a get: `tag` is the key, and
    // `offset` the address.
    uint64_t sender, receiver, offset;
};

enum Kind : uint32_t {
    EAGER = 1, // with the payload
    RTS,       // a long message waits for a receive
    RTR,       // the receive is there
    PIECE,     // of a long message, with its payload
    ATS,       // all pieces have come
    PUT,       // a piece for the memory of a key, with its payload
    GET,       // asks for the bytes at a key, which come as pieces
    FLUSH,     // asks whether all puts are done
    FLUSHED,
};

inline bool
has_payload(const Head &head)
{
    return head.kind == EAGER || head.kind == PIECE || head.kind == PUT;
}

struct Connection {
    int fd = -1;
    bool writes = false;         // epoll asks for room
    std::deque<std::string> out; // what is to be written
    std::list<uint64_t> sending; // requests whose pieces are to be written
    std::string in;              // what has been read
    std::function<void()> lost;  // called when the other end has gone
};

struct Address {
    uint64_t id; // of the worker
    uint32_t ip;
    uint16_t port, unused;
};

struct Request {
    struct Worker *worker;
    uint64_t id, tag, mask = ~0ull;
    bool receives = false, flushes = false;
    bool matched = false, freed = false;
    ucs_status_t status = UCS_INPROGRESS;
    Memory memory{};
    size_t moved = 0, size = 0; // bytes sent or received; of the message
    uint64_t other = 0;         // the request at the other end
    Connection *connection = nullptr;
    bool serves = false;   // a get of the peer's
    uint32_t kind = PIECE; // of its pieces
    uint64_t remote = 0, key = 0;
};

// A put that has come, and is done late.
struct Put {
    Head head;
    std::string payload;
    Connection *connection;
};

// What has come without a receive.
struct Unexpected {
    Head head;
    std::string payload; // of an eager message
    Connection *connection;
};

struct Worker {
    Context *context;
    Address address;
    int listener, epoll;
    std::list<Connection> connections;
    std::map<uint64_t, Request *> requests;
    std::list<Request *> posted;
    std::list<Unexpected> unexpected;
    std::list<Put> puts;
    int idle = 0; // rounds since the last of them came
    int keys = 0; // of peers, that are open
    uint64_t last_request = 0;
};

bool
wire_open(Worker &worker);

Connection *
wire_connect(Worker &worker, const Address &address);

void
wire_push(Worker &worker, Connection &connection, const Head &head,
          const std::string &payload = "");

// Writes the pieces of a request, one in each progress.
void
wire_push_pieces(Worker &worker, Connection &connection, uint64_t request);

// Writes and reads a little of each connection. Returns the number of events.
unsigned
wire_progress(Worker &worker);

bool
wire_is_idle(const Worker &worker);

// Returns true if there is nothing to read, and nothing that can be written.
bool
wire_is_quiet(const Worker &worker);

void
wire_close(Worker &worker);

// tag.cpp -----------------------------------------------------------------

void
complete(Request *request, ucs_status_t status);

Request *
add(Worker &worker, uint64_t tag);

Request *
find(Worker &worker, uint64_t id);

Memory
memory_of(Worker &worker, const void *buffer, size_t size,
          const ucp_request_param_t *param);

// One thread at a time, as the worker is serialized.
struct Entry {
    ucs_status_t failed;
    explicit Entry(const char *name);
    ~Entry();
};

struct Endpoint {
    Worker *worker;
    Connection *connection;
};

inline void *
pointer(ucs_status_t status)
{
    return (void *)(intptr_t)status;
}

// A whole frame has come.
void
take_frame(Worker &worker, Connection &connection, const Head &head,
           const char *payload);

// Pushes the next piece of a long message; returns false after the last.
bool
push_piece(Worker &worker, Connection &connection, uint64_t request);

// rma.cpp -----------------------------------------------------------------

// A frame of a put, of a get or of a flush has come.
void
take_access(Worker &worker, Connection &connection, const Head &head,
            const char *payload);

// Does the puts that have waited long enough.
void
age_puts(Worker &worker);

} // namespace simucx

#endif

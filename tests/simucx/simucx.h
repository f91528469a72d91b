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

void
read_memory(const Memory &memory, size_t offset, void *into, size_t size);

void
write_memory(const Memory &memory, size_t offset, const void *from,
             size_t size);

// wire.cpp ----------------------------------------------------------------

struct Head {
    uint32_t kind, unused;
    uint64_t tag, size; // of the message, or of the piece
    uint64_t sender, receiver, offset;
};

enum Kind : uint32_t {
    EAGER = 1, // with the payload
    RTS,       // a long message waits for a receive
    RTR,       // the receive is there
    PIECE,     // of a long message, with its payload
    ATS,       // all pieces have come
};

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

// A whole frame has come.
void
take_frame(Worker &worker, Connection &connection, const Head &head,
           const char *payload);

// Pushes the next piece of a long message; returns false after the last.
bool
push_piece(Worker &worker, Connection &connection, uint64_t request);

} // namespace simucx

#endif

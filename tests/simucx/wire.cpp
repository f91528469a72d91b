// SPDX-License-Identifier: BSD-3-Clause
// TCP between workers. A worker writes and reads only in its progress.
#include "simucx.h"

#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace simucx {

// The first interface that is up; the loopback where there is no other.
static uint32_t
own_ip()
{
    ifaddrs *all = nullptr;
    uint32_t ip = htonl(INADDR_LOOPBACK);
    if (getifaddrs(&all) != 0)
        return ip;
    for (ifaddrs *each = all; each != nullptr; each = each->ifa_next)
        if (each->ifa_addr != nullptr && each->ifa_addr->sa_family == AF_INET
            && (each->ifa_flags & IFF_UP) && !(each->ifa_flags & IFF_LOOPBACK)
            && strncmp(each->ifa_name, "docker", 6) != 0)
            ip = ((sockaddr_in *)each->ifa_addr)->sin_addr.s_addr;
    freeifaddrs(all);
    return ip;
}

static sockaddr_in
name_of(const Address &address)
{
    sockaddr_in name = {};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = address.ip;
    name.sin_port = address.port;
    return name;
}

static void
watch(Worker &worker, int operation, int fd, bool writes)
{
    epoll_event event = {};
    event.events = writes ? EPOLLIN | EPOLLOUT : EPOLLIN;
    epoll_ctl(worker.epoll, operation, fd, &event);
}

static Connection *
add(Worker &worker, int fd)
{
    int one = 1;
    worker.connections.emplace_back();
    worker.connections.back().fd = fd;
    if (fd < 0)
        return &worker.connections.back();
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    watch(worker, EPOLL_CTL_ADD, fd, false);
    return &worker.connections.back();
}

bool
wire_open(Worker &worker)
{
    worker.address.ip = own_ip();
    worker.address.port = 0;
    sockaddr_in name = name_of(worker.address);
    socklen_t size = sizeof name;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (sockaddr *)&name, size) != 0
        || listen(fd, 128) != 0
        || getsockname(fd, (sockaddr *)&name, &size) != 0)
        return false;
    worker.address.port = name.sin_port;
    worker.listener = fd;
    worker.epoll = epoll_create1(EPOLL_CLOEXEC);
    watch(worker, EPOLL_CTL_ADD, fd, false);
    return true;
}

Connection *
wire_connect(Worker &worker, const Address &address)
{
    sockaddr_in name = name_of(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (sockaddr *)&name, sizeof name) != 0) {
        close(fd); // as UCX, which says so later, or never
        fd = -1;
    }
    return add(worker, fd);
}

// The other process has ended, or has left. No request ends by this.
static void
lose(Connection &connection)
{
    close(connection.fd);
    connection.fd = -1;
    connection.out.clear();
    connection.sending.clear();
    if (connection.lost)
        connection.lost();
}

static void
watch_writes(Worker &worker, Connection &connection)
{
    bool writes = !connection.out.empty() || !connection.sending.empty();
    if (connection.fd < 0 || writes == connection.writes)
        return;
    connection.writes = writes;
    watch(worker, EPOLL_CTL_MOD, connection.fd, writes);
}

void
wire_push(Worker &worker, Connection &connection, const Head &head,
          const std::string &payload)
{
    if (connection.fd < 0)
        return;
    connection.out.push_back(std::string((const char *)&head, sizeof head)
                             + payload);
    watch_writes(worker, connection);
}

void
wire_push_pieces(Worker &worker, Connection &connection, uint64_t request)
{
    connection.sending.push_back(request);
    watch_writes(worker, connection);
}

static unsigned
write_some(Worker &worker, Connection &connection)
{
    unsigned events = 0;
    if (connection.out.empty() && !connection.sending.empty()) {
        uint64_t request = connection.sending.front();
        if (!push_piece(worker, connection, request))
            connection.sending.pop_front();
    }
    while (!connection.out.empty() && connection.fd >= 0) {
        std::string &first = connection.out.front();
        ssize_t n = send(connection.fd, first.data(), first.size(),
                         MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            lose(connection);
        if (n <= 0)
            break;
        ++events;
        first.erase(0, (size_t)n);
        if (first.empty())
            connection.out.pop_front();
    }
    watch_writes(worker, connection);
    return events;
}

// One frame at most, so that a test sees what comes before the rest.
static unsigned
read_some(Worker &worker, Connection &connection)
{
    Head head;
    size_t want = sizeof head;
    if (connection.in.size() >= sizeof head) {
        memcpy(&head, connection.in.data(), sizeof head);
        want += has_payload(head) ? head.size : 0;
    }
    if (connection.in.size() < want) {
        std::string room(want - connection.in.size(), '\0');
        ssize_t n = recv(connection.fd, room.data(), room.size(), 0);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            lose(connection);
        if (n <= 0)
            return n == 0;
        connection.in.append(room, 0, (size_t)n);
        return 1;
    }
    std::string frame;
    frame.swap(connection.in);
    take_frame(worker, connection, head, frame.data() + sizeof head);
    return 1;
}

unsigned
wire_progress(Worker &worker)
{
    unsigned events = 0;
    for (int fd;
         (fd = accept4(worker.listener, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;
         ++events)
        add(worker, fd);
    for (auto &each : worker.connections) {
        if (each.fd >= 0)
            events += write_some(worker, each);
        if (each.fd >= 0)
            events += read_some(worker, each);
    }
    return events;
}

bool
wire_is_idle(const Worker &worker)
{
    for (auto &each : worker.connections)
        if (!each.out.empty() || !each.sending.empty())
            return false;
    return true;
}

bool
wire_is_quiet(const Worker &worker)
{
    epoll_event event;
    Head head;
    for (auto &each : worker.connections)
        if (each.in.size() >= sizeof head)
            return false;
    return epoll_wait(worker.epoll, &event, 1, 0) == 0;
}

void
wire_close(Worker &worker)
{
    for (auto &each : worker.connections)
        if (each.fd >= 0)
            close(each.fd);
    close(worker.listener);
    close(worker.epoll);
}

} // namespace simucx

// SPDX-License-Identifier: BSD-3-Clause
// TCP between ranks. Addresses are IPv4's.
#include "simnccl.h"

#include <arpa/inet.h>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace simnccl {

constexpr int POLL_MS = 10;
constexpr int REFUSED_TIMES = 100; // a listener is there before its address

std::thread
quiet_thread(std::function<void()> body)
{
    sigset_t all, old;
    sigfillset(&all);
    for (int sig : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT})
        sigdelset(&all, sig);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    std::thread thread(std::move(body));
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
    return thread;
}

// NCCL_SOCKET_IFNAME: beginnings of names, with commas; "=" whole names; "^"
// all others. Otherwise the loopback comes last.
static int
rating(const char *name, const char *wanted)
{
    bool chosen = wanted != nullptr && *wanted;
    std::string list = chosen ? wanted : "";
    bool other = chosen && list[0] == '^';
    size_t marks = list.find_first_not_of("^=");
    bool whole = list.substr(0, marks).find('=') != std::string::npos;
    list = marks == std::string::npos ? "" : list.substr(marks);
    bool named = false;
    for (char *save, *item = strtok_r(list.data(), ",", &save);
         item != nullptr; item = strtok_r(nullptr, ",", &save))
        named |= whole ? !strcmp(name, item)
                       : !strncmp(name, item, strlen(item));
    if (chosen && named == other)
        return 0;
    bool last = !strncmp(name, "lo", 2) || !strncmp(name, "docker", 6);
    return last && (!chosen || other) ? 1 : 2;
}

static bool
choose(uint32_t *ip)
{
    ifaddrs *all = nullptr;
    int best = 0;
    if (getifaddrs(&all) != 0)
        return false;
    for (ifaddrs *each = all; each != nullptr; each = each->ifa_next) {
        if (each->ifa_addr == nullptr || !(each->ifa_flags & IFF_UP)
            || each->ifa_addr->sa_family != AF_INET)
            continue;
        int rate = rating(each->ifa_name, getenv("NCCL_SOCKET_IFNAME"));
        if (rate > best) {
            best = rate;
            *ip = ((sockaddr_in *)each->ifa_addr)->sin_addr.s_addr;
        }
    }
    freeifaddrs(all);
    return best > 0;
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

int
net_listen(Address *address)
{
    if (!choose(&address->ip)) {
        warn(ncclSystemError, "no interface of NCCL_SOCKET_IFNAME=%s is up",
             getenv("NCCL_SOCKET_IFNAME"));
        return -1;
    }
    address->port = 0;
    sockaddr_in name = name_of(*address);
    socklen_t size = sizeof name;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (sockaddr *)&name, size) != 0
        || listen(fd, 128) != 0
        || getsockname(fd, (sockaddr *)&name, &size) != 0) {
        warn(ncclSystemError, "cannot listen: %s", strerror(errno));
        close(fd);
        return -1;
    }
    address->port = name.sin_port;
    return fd;
}

int
net_connect(const Address &address, const Cancelled &cancelled)
{
    sockaddr_in name = name_of(address);
    for (int i = 0; i < REFUSED_TIMES && !cancelled(); i++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        int one = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (connect(fd, (sockaddr *)&name, sizeof name) == 0)
            return fd;
        int error = errno;
        close(fd);
        if (error != ECONNREFUSED && error != EINTR)
            break;
        usleep(POLL_MS * 1000);
    }
    return -1;
}

static bool
await(int fd, const Cancelled &cancelled)
{
    pollfd each = {fd, POLLIN, 0};
    while (!cancelled())
        if (poll(&each, 1, POLL_MS) > 0)
            return true;
    return false;
}

int
net_accept(int listener, const Cancelled &cancelled)
{
    while (await(listener, cancelled)) {
        int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
        int one = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (fd >= 0)
            return fd;
    }
    return -1;
}

bool
net_write(int fd, const void *data, size_t size)
{
    return send(fd, data, size, MSG_NOSIGNAL) == (ssize_t)size;
}

bool
net_read(int fd, void *data, size_t size, const Cancelled &cancelled)
{
    for (size_t got = 0; got < size;) {
        if (!await(fd, cancelled))
            return false;
        ssize_t n = recv(fd, (char *)data + got, size - got, 0);
        if (n <= 0)
            return false;
        got += (size_t)n;
    }
    return true;
}

} // namespace simnccl

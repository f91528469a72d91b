// SPDX-License-Identifier: BSD-3-Clause
// The messages of a communicator. Both sides of a message say when their
// stream has come to it (POST); then the sender's bytes go (DATA). So a
// message ends when both have come, and a wrong pair is found on both sides.
#include "simnccl.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

namespace simnccl {

constexpr std::chrono::seconds LONG(10); // then a wait is told of

std::shared_ptr<sim::Turn>
Operation::submit(uint64_t number)
{
    auto task = std::make_shared<Task>();
    task->operation = shared_from_this();
    task->parts = parts;
    task->memory.resize(room);
    task->number = number;
    Lock lock(comm->mu);
    if (comm->closing || comm->cancelled) {
        warn(ncclInvalidUsage, "a graph runs an operation of a communicator "
                               "that has been destroyed");
        task->ended = true;
        return task;
    }
    for (Part &part : task->parts)
        part.number = comm->peers[part.peer].numbers[part.sends]++;
    comm->last = number;
    comm->tasks.push_back(task);
    comm->poke(); // a peer may have come already
    return task;
}

Operation::~Operation()
{
    if (comm != nullptr)
        comm->operations--;
}

bool
Task::step()
{
    if (!ended && !started.exchange(true))
        operation->comm->poke();
    return ended;
}

char *
Task::at(const Place &place)
{
    return place.span < 0 ? memory.data() + place.offset
                          : operation->spans[place.span].bytes + place.offset;
}

Comm::~Comm()
{
    close(waker);
}

void
Comm::poke()
{
    eventfd_write(waker, 1);
}

static std::string
words(const Desc &desc)
{
    static const char *const kinds[] = {"message", "AllGather", "Broadcast",
                                        "AllReduce"};
    char text[100];
    snprintf(text, sizeof text, "%s of %llu elements of type %d, root %d",
             kinds[(int)desc.kind], (unsigned long long)desc.count, desc.type,
             desc.root);
    return text;
}

static bool
is_same(const Desc &a, const Desc &b)
{
    return a.kind == b.kind && a.type == b.type && a.root == b.root
           && a.op == b.op && a.count == b.count;
}

// Both sides have come to the message.
static void
match(Comm &comm, const TaskPtr &task, Part *part, const Desc &theirs)
{
    if (!is_same(part->desc, theirs)) {
        comm.fail(ncclInvalidUsage,
                  "rank %d calls: %s; but rank %d: %s (number %llu %s it)",
                  comm.rank, words(part->desc).c_str(), part->peer,
                  words(theirs).c_str(), (unsigned long long)part->number,
                  part->sends ? "to" : "from");
        return;
    }
    if (part->size == 0)
        part->done = true;
    else if (part->sends)
        comm.peers[part->peer].out.push_back(
            {{Word::DATA, 1, part->number, part->desc}, part, task});
}

static Part *
part_of(const TaskPtr &task, int peer, bool sends, uint64_t number)
{
    for (Part &part : task->parts)
        if (part.peer == peer && part.sends == sends && part.number == number)
            return &part;
    return nullptr;
}

static void
post(Comm &comm, const TaskPtr &task)
{
    task->posted = true;
    task->since = std::chrono::steady_clock::now();
    for (const Copy &copy : task->operation->copies)
        memmove(task->at(copy.to), task->at(copy.from), copy.size);
    for (Part &part : task->parts) {
        Peer &peer = comm.peers[part.peer];
        if (peer.fd < 0 || peer.bye) {
            comm.fail(ncclRemoteError, "rank %d %s", part.peer,
                      peer.bye ? "has destroyed the communicator"
                               : "has ended");
            continue;
        }
        peer.out.push_back(
            {{Word::POST, part.sends, part.number, part.desc}, {}, {}});
        auto &posts = peer.posts[!part.sends];
        auto found = posts.find(part.number);
        if (found == posts.end())
            continue;
        match(comm, task, &part, found->second);
        posts.erase(found);
    }
}

static void
lose(Comm &comm, int rank)
{
    Peer &peer = comm.peers[rank];
    close(peer.fd);
    peer.fd = -1;
    peer.out.clear();
    bool waited = false;
    for (const TaskPtr &task : comm.tasks)
        for (const Part &part : task->parts)
            waited |= task->posted && part.peer == rank && !part.done;
    if (!comm.closing && (!peer.bye || waited))
        comm.fail(ncclRemoteError, "rank %d of rank %d's communicator %s",
                  rank, comm.rank,
                  peer.bye ? "has destroyed it" : "has ended");
}

// Acts on a message's head.
static void
take(Comm &comm, int rank)
{
    Peer &peer = comm.peers[rank];
    const Head &head = peer.head;
    bool theirs = head.sends != 0;
    Part *part = nullptr;
    if (!comm.tasks.empty() && comm.tasks.front()->posted)
        part = part_of(comm.tasks.front(), rank, !theirs, head.number);
    if (head.word == Word::BYE)
        peer.bye = true;
    else if (head.word == Word::DATA)
        peer.into = part;
    else if (part != nullptr)
        match(comm, comm.tasks.front(), part, head.desc);
    else
        peer.posts[theirs][head.number] = head.desc;
    if (head.word == Word::DATA && part == nullptr)
        comm.fail(ncclInternalError, "rank %d sends what nobody asked for",
                  rank);
    if (peer.into == nullptr)
        peer.got = 0;
}

static void
receive(Comm &comm, int rank)
{
    Peer &peer = comm.peers[rank];
    for (;;) {
        bool heads = peer.got < sizeof peer.head;
        char *at = (char *)&peer.head + peer.got;
        size_t left = sizeof peer.head - peer.got;
        if (!heads) {
            size_t moved = peer.got - sizeof peer.head;
            at = comm.tasks.front()->at(peer.into->place) + moved;
            left = peer.into->size - moved;
        }
        ssize_t n = recv(peer.fd, at, left, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0)
            return lose(comm, rank);
        peer.got += (size_t)n;
        if ((size_t)n < left)
            continue;
        if (heads) {
            take(comm, rank);
            continue;
        }
        peer.into->done = true;
        peer.into = nullptr;
        peer.got = 0;
    }
}

static void
flush(Comm &comm, int rank)
{
    Peer &peer = comm.peers[rank];
    while (!peer.out.empty()) {
        Out &out = peer.out.front();
        constexpr size_t head = sizeof out.head;
        size_t whole = head + (out.part ? out.part->size : 0);
        bool heads = out.moved < head;
        const char *at = heads ? (char *)&out.head + out.moved
                               : out.task->at(out.part->place) + out.moved
                                     - head;
        ssize_t n = send(peer.fd, at, (heads ? head : whole) - out.moved,
                         MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n < 0)
            return; // what it sent before its end is still to be read
        out.moved += (size_t)n;
        if (out.moved < whole)
            continue;
        if (out.part != nullptr)
            out.part->done = true;
        peer.out.pop_front();
    }
}

// Ends tasks, and begins those that their streams have come to. Returns true
// if one has ended.
static bool
advance(Comm &comm, Lock &lock)
{
    bool any = false;
    while (!comm.tasks.empty() && comm.tasks.front()->started) {
        TaskPtr task = comm.tasks.front();
        if (!task->posted) {
            lock.unlock();
            count_call("Post");
            usleep((useconds_t)slow_ms() * 1000);
            lock.lock();
            post(comm, task);
        }
        for (const Part &part : task->parts)
            if (!part.done)
                return any;
        for (const Fold &fold : task->operation->folds)
            reduce(*task, fold, comm.rank, comm.ranks);
        comm.tasks.pop_front();
        task->ended = any = true;
    }
    return any;
}

// Finds the last operation for which another rank waits, and which our stream
// has not come to; 0: none.
static uint64_t
wanted(Comm &comm)
{
    uint64_t number = 0;
    for (const TaskPtr &task : comm.tasks) {
        if (task->started || task->demanded)
            continue;
        for (const Part &part : task->parts) {
            auto &posts = comm.peers[part.peer].posts[!part.sends];
            task->demanded |= posts.count(part.number) != 0;
        }
        number = task->demanded ? task->number : number;
    }
    return number;
}

static void
tell_of_long_wait(Comm &comm)
{
    if (comm.tasks.empty() || comm.tasks.front()->told
        || !comm.tasks.front()->posted
        || std::chrono::steady_clock::now() - comm.tasks.front()->since < LONG)
        return;
    comm.tasks.front()->told = true;
    for (const Part &part : comm.tasks.front()->parts)
        if (!part.done)
            warn(ncclSuccess, "rank %d has waited long for rank %d: %s",
                 comm.rank, part.peer, words(part.desc).c_str());
}

static bool
is_flushed(const Comm &comm)
{
    return std::all_of(
        comm.peers.begin(), comm.peers.end(),
        [](const Peer &peer) { return peer.fd < 0 || peer.out.empty(); });
}

static void
wait(Comm &comm, Lock &lock)
{
    std::vector<pollfd> fds;
    for (const Peer &peer : comm.peers)
        fds.push_back({peer.fd,
                       (short)(peer.out.empty() ? POLLIN : POLLIN | POLLOUT),
                       0});
    fds.push_back({comm.waker, POLLIN, 0});
    lock.unlock();
    poll(fds.data(), fds.size(), 1000);
    lock.lock();
    eventfd_t value;
    if (fds.back().revents != 0)
        eventfd_read(comm.waker, &value);
    for (int i = 0; i < comm.ranks; i++)
        if (comm.peers[i].fd >= 0 && (fds[i].revents & ~POLLOUT) != 0)
            receive(comm, i);
}

void
wire_run(Comm &comm, Lock &lock)
{
    while (!comm.cancelled) {
        bool any = advance(comm, lock);
        for (int i = 0; i < comm.ranks; i++)
            if (comm.peers[i].fd >= 0)
                flush(comm, i);
        any |= advance(comm, lock);
        uint64_t number = wanted(comm);
        tell_of_long_wait(comm);
        if (any || number != 0) {
            comm.changed.notify_all();
            lock.unlock();
            driver()->demand(&comm, number);
            driver()->wake();
            lock.lock();
            continue;
        }
        if (comm.closing && is_flushed(comm))
            return;
        wait(comm, lock);
    }
}

} // namespace simnccl

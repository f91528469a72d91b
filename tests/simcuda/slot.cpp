// SPDX-License-Identifier: BSD-3-Clause
// Interprocess events, and requests of one process that another run an
// operation.
#include "ipc.h"

#include <cstdio>
#include <cstring>
#include <csignal>
#include <linux/futex.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>

namespace sim {

struct EventHandle {
    uint64_t magic;
    Home home;
    uint64_t generation;
    int32_t index;
};
static_assert(sizeof(EventHandle) <= CU_IPC_HANDLE_SIZE, "handle");

constexpr uint64_t MAGIC = 0x74766520736d6973u;

struct Message { // a request to run an operation
    enum : uint32_t { EVENT = 0x53494d31, WORD } kind;
    int32_t index;
    uint64_t nonce, seq;
    Word word;
};

static int outgoing = -1;
static int slots_used;
static auto &slots_free = *new std::deque<Slot *>;
// The records that this process made on slots, by number.
static auto &recorded = *new std::map<Slot *, std::map<uint64_t, Mark>>;

static socklen_t
address_of(int pid, sockaddr_un *address)
{
    *address = {};
    address->sun_family = AF_UNIX;
    int n = snprintf(address->sun_path + 1, sizeof address->sun_path - 1,
                     "simcuda.%d", pid);
    return (socklen_t)(offsetof(sockaddr_un, sun_path) + 1 + n);
}

static void
send_to(int pid, const Message &message)
{
    sockaddr_un address;
    socklen_t length = address_of(pid, &address);
    sendto(outgoing, &message, sizeof message, MSG_DONTWAIT | MSG_NOSIGNAL,
           (sockaddr *)&address, length);
}

bool
slot_mark(Slot *slot, uint64_t seq, Mark *mark)
{
    auto it = recorded.find(slot);
    if (it == recorded.end() || it->second.count(seq) == 0)
        return false;
    *mark = it->second[seq];
    return true;
}

static bool
demand_here(Slot *slot, uint64_t seq)
{
    Mark mark;
    bool here = slot_mark(slot, seq, &mark);
    if (here)
        demand(mark);
    return here;
}

static void
listen(int incoming)
{
    for (;;) {
        Message m;
        ssize_t n = recv(incoming, &m, sizeof m, 0);
        Lock lock(mu);
        if (n != (ssize_t)sizeof m)
            continue;
        Control *block = control_known(m.nonce);
        if (m.kind == Message::EVENT && block != nullptr && m.index >= 0
            && m.index < MAX_SLOTS)
            demand_here(&block->slots[m.index], m.seq);
        else if (m.kind == Message::WORD)
            demand_word(m.word);
    }
}

void
slot_init()
{
    int incoming = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    outgoing = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_un address;
    socklen_t length = address_of(getpid(), &address);
    if (bind(incoming, (sockaddr *)&address, length) != 0) {
        perror("simcuda: bind"); // demands of others then only time out
        return;
    }
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    std::thread(listen, incoming).detach();
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
}

Slot *
slot_take(int device)
{
    Slot *slot = nullptr;
    if (slots_used < MAX_SLOTS) {
        slot = &control->slots[slots_used++];
    }
    else if (!slots_free.empty()) {
        slot = slots_free.front();
        slots_free.pop_front();
    }
    else {
        return nullptr;
    }
    // Numbers only grow: earlier records count as ended.
    slot->generation++;
    slot->done.store(slot->recorded.load());
    slot->device.store(device);
    return slot;
}

void
slot_give(Slot *slot)
{
    slot->generation++;
    slots_free.push_back(slot);
}

uint64_t
slot_record(Slot *slot)
{
    slot->recorder.store(getpid());
    return ++slot->recorded;
}

void
slot_recorded(Slot *slot, uint64_t seq, const Mark &mark)
{
    recorded[slot][seq] = mark;
}

void
slot_complete(Slot *slot, uint64_t seq)
{
    uint64_t done = slot->done.load();
    while (done < seq && !slot->done.compare_exchange_weak(done, seq)) {
    }
    slot->changed++;
    syscall(SYS_futex, &slot->changed, FUTEX_WAKE, INT32_MAX, nullptr, nullptr,
            0);
    auto it = recorded.find(slot);
    if (it != recorded.end()) {
        it->second.erase(seq);
        if (it->second.empty())
            recorded.erase(it);
    }
}

void
slot_demand(Slot *slot, uint64_t seq)
{
    if (demand_here(slot, seq))
        return;
    Control *block = control_holding(slot);
    Message m = {};
    m.kind = Message::EVENT;
    m.nonce = block->nonce;
    m.index = (int32_t)(slot - block->slots);
    m.seq = seq;
    send_to(slot->recorder.load(), m);
}

void
slot_sleep(Lock &lock, Slot *slot, uint64_t seq)
{
    using std::chrono::milliseconds;
    uint32_t seen = slot->changed.load();
    if (slot->done.load() >= seq)
        return;
    if (recorded.count(slot) != 0) {
        progress.wait_for(lock, milliseconds(20));
        return;
    }
    lock.unlock();
    timespec most = {0, 4000000};
    syscall(SYS_futex, &slot->changed, FUTEX_WAIT, seen, &most, nullptr, 0);
    lock.lock();
}

CUresult
slot_export(Slot *slot, CUipcEventHandle *handle)
{
    if (!config.ipc)
        return CUDA_ERROR_NOT_SUPPORTED;
    EventHandle h = {};
    h.magic = MAGIC;
    h.home = home();
    h.generation = slot->generation.load();
    h.index = (int32_t)(slot - control->slots);
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &h, sizeof h);
    return CUDA_SUCCESS;
}

CUresult
slot_import(const CUipcEventHandle *handle, Slot **slot)
{
    if (!config.ipc)
        return CUDA_ERROR_NOT_SUPPORTED;
    EventHandle h;
    memcpy(&h, handle, sizeof h);
    if (h.magic != MAGIC || h.index < 0 || h.index >= MAX_SLOTS)
        return CUDA_ERROR_INVALID_VALUE;
    if (h.home.nonce == control->nonce)
        return CUDA_ERROR_INVALID_CONTEXT;
    Control *block = control_of(h.home);
    if (block == nullptr
        || block->slots[h.index].generation.load() != h.generation)
        return CUDA_ERROR_INVALID_VALUE;
    *slot = &block->slots[h.index];
    return CUDA_SUCCESS;
}

// Returns all processes that have the simulated driver open, by their sockets'
// names.
static const std::vector<int> &
everybody()
{
    static auto &pids = *new std::vector<int>;
    static Time until;
    if (Clock::now() < until)
        return pids;
    until = Clock::now() + std::chrono::milliseconds(200);
    pids.clear();
    FILE *sockets = fopen("/proc/net/unix", "re");
    char line[300];
    while (sockets != nullptr && fgets(line, sizeof line, sockets)) {
        const char *name = strstr(line, "@simcuda.");
        int pid;
        if (name != nullptr && sscanf(name, "@simcuda.%d", &pid) == 1
            && pid != control->pid)
            pids.push_back(pid);
    }
    if (sockets != nullptr)
        fclose(sockets);
    return pids;
}

void
word_broadcast(const Word &word)
{
    Message m = {};
    m.kind = Message::WORD;
    m.word = word;
    for (int pid : everybody())
        send_to(pid, m);
}

} // namespace sim

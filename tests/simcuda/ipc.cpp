// SPDX-License-Identifier: BSD-3-Clause
// Memory of one process, mapped in another.
#include "ipc.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

namespace sim {

struct MemHandle {
    uint64_t magic;
    Home home;
    int32_t arena_fd;
    int16_t device; // its number on the host
    uint16_t slot;  // index in Control.exports
    uint64_t id;
    uint64_t offset;
    uint64_t size;
    uint64_t base;
};
static_assert(sizeof(MemHandle) <= CU_IPC_HANDLE_SIZE, "handle");

constexpr uint64_t MAGIC = 0x6d656d2d6d697321u;

Control *control;
static auto &controls = *new std::map<uint64_t, Control *>;

static Control *
map_control(int fd)
{
    void *p = mmap(nullptr, sizeof(Control), PROT_READ | PROT_WRITE,
                   MAP_SHARED, fd, 0);
    return p == MAP_FAILED ? nullptr : (Control *)p;
}

// Linux enlarges the table of files when it is full; a process with several
// threads then waits until each processor has switched tasks. If all
// processors spin, this takes a minute, so the table is enlarged now.
static void
make_room_for_files(int fd)
{
    int far = fcntl(fd, F_DUPFD_CLOEXEC, 1000);
    if (far >= 0)
        close(far);
}

void
ipc_init()
{
    int fd = memfd_create("simcuda-control", MFD_CLOEXEC);
    make_room_for_files(fd);
    if (fd < 0 || ftruncate(fd, sizeof(Control)) != 0
        || (control = map_control(fd)) == nullptr
        || getrandom(&control->nonce, sizeof control->nonce, 0) < 0) {
        perror("simcuda: control block");
        abort();
    }
    control->pid = getpid();
    control->fd = fd;
    controls[control->nonce] = control;
    slot_init();
}

Home
home()
{
    return {control->nonce, control->pid, control->fd};
}

int
open_foreign(int pid, int fd)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
    return open(path, O_RDWR | O_CLOEXEC);
}

Control *
control_known(uint64_t nonce)
{
    auto it = controls.find(nonce);
    return it == controls.end() ? nullptr : it->second;
}

Control *
control_of(const Home &home)
{
    if (Control *known = control_known(home.nonce))
        return known;
    int fd = open_foreign(home.pid, home.control_fd);
    struct stat st;
    Control *block = nullptr;
    if (fd >= 0 && fstat(fd, &st) == 0 && st.st_size == (off_t)sizeof(Control))
        block = map_control(fd);
    if (fd >= 0)
        close(fd);
    if (block != nullptr && block->nonce != home.nonce) {
        munmap(block, sizeof *block);
        block = nullptr;
    }
    if (block != nullptr)
        controls[home.nonce] = block;
    return block;
}

Control *
control_holding(const Slot *slot)
{
    for (auto &item : controls) {
        Control *c = item.second;
        if (slot >= c->slots && slot < c->slots + MAX_SLOTS)
            return c;
    }
    return nullptr;
}

void
ipc_withdraw(Range *range)
{
    if (range->export_slot >= 0) {
        control->exports[range->export_slot].store(0);
        range->export_slot = -1;
    }
}

static bool
offer(Range *range)
{
    for (int i = 0; range->export_slot < 0 && i < MAX_EXPORTS; i++) {
        if (control->exports[i].load() == 0) {
            control->exports[i].store(range->id);
            range->export_slot = i;
        }
    }
    return range->export_slot >= 0;
}

// Locks the allocation's first byte for reading: as long as a process holds
// such a lock, the exporter counts the memory as taken. Returns false if the
// exporter has freed it.
static bool
hold(const MemHandle &h, int fd)
{
    struct flock lock = {};
    lock.l_type = F_RDLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = h.offset;
    lock.l_len = 1;
    Control *owner = control_known(h.home.nonce);
    return fcntl(fd, F_OFD_SETLK, &lock) == 0
           && owner->exports[h.slot].load() == h.id;
}

static CUresult
import(Context *ctx, const MemHandle &h, RangePtr *out)
{
    int fd = open_foreign(h.home.pid, h.arena_fd);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0 || !hold(h, fd)) {
        if (fd >= 0)
            close(fd);
        return CUDA_ERROR_INVALID_VALUE;
    }
    size_t room = (h.size + PAGE - 1) & ~(PAGE - 1);
    uintptr_t base = reserve(room);
    void *bytes = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                       h.offset);
    if (base == 0 || bytes == MAP_FAILED
        || mmap((void *)base, room, config.access, MAP_SHARED | MAP_FIXED, fd,
                h.offset)
               == MAP_FAILED) {
        close(fd);
        return CUDA_ERROR_MAP_FAILED;
    }
    auto range = std::make_shared<Range>();
    range->base = base;
    range->size = h.size;
    range->room = room;
    range->kind = Kind::IMPORTED;
    range->ctx = ctx;
    range->id = new_id();
    range->bytes = (char *)bytes;
    range->offset = h.offset;
    range->inode = st.st_ino;
    range->fd = fd;
    range->owner = h.home.nonce;
    range->owner_id = h.id;
    range->owner_base = h.base;
    ranges[base] = range;
    *out = range;
    return CUDA_SUCCESS;
}

void
import_free(Range *range)
{
    munmap(range->bytes, range->room);
    unreserve(range->base, range->room);
    close(range->fd);
}

static RangePtr
opened_before(const Context *ctx, const MemHandle &h)
{
    for (auto &item : ranges) {
        const Range &r = *item.second;
        if (r.kind == Kind::IMPORTED && r.ctx == ctx && r.owner == h.home.nonce
            && r.owner_id == h.id)
            return item.second;
    }
    return nullptr;
}

// Returns true if an earlier allocation at the same address in the exporter is
// still open.
static bool
overlaps_opened(const Context *ctx, const MemHandle &h)
{
    for (auto &item : ranges) {
        const Range &r = *item.second;
        if (r.kind == Kind::IMPORTED && r.ctx == ctx && r.owner == h.home.nonce
            && r.owner_base < h.base + h.size
            && h.base < r.owner_base + r.size)
            return true;
    }
    return false;
}

} // namespace sim

using namespace sim;

CUresult
cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr ptr)
{
    Call call("IpcGetMemHandle");
    if (!call)
        return call.result;
    if (!config.ipc)
        return CUDA_ERROR_NOT_SUPPORTED;
    RangePtr range = range_find(ptr);
    if (range == nullptr || range->kind != Kind::DEVICE || range->pooled)
        return CUDA_ERROR_INVALID_VALUE;
    if (!offer(range.get()))
        return CUDA_ERROR_OUT_OF_MEMORY;
    MemHandle h = {};
    h.magic = MAGIC;
    h.home = home();
    h.arena_fd = arena_fd(range->ctx->device);
    h.device = (int16_t)(config.first + range->ctx->device);
    h.slot = (uint16_t)range->export_slot;
    h.id = range->id;
    h.offset = range->offset;
    h.size = range->size;
    h.base = range->base;
    memset(out, 0, sizeof *out);
    memcpy(out, &h, sizeof h);
    return CUDA_SUCCESS;
}

CUresult
cuIpcOpenMemHandle(CUdeviceptr *ptr, CUipcMemHandle handle, unsigned int flags)
{
    Call call("IpcOpenMemHandle");
    if (!call)
        return call.result;
    MemHandle h;
    memcpy(&h, &handle, sizeof h);
    if (!config.ipc)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (h.magic != MAGIC || flags > CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        return CUDA_ERROR_INVALID_VALUE;
    if (h.home.nonce == control->nonce)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (h.device != config.first + call.ctx->device
        && (!config.peer || !(flags & CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)))
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    RangePtr range = opened_before(call.ctx, h);
    if (range == nullptr && overlaps_opened(call.ctx, h))
        return CUDA_ERROR_ALREADY_MAPPED;
    if (range == nullptr) {
        CUresult result = control_of(h.home) == nullptr
                              ? CUDA_ERROR_INVALID_VALUE
                              : import(call.ctx, h, &range);
        if (result != CUDA_SUCCESS)
            return result;
    }
    range->references++;
    *ptr = range->base;
    return CUDA_SUCCESS;
}

CUresult
cuIpcCloseMemHandle(CUdeviceptr ptr)
{
    Call call("IpcCloseMemHandle");
    if (!call)
        return call.result;
    RangePtr range = range_find(ptr);
    if (range == nullptr || range->base != ptr
        || range->kind != Kind::IMPORTED)
        return CUDA_ERROR_INVALID_VALUE;
    wait_until_idle(call.lock, call.ctx);
    if (--range->references == 0)
        range_free(call.lock, range);
    return CUDA_SUCCESS;
}

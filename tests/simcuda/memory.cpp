// SPDX-License-Identifier: BSD-3-Clause
// Memory. Each device is a sparse memfd. An allocation is an extent of it,
// mapped twice: without access at the address that the program gets, so that a
// stray dereference faults as with a GPU, and readable for the simulator only.
// Addresses and extents are assigned independently, so that an address is
// reused at once although a peer still holds the old bytes.
#include "sim.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace sim {

constexpr size_t POISON_SPAN = (size_t)32 << 20;
constexpr int POISON = 0xCD;

// Allocates by best fit over free extents.
class Extents {
  public:
    void
    release(uint64_t start, uint64_t size)
    {
        auto next = free.lower_bound(start);
        if (next != free.end() && start + size == next->first) {
            size += next->second;
            next = free.erase(next);
        }
        if (next != free.begin()) {
            auto before = std::prev(next);
            if (before->first + before->second == start) {
                before->second += size;
                return;
            }
        }
        free[start] = size;
    }

    bool
    take(uint64_t size, uint64_t *start)
    {
        auto best = free.end();
        for (auto it = free.begin(); it != free.end(); ++it)
            if (it->second >= size
                && (best == free.end() || it->second < best->second))
                best = it;
        if (best == free.end())
            return false;
        uint64_t left = best->second - size;
        *start = best->first;
        free.erase(best);
        if (left > 0)
            free[*start + size] = left;
        return true;
    }

  private:
    std::map<uint64_t, uint64_t> free;
};

struct Gone { // freed here, still mapped by a peer
    uint64_t offset, room;
};

struct Arena {
    int fd = -1;
    uint64_t inode = 0;
    char *bytes = nullptr;
    size_t used = 0;     // with memory that peers still map
    bool pools = false;  // cuMemAllocAsync was called
    uint32_t opened = 0; // bit d: the pool is open to device d
    Extents extents;
    std::vector<Gone> gone;
};

std::map<uintptr_t, RangePtr> &ranges = *new std::map<uintptr_t, RangePtr>;
static Arena *arenas = new Arena[MAX_DEVICES];
static Extents &addresses = *new Extents;
static uintptr_t reserved;
static size_t reserved_size;
static uint64_t last_id;

static size_t
pages(size_t size)
{
    return (size + PAGE - 1) & ~(PAGE - 1);
}

static void *
map(void *at, size_t size, int access, int fd, int64_t offset)
{
    int flags = (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED)
                | MAP_NORESERVE | (at ? MAP_FIXED : 0);
    void *p = mmap(at, size, access, flags, fd, offset);
    return p == MAP_FAILED ? nullptr : p;
}

void
memory_init()
{
    reserved_size = config.memory * config.devices * 2 + ((size_t)64 << 30);
    reserved = (uintptr_t)map(nullptr, reserved_size, PROT_NONE, -1, 0);
    addresses.release(reserved, reserved_size);
    for (int d = 0; d < config.devices; d++) {
        Arena &a = arenas[d];
        a.fd = memfd_create("simcuda-device", MFD_CLOEXEC);
        struct stat st;
        size_t size = config.memory * 2; // room for fragmentation
        if (a.fd < 0 || ftruncate(a.fd, size) != 0 || fstat(a.fd, &st) != 0) {
            perror("simcuda: memfd");
            abort();
        }
        a.inode = st.st_ino;
        a.bytes = (char *)map(nullptr, size, PROT_READ | PROT_WRITE, a.fd, 0);
        a.extents.release(0, size);
    }
}

bool
copies_reach(int device, const RangePtr &range)
{
    int home = range != nullptr && range->pooled ? range->ctx->device : device;
    return home == device || (arenas[home].opened >> device & 1);
}

int
arena_fd(int device)
{
    return arenas[device].fd;
}

uint64_t
new_id()
{
    return ++last_id;
}

uintptr_t
reserve(size_t room)
{
    uint64_t start; // one page behind each range has no access
    return addresses.take(room + PAGE, &start) ? start : 0;
}

void
unreserve(uintptr_t base, size_t room)
{
    map((void *)base, room, PROT_NONE, -1, 0);
    addresses.release(base, room + PAGE);
}

static void
give(Arena &a, uint64_t offset, uint64_t room)
{
    fallocate(a.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, room);
    a.extents.release(offset, room);
    a.used -= room;
}

// Returns true if a peer still maps the extent: an importer holds a read lock
// on its first byte, and loses the lock when it dies.
static bool
held(const Arena &a, uint64_t offset)
{
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = offset;
    lock.l_len = 1;
    return fcntl(a.fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

static void
reclaim(Arena &a)
{
    auto freed = [&](const Gone &g) {
        if (held(a, g.offset))
            return false;
        give(a, g.offset, g.room);
        return true;
    };
    a.gone.erase(std::remove_if(a.gone.begin(), a.gone.end(), freed),
                 a.gone.end());
}

static void
poison(char *bytes, size_t size)
{
    size_t head = std::min(size, POISON_SPAN);
    size_t tail = std::min(size - head, POISON_SPAN);
    memset(bytes, POISON, head);
    memset(bytes + size - tail, POISON, tail);
}

RangePtr
range_find(uintptr_t address)
{
    auto it = ranges.upper_bound(address);
    if (it == ranges.begin())
        return nullptr;
    const RangePtr &range = std::prev(it)->second;
    return address - range->base < range->size ? range : nullptr;
}

CUresult
range_get(uintptr_t address, size_t size, RangePtr *range)
{
    *range = range_find(address);
    if (*range == nullptr) {
        return address - reserved < reserved_size ? CUDA_ERROR_INVALID_VALUE
                                                  : CUDA_SUCCESS;
    }
    return address - (*range)->base + size <= (*range)->size
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

Word
word_at(const RangePtr &range, uintptr_t address)
{
    return range->inode
               ? Word{range->inode, range->offset + (address - range->base)}
               : Word{0, address};
}

static CUresult
device_alloc(Context *ctx, size_t size, bool pooled, uintptr_t *out)
{
    Arena &a = arenas[ctx->device];
    auto range = std::make_shared<Range>();
    range->room = pages(size);
    reclaim(a);
    uint64_t offset;
    if (a.used + range->room > config.memory
        || !a.extents.take(range->room, &offset))
        return CUDA_ERROR_OUT_OF_MEMORY;
    range->base = reserve(range->room);
    if (range->base == 0
        || map((void *)range->base, range->room, config.access, a.fd, offset)
               == nullptr) {
        a.extents.release(offset, range->room);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    a.used += range->room;
    range->ctx = ctx;
    range->size = size;
    range->pooled = pooled;
    range->id = new_id();
    range->offset = offset;
    range->inode = a.inode;
    range->bytes = a.bytes + offset;
    poison(range->bytes, range->room);
    ranges[range->base] = range;
    *out = range->base;
    return CUDA_SUCCESS;
}

static CUresult
host_alloc(Context *ctx, size_t size, Kind kind, uintptr_t *out)
{
    Arena &a = arenas[ctx->device];
    bool managed = kind == Kind::MANAGED;
    auto range = std::make_shared<Range>();
    range->room = pages(size);
    if (managed && a.used + range->room > config.memory)
        return CUDA_ERROR_OUT_OF_MEMORY;
    range->bytes = (char *)map(nullptr, range->room, PROT_READ | PROT_WRITE,
                               -1, 0);
    if (range->bytes == nullptr)
        return CUDA_ERROR_OUT_OF_MEMORY;
    a.used += managed ? range->room : 0;
    range->base = (uintptr_t)range->bytes;
    range->ctx = ctx;
    range->size = size;
    range->kind = kind;
    range->id = new_id();
    poison(range->bytes, range->room);
    ranges[range->base] = range;
    *out = range->base;
    return CUDA_SUCCESS;
}

static void
device_free(Range *range)
{
    Arena &a = arenas[range->ctx->device];
    ipc_withdraw(range);
    unreserve(range->base, range->room);
    if (held(a, range->offset))
        a.gone.push_back({(uint64_t)range->offset, range->room});
    else
        give(a, range->offset, range->room);
}

// Finds the file behind registered memory, so that words in it have a name
// that other processes share.
static void
find_file(Range *range)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[600];
    while (maps != nullptr && fgets(line, sizeof line, maps) != nullptr) {
        unsigned long start, end, offset, inode;
        if (sscanf(line, "%lx-%lx %*s %lx %*s %lu", &start, &end, &offset,
                   &inode)
                == 4
            && range->base >= start && range->base < end) {
            range->inode = inode;
            range->offset = offset + (range->base - start);
        }
    }
    if (maps != nullptr)
        fclose(maps);
}

// Keeps the pages, as real registration does, even if the program unmaps them.
// Shared memory is mapped a second time for this. Private memory cannot be,
// and must outlive the work on it.
static void
pin(Range *range)
{
    uintptr_t first = range->base & ~(PAGE - 1);
    size_t room = pages(range->base + range->size - first);
    void *again = range->inode == 0
                      ? MAP_FAILED
                      : mremap((void *)first, 0, room, MREMAP_MAYMOVE);
    if (again != MAP_FAILED) {
        range->bytes = (char *)again + (range->base - first);
        range->room = room;
    }
}

static void
unpin(Range *range)
{
    if (range->room != 0)
        munmap((void *)((uintptr_t)range->bytes & ~(PAGE - 1)), range->room);
}

void
range_withdraw(const RangePtr &range)
{
    if (!range->freed)
        ranges.erase(range->base);
    range->freed = true;
}

void
range_free(Lock &lock, const RangePtr &range)
{
    range_withdraw(range);
    progress.wait(lock, [&] {
        return range->busy == 0
               && (kernels_running == 0 || range->kind == Kind::REGISTERED);
    });
    switch (range->kind) {
    case Kind::DEVICE:
        device_free(range.get());
        break;
    case Kind::IMPORTED:
        import_free(range.get());
        break;
    case Kind::MANAGED:
        arenas[range->ctx->device].used -= range->room;
        munmap(range->bytes, range->room);
        break;
    case Kind::PINNED:
        munmap(range->bytes, range->room);
        break;
    case Kind::REGISTERED:
        unpin(range.get());
        break;
    }
}

static bool
is_host(Kind kind)
{
    return kind == Kind::PINNED || kind == Kind::REGISTERED;
}

static CUresult
allocate(const char *name, size_t size, Kind kind, bool pooled, uintptr_t *out)
{
    Call call(name);
    if (!call)
        return call.result;
    if (out == nullptr || size == 0 || size > (size_t)1 << 46) {
        return size > (size_t)1 << 46 ? CUDA_ERROR_OUT_OF_MEMORY
                                      : CUDA_ERROR_INVALID_VALUE;
    }
    if (kind != Kind::DEVICE)
        return host_alloc(call.ctx, size, kind, out);
    Arena &a = arenas[call.ctx->device];
    a.pools |= pooled;
    CUresult result = device_alloc(call.ctx, size, pooled, out);
    // The driver now looks for room in its memory pools, and waits for the
    // streams that may still use it (measured, driver 580).
    if (result == CUDA_ERROR_OUT_OF_MEMORY && a.pools) {
        wait_until_idle(call.lock, call.ctx);
        result = device_alloc(call.ctx, size, pooled, out);
    }
    return result;
}

} // namespace sim

using namespace sim;

CUresult
cuMemAlloc(CUdeviceptr *ptr, size_t size)
{
    return allocate("MemAlloc", size, Kind::DEVICE, false, (uintptr_t *)ptr);
}

CUresult
cuMemAllocManaged(CUdeviceptr *ptr, size_t size, unsigned int flags)
{
    return flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST
               ? CUDA_ERROR_INVALID_VALUE
               : allocate("MemAllocManaged", size, Kind::MANAGED, false,
                          (uintptr_t *)ptr);
}

CUresult
cuMemAllocAsync(CUdeviceptr *ptr, size_t size, CUstream)
{
    return allocate("MemAllocAsync", size, Kind::DEVICE, true,
                    (uintptr_t *)ptr);
}

static CUmemoryPool
pool_of(int device)
{
    return (CUmemoryPool)((uintptr_t)(device + 1) << 8);
}

CUresult
cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    Call call("DeviceGetDefaultMemPool", device);
    if (call)
        *pool = pool_of(device);
    return call.result;
}

CUresult
cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
    Call call("MemPoolSetAccess", Need::INIT);
    if (!call)
        return call.result;
    int home = (int)((uintptr_t)pool >> 8) - 1;
    if (home < 0 || home >= config.devices || pool != pool_of(home))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        int device = map[i].location.id;
        if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || device < 0
            || device >= config.devices || !config.peer)
            return CUDA_ERROR_INVALID_DEVICE;
        bool opens = map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        uint32_t bit = (uint32_t)1 << device;
        arenas[home].opened = opens ? arenas[home].opened | bit
                                    : arenas[home].opened & ~bit;
    }
    return CUDA_SUCCESS;
}

CUresult
cuMemHostAlloc(void **ptr, size_t size, unsigned int)
{
    return allocate("MemHostAlloc", size, Kind::PINNED, false,
                    (uintptr_t *)ptr);
}

CUresult
cuMemFree(CUdeviceptr ptr)
{
    Call call("MemFree");
    if (!call || ptr == 0)
        return call.result;
    RangePtr range = range_find(ptr);
    if (range == nullptr || range->base != ptr || is_host(range->kind)
        || range->kind == Kind::IMPORTED)
        return CUDA_ERROR_INVALID_VALUE;
    range_withdraw(range);
    wait_until_idle(call.lock, range->ctx);
    range_free(call.lock, range);
    return CUDA_SUCCESS;
}

CUresult
cuMemFreeAsync(CUdeviceptr ptr, CUstream handle)
{
    Call call("MemFreeAsync");
    if (!call || ptr == 0)
        return call.result;
    RangePtr range = range_find(ptr);
    StreamPtr stream = stream_of(handle, call.ctx);
    if (stream == nullptr)
        return CUDA_ERROR_INVALID_HANDLE;
    if (range == nullptr || range->base != ptr || !range->pooled)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture != nullptr)
        return CUDA_ERROR_NOT_SUPPORTED;
    Op op;
    op.run = [range] {
        Lock lock(mu);
        if (!range->freed)
            range_free(lock, range);
        return CUDA_SUCCESS;
    };
    enqueue(stream, std::move(op));
    return CUDA_SUCCESS;
}

CUresult
cuMemFreeHost(void *ptr)
{
    Call call("MemFreeHost");
    if (!call)
        return call.result;
    RangePtr range = range_find((uintptr_t)ptr);
    if (range == nullptr || range->base != (uintptr_t)ptr
        || range->kind != Kind::PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    range_withdraw(range);
    wait_until_idle(call.lock, nullptr);
    range_free(call.lock, range);
    return CUDA_SUCCESS;
}

CUresult
cuMemGetInfo(size_t *free, size_t *total)
{
    Call call("MemGetInfo");
    if (!call)
        return call.result;
    Arena &a = arenas[call.ctx->device];
    reclaim(a);
    *free = config.memory - a.used;
    *total = config.memory;
    return CUDA_SUCCESS;
}

CUresult
cuMemHostRegister(void *ptr, size_t size, unsigned int)
{
    Call call("MemHostRegister");
    if (!call)
        return call.result;
    uintptr_t base = (uintptr_t)ptr;
    if (base == 0 || size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    auto next = ranges.lower_bound(base);
    if (range_find(base) != nullptr
        || (next != ranges.end() && next->first < base + size))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    auto range = std::make_shared<Range>();
    range->base = base;
    range->size = size;
    range->kind = Kind::REGISTERED;
    range->ctx = call.ctx;
    range->id = new_id();
    range->bytes = (char *)ptr;
    find_file(range.get());
    pin(range.get());
    ranges[base] = range;
    return CUDA_SUCCESS;
}

CUresult
cuMemHostUnregister(void *ptr)
{
    Call call("MemHostUnregister");
    if (!call)
        return call.result;
    RangePtr range = range_find((uintptr_t)ptr);
    if (range == nullptr || range->base != (uintptr_t)ptr
        || range->kind != Kind::REGISTERED)
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    range_free(call.lock, range);
    return CUDA_SUCCESS;
}

CUresult
cuMemHostGetDevicePointer(CUdeviceptr *out, void *ptr, unsigned int flags)
{
    Call call("MemHostGetDevicePointer");
    if (!call)
        return call.result;
    RangePtr range = range_find((uintptr_t)ptr);
    if (flags != 0 || range == nullptr || !is_host(range->kind))
        return CUDA_ERROR_INVALID_VALUE;
    *out = (CUdeviceptr)ptr;
    return CUDA_SUCCESS;
}

// SPDX-License-Identifier: BSD-3-Clause
#define _GNU_SOURCE
#include "comm/node/node.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/engine/engine.h"
#include "comm/engine/hash.h"
#include "comm/engine/modules.h"
#include "comm/node/local_peers.h"
#include "cuda/memory.h"
#include "cuda/settings.h"

#define SEGMENT_NAME "warpmpi"
#define SEGMENT_LINK "/memfd:" SEGMENT_NAME " (deleted)" // as /proc shows it
#define SEGMENT_MAGIC 0x77617270006d7069ull              // "warp" "mpi"
#define NOT_VISIBLE                                                           \
    "the peer's process is not visible here (another PID namespace)"

static wm_peer_t *peers;            // those of this host first
static wm_peer_t **others = &peers; // the link to the first of another host
static wm_peer_t *self;
// Chains of peers by id, linked by `chained`; a power of two, of at least as
// many as there are peers, while there is memory.
static wm_peer_t **chains;
static size_t chain_count, peer_count;
static int self_fd = -1;
static bool staging_allocated;
static uint16_t free_slots[WM_SLOTS];
static int free_slot_count;

static void
host_hash(const char *text, uint8_t *into)
{
    for (int i = 0; i < WM_MACHINE_BYTES / 8; ++i) {
        uint64_t part = WM_HASH_OF_NOTHING + (uint64_t)i;
        for (const char *at = text; *at; ++at)
            part = wm_hash(part, (uint8_t)*at);
        memcpy(into + 8 * i, &part, 8);
    }
}

// Returns the identity of this host, found once, as a process stays where it
// is. The boot id tells machines apart even if names repeat (containers), the
// PID namespace the containers of one machine, which do not see each other's
// segments. WARPMPI_HOST makes ranks of one host act as if they were on
// several.
static const uint8_t *
host_identity(void)
{
    static uint8_t host[WM_HOST_BYTES];
    static bool known;
    char text[512] = "", space[64] = "";
    if (known)
        return host;
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file != NULL) {
        if (fgets(text, 64, file) == NULL)
            text[0] = '\0';
        fclose(file);
    }
    if (text[0] == '\0' && gethostname(text, 256) != 0)
        snprintf(text, sizeof text, "pid %d", (int)getpid());
    host_hash(text, host);
    const char *override = wm_setting_text(WM_SETTING_HOST);
    if (override == NULL
        && readlink("/proc/self/ns/pid", space, sizeof space - 1) < 0)
        space[0] = '\0';
    host_hash(override != NULL ? override : space, host + WM_MACHINE_BYTES);
    known = true;
    return host;
}

static wm_peer_t **
chain_of(const uint8_t *id)
{
    uint64_t hash; // ids are random
    memcpy(&hash, id, sizeof hash);
    return &chains[hash & (chain_count - 1)];
}

static void
chain_add(wm_peer_t *peer)
{
    wm_peer_t **chain = chain_of(peer->id);
    peer->chained = *chain;
    *chain = peer;
}

// Makes room in the chains for one more peer. Returns false if there is none.
static bool
chains_grow(void)
{
    size_t count = chain_count == 0 ? 64 : 2 * chain_count;
    if (peer_count < chain_count)
        return true;
    wm_peer_t **more = calloc(count, sizeof(*more));
    if (more == NULL)
        return chains != NULL; // they become longer
    free(chains);
    chains = more;
    chain_count = count;
    for (wm_peer_t *peer = peers; peer != NULL; peer = peer->next)
        chain_add(peer);
    return true;
}

// Returns a new peer; NULL: out of memory.
static wm_peer_t *
peer_new(const uint8_t *id, const uint8_t *host)
{
    wm_peer_t *peer = chains_grow() ? calloc(1, sizeof *peer) : NULL;
    if (peer == NULL)
        return NULL;
    memcpy(peer->id, id, sizeof peer->id);
    memcpy(peer->host, host, sizeof peer->host);
    const uint8_t *own = host_identity();
    peer->same_machine = memcmp(own, host, WM_MACHINE_BYTES) == 0;
    peer->same_host = memcmp(own, host, WM_HOST_BYTES) == 0;
    wm_peer_t **link = peer->same_host ? &peers : others;
    peer->next = *link;
    *link = peer;
    if (peer->same_host && others == link)
        others = &peer->next;
    chain_add(peer);
    ++peer_count;
    return peer;
}

// Allocates a part of the segment; repeats if a signal interrupts.
static int
allocate(int fd, size_t at, size_t nbytes)
{
    int code = EINTR;
    for (int tries = 0; code == EINTR && tries < 100; ++tries)
        code = posix_fallocate(fd, (off_t)at, (off_t)nbytes);
    return code;
}

static int
make_segment(char *text, size_t room)
{
    uint8_t id[sizeof self->id];
    if (getrandom(id, sizeof id, 0) != sizeof id) {
        snprintf(text, room, "getrandom: %s", strerror(errno));
        return -1;
    }
    int fd = memfd_create(SEGMENT_NAME, MFD_CLOEXEC);
    if (fd < 0) {
        snprintf(text, room, "memfd_create: %s", strerror(errno));
        return -1;
    }
    int code = ftruncate(fd, (off_t)WM_SEGMENT_BYTES) == 0
                   ? allocate(fd, 0, WM_CONTROL_BYTES)
                   : errno;
    void *memory = MAP_FAILED;
    if (code == 0) {
        memory = mmap(NULL, WM_SEGMENT_BYTES, PROT_READ | PROT_WRITE,
                      MAP_SHARED, fd, 0);
        code = memory == MAP_FAILED ? errno : 0;
    }
    if (code == EFBIG) { // ulimit -f: private, no peer opens it
        close(fd);
        fd = -1;
        memory = mmap(NULL, WM_SEGMENT_BYTES, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        code = memory == MAP_FAILED ? errno : 0;
    }
    wm_peer_t *peer = code == 0 ? peer_new(id, host_identity()) : NULL;
    if (peer == NULL) {
        snprintf(text, room,
                 "no room for the shared segment of this process (%zu KiB "
                 "now, %zu MiB when messages are staged): %s",
                 (size_t)WM_CONTROL_BYTES >> 10,
                 (size_t)WM_EXCHANGE_AREAS_AT >> 20,
                 strerror(code == 0 ? ENOMEM : code));
        if (memory != MAP_FAILED)
            munmap(memory, WM_SEGMENT_BYTES);
        if (fd >= 0)
            close(fd);
        return -1;
    }
    peer->self = true;
    peer->segment = memory;
    peer->connected = 1u << WM_LINK_host;
    memcpy(peer->segment->id, id, sizeof id);
    peer->segment->magic = SEGMENT_MAGIC;
    for (int i = 0; i < WM_SLOTS; ++i)
        free_slots[i] = (uint16_t)(WM_SLOTS - 1 - i);
    free_slot_count = WM_SLOTS;
    self_fd = fd;
    self = peer;
    return 0;
}

void
wm_node_describe(wm_endpoint_t *endpoint)
{
    memset(endpoint, 0, sizeof *endpoint);
    endpoint->wire_version = WM_WIRE_VERSION;
    endpoint->pid = getpid();
    snprintf(endpoint->version, sizeof endpoint->version, "%s", WM_VERSION);
    memcpy(endpoint->host, host_identity(), WM_HOST_BYTES);
    if (self == NULL
        && make_segment(endpoint->text, sizeof endpoint->text) < 0) {
        endpoint->failed = 1;
        return;
    }
    memcpy(endpoint->id, self->id, sizeof endpoint->id);
}

// Returns true if a descriptor, opened for its path alone, is of a segment of
// this user. In another PID namespace the process may not be the peer, but one
// with the same number. So we open no file that belongs to others.
static bool
is_segment(int place, const char *path, size_t nbytes)
{
    char target[sizeof SEGMENT_LINK];
    struct statx facts;
    ssize_t length = readlink(path, target, sizeof target);
    return length == (ssize_t)sizeof target - 1
           && memcmp(target, SEGMENT_LINK, sizeof target - 1) == 0
           && statx(place, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &facts) == 0
           && S_ISREG(facts.stx_mode) && facts.stx_size == nbytes
           && facts.stx_uid == geteuid();
}

// Returns true if the segment is the peer's: it has the peer's random id.
static bool
is_of_peer(int fd, const wm_peer_t *peer)
{
    struct {
        uint64_t magic;
        uint8_t id[sizeof peer->id];
    } head;
    _Static_assert(offsetof(wm_segment_t, id) == sizeof head.magic,
                   "a segment begins so");
    return pread(fd, &head, sizeof head, 0) == (ssize_t)sizeof head
           && head.magic == SEGMENT_MAGIC
           && memcmp(head.id, peer->id, sizeof head.id) == 0;
}

int
wm_node_segment_number(void)
{
    return self_fd;
}

static int
segment_cannot_be(const char *what, wm_error_t *err)
{
    int number = errno;
    return wm_error_set(err, WM_ERR_SYSTEM, number,
                        "the peer's shared segment cannot be %s (%s)", what,
                        strerror(number));
}

// Opens the file through the descriptor that was checked: the number in /proc
// may refer to another file by now.
int
wm_node_open_file(const wm_peer_t *peer, int number, size_t nbytes,
                  void **memory, wm_error_t *err)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", peer->pid, number);
    int place = open(path, O_PATH | O_CLOEXEC), fd = -1;
    int code = place < 0 ? segment_cannot_be("opened", err)
                         : wm_error_set(err, WM_ERR_STATE, 0, NOT_VISIBLE);
    snprintf(path, sizeof path, "/proc/self/fd/%d", place);
    if (place >= 0 && is_segment(place, path, nbytes)) {
        fd = open(path, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
        if (fd < 0)
            code = segment_cannot_be("opened", err);
    }
    if (fd >= 0 && is_of_peer(fd, peer)) {
        void *mapped = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                            fd, 0);
        code = mapped != MAP_FAILED ? 0 : segment_cannot_be("mapped", err);
        if (code == 0)
            *memory = mapped;
    }
    if (fd >= 0)
        close(fd);
    if (place >= 0)
        close(place);
    return code;
}

int
wm_node_open_segment(wm_peer_t *peer, int number, wm_error_t *err)
{
    void *segment;
    if (!peer->same_host)
        return wm_error_set(err, WM_ERR_STATE, 0, "%s",
                            peer->same_machine
                                    && wm_setting_text(WM_SETTING_HOST) == NULL
                                ? NOT_VISIBLE
                                : "the peer is on another host");
    if (number < 0)
        return wm_error_set(err, WM_ERR_STATE, 0,
                            "the peer may not make a file of %zu MiB: raise "
                            "its limit (ulimit -f)",
                            WM_SEGMENT_BYTES >> 20);
    int code = wm_node_open_file(peer, number, WM_SEGMENT_BYTES, &segment,
                                 err);
    if (code == 0)
        peer->segment = segment;
    return code;
}

int
wm_node_make_file(size_t nbytes, int *number, void **memory, wm_error_t *err)
{
    int fd = memfd_create(SEGMENT_NAME, MFD_CLOEXEC);
    int code = fd < 0                              ? errno
               : ftruncate(fd, (off_t)nbytes) == 0 ? allocate(fd, 0, nbytes)
                                                   : errno;
    void *made = MAP_FAILED;
    if (code == 0) {
        made = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        code = made == MAP_FAILED ? errno : 0;
    }
    if (code == 0) {
        memcpy(made, self->segment, WM_NODE_FILE_HEAD);
        *number = fd;
        *memory = made;
        return 0;
    }
    if (fd >= 0)
        close(fd);
    return wm_error_set(err, WM_ERR_MEMORY, 0,
                        "out of host memory: %zu bytes of shared memory were "
                        "asked for (%s%s)",
                        nbytes, strerror(code),
                        code == EFBIG ? ": raise the limit, ulimit -f" : "");
}

void
wm_node_close_file(int number, void *memory, size_t nbytes)
{
    munmap(memory, nbytes);
    if (number >= 0)
        close(number);
}

void
wm_node_close_segment(wm_peer_t *peer)
{
    munmap(peer->segment, WM_SEGMENT_BYTES);
    peer->segment = NULL;
}

void
wm_peer_refuse(wm_peer_t *peer, int link, const char *reason)
{
    static char unknown[] = "out of host memory";
    if (peer->refused[link] != NULL)
        return;
    char *kept = strdup(reason);
    peer->refused[link] = kept != NULL ? kept : unknown;
}

wm_peer_t *
wm_node_peer(const wm_endpoint_t *endpoint)
{
    wm_peer_t *peer = chains != NULL ? *chain_of(endpoint->id) : NULL;
    while (peer != NULL
           && memcmp(peer->id, endpoint->id, sizeof peer->id) != 0)
        peer = peer->chained;
    if (peer == NULL
        && (peer = peer_new(endpoint->id, endpoint->host)) != NULL)
        peer->pid = endpoint->pid;
    return peer;
}

wm_slot_t *
wm_node_slot(const wm_peer_t *peer, int slot)
{
    return peer->segment != NULL && slot >= 0 && slot < WM_SLOTS
               ? &peer->segment->slots[slot]
               : NULL;
}

wm_account_t *
wm_node_account(const wm_peer_t *peer)
{
    return peer->segment != NULL ? &peer->segment->account : NULL;
}

bool
wm_node_is_leaving(const wm_peer_t *peer)
{
    return atomic_load(&peer->segment->leaving) != 0;
}

bool
wm_node_takes_on(uint64_t gpu)
{
    atomic_store(&self->segment->takes_on, gpu);
    for (wm_peer_t *peer = peers; peer != NULL;
         peer = wm_local_peers_next(peer))
        if (!peer->self && !peer->dead && peer->segment != NULL
            && atomic_load(&peer->segment->takes_on) == gpu)
            return true;
    return false;
}

bool
wm_node_may_receive(const wm_peer_t *peer)
{
    return peer->segment != NULL && !wm_node_is_leaving(peer)
           && (kill(peer->pid, 0) == 0 || errno == EPERM);
}

// Publishes that this process is in MPI_Finalize, and receives no more.
static void
node_leave(void)
{
    wm_engine_lock();
    if (self != NULL)
        atomic_store(&self->segment->leaving, 1);
    wm_engine_unlock();
}

void
wm_node_raised(const char *text)
{
    if (self == NULL)
        return;
    wm_account_t *account = &self->segment->account;
    snprintf(account->exception, sizeof account->exception, "%s", text);
    atomic_store(&account->raised, 1);
}

wm_peer_t *
wm_node_self(void)
{
    return self;
}

wm_peer_t *
wm_node_peers(void)
{
    return peers;
}

int
wm_node_host_peers(void)
{
    int count = 0;
    for (wm_peer_t *peer = peers; peer != NULL;
         peer = wm_local_peers_next(peer))
        ++count;
    return count;
}

int
wm_node_machine_peers(void)
{
    int count = 0;
    for (wm_peer_t *peer = peers; peer != NULL; peer = peer->next)
        count += peer->same_machine;
    return count;
}

int
wm_slot_acquire(void)
{
    if (free_slot_count == 0)
        return -1;
    return free_slots[--free_slot_count];
}

void
wm_slot_release(int slot)
{
    free_slots[free_slot_count++] = (uint16_t)slot;
}

char *
wm_staging_ring_pointer(const wm_peer_t *peer, int ring)
{
    return (char *)peer->segment + WM_CONTROL_BYTES
           + (size_t)ring * WM_STAGING_RING_BYTES;
}

// Allocates a part of our own segment, before the first write does. No-op for
// a peer's.
static int
node_make_room(const wm_peer_t *peer, const char *from, size_t nbytes,
               wm_error_t *err)
{
    size_t at = (size_t)(from - (const char *)peer->segment);
    int code = peer->self && self_fd >= 0 ? allocate(self_fd, at, nbytes) : 0;
    return code == 0 ? 0
                     : wm_error_set(err, WM_ERR_SYSTEM, code,
                                    "no room for %zu MiB of staging memory: "
                                    "%s",
                                    nbytes >> 20, strerror(code));
}

wm_exchange_area_t *
wm_exchange_area_pointer(const wm_peer_t *peer, int index)
{
    char *areas = (char *)peer->segment + WM_EXCHANGE_AREAS_AT;
    return (wm_exchange_area_t *)areas + index;
}

bool
wm_exchange_area_open(int index)
{
    static bool opened[WM_BARRIER_ROWS];
    char *area = (char *)wm_exchange_area_pointer(self, index);
    if (!opened[index])
        opened[index] =
            node_make_room(self, area, sizeof(wm_exchange_area_t), NULL) == 0;
    return opened[index];
}

int
wm_node_register(wm_peer_t *peer, bool staging, int device, wm_error_t *err)
{
    if (!peer->control_registered) {
        if (wm_host_register(device, peer->segment, WM_CONTROL_BYTES, err) < 0)
            return wm_error_context(err, "page-locking a shared segment");
        peer->control_registered = true;
    }
    if (!staging || peer->staging_registered)
        return 0;
    int code = staging_allocated
                   ? 0
                   : node_make_room(peer, wm_staging_ring_pointer(peer, 0),
                                    WM_STAGING_RINGS * WM_STAGING_RING_BYTES,
                                    err);
    if (code < 0)
        return code;
    staging_allocated |= peer->self;
    if (wm_host_register(device, wm_staging_ring_pointer(peer, 0),
                         WM_STAGING_RINGS * WM_STAGING_RING_BYTES, err)
        < 0)
        return wm_error_context(err, "page-locking staging memory");
    peer->staging_registered = true;
    return 0;
}

static _Atomic bool pinned_symm_taken[WM_PINNED_SYMM_COUNT];

int
wm_pinned_symm_acquire(void)
{
    for (int index = 0; index < WM_PINNED_SYMM_COUNT; ++index)
        if (!pinned_symm_taken[index]) {
            pinned_symm_taken[index] = true;
            return index;
        }
    return -1;
}

bool
wm_pinned_symm_is_left(void)
{
    int index = 0;
    while (index < WM_PINNED_SYMM_COUNT && pinned_symm_taken[index])
        ++index;
    return index < WM_PINNED_SYMM_COUNT;
}

void
wm_pinned_symm_release(int index)
{
    pinned_symm_taken[index] = false;
}

char *
wm_pinned_symm_pointer(const wm_peer_t *peer, int index)
{
    return wm_staging_ring_pointer(peer, WM_STAGING_RINGS)
           + (size_t)index * WM_PINNED_SYMM_BYTES;
}

int
wm_node_register_pinned_symm(wm_peer_t *peer, int index, int device,
                             wm_error_t *err)
{
    if (peer->pinned_symm_registered[index])
        return 0;
    char *memory = wm_pinned_symm_pointer(peer, index);
    int code = node_make_room(peer, memory, WM_PINNED_SYMM_BYTES, err);
    if (code == 0
        && wm_host_register(device, memory, WM_PINNED_SYMM_BYTES, err) < 0)
        code = wm_error_context(err, "page-locking staging memory");
    peer->pinned_symm_registered[index] = code == 0;
    return code;
}

const wm_module_t wm_node_module = {.end = node_leave};

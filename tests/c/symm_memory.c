// SPDX-License-Identifier: BSD-3-Clause
// Memory that all ranks of a group share: its size may differ by rank, and
// numbers that another rank told are not used where they cannot be right.
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "comm/engine/engine.h"
#include "comm/node/sharers.h"
#include "comm/node/symm_memory.h"

#define NBYTES ((size_t)4096)

// As symm_memory.c has it.
typedef struct {
    wm_rkey_t place;
    CUuuid device;
    int multiprocessors;
    uint16_t others;
    bool mps;
    int pinned_symm;
    int file;
    bool has_gpu, unreached;
    uint64_t nbytes;
} told_t;

static wm_device_t device;
static wm_peer_t peers[2];
static told_t own, other;
static int reached; // how often the other rank's memory was asked for

// What symm_memory.c needs of the rest.
int
wm_error_set(wm_error_t *err, int code, int detail, const char *format, ...)
{
    (void)err, (void)detail, (void)format;
    return code;
}

int
wm_device_get(int number, const wm_device_t **found, wm_error_t *err)
{
    (void)number, (void)err;
    *found = &device;
    return 0;
}

int
wm_device_is_linked(int number, const CUuuid *uuid, bool *linked,
                    wm_error_t *err)
{
    (void)number, (void)uuid, (void)err;
    *linked = false;
    return 0;
}

int
wm_block_alloc(int number, size_t nbytes, wm_block_t **block, wm_error_t *err)
{
    (void)number, (void)err;
    *block = malloc(nbytes);
    return *block == NULL ? WM_ERR_MEMORY : 0;
}

void
wm_block_free(wm_block_t *block, int count, const CUevent *events,
              const int *devices)
{
    (void)count, (void)events, (void)devices;
    free(block);
}

void *
wm_block_pointer(const wm_block_t *block)
{
    return (void *)block;
}

void
wm_block_describe(const wm_block_t *block, wm_pointer_t *pointer)
{
    (void)block;
    memset(pointer, 0, sizeof *pointer);
}

int
wm_rkey_export(const void *data, const wm_pointer_t *memory, wm_rkey_t *place,
               wm_error_t *err)
{
    (void)data, (void)memory, (void)place, (void)err;
    return 0;
}

int
wm_memory_copy_now(int number, void *dst, const void *src, size_t size,
                   wm_error_t *err)
{
    (void)number, (void)dst, (void)src, (void)size, (void)err;
    abort();
}

bool
wm_rkey_holds(const wm_rkey_t *place, uint64_t nbytes)
{
    uint64_t offset = place->address - place->base;
    return offset <= place->size && nbytes <= place->size - offset;
}

int
wm_mapping_reach(wm_peer_t *peer, const wm_rkey_t *place, int number,
                 wm_mapping_t **mapping, char **at, wm_error_t *err)
{
    (void)peer, (void)place, (void)number, (void)mapping, (void)err;
    ++reached;
    *at = (char *)peers;
    return 0;
}

bool
wm_mapping_is_refused(int code, const wm_error_t *err)
{
    (void)err;
    return code != WM_ERR_MEMORY;
}

void
wm_mapping_release(wm_mapping_t *mapping)
{
    (void)mapping;
}

int
wm_pinned_symm_acquire(void)
{
    return 0;
}

void
wm_pinned_symm_release(int index)
{
    (void)index;
}

char *
wm_pinned_symm_pointer(const wm_peer_t *peer, int index)
{
    assert(index >= 0 && index < WM_PINNED_SYMM_COUNT);
    return (char *)peer;
}

int
wm_node_register_pinned_symm(wm_peer_t *peer, int index, int number,
                             wm_error_t *err)
{
    (void)number, (void)err;
    assert(index >= 0 && index < WM_PINNED_SYMM_COUNT);
    reached += peer == &peers[1];
    return 0;
}

// No memory is in a file of its own here.
int
wm_node_make_file(size_t nbytes, int *number, void **memory, wm_error_t *err)
{
    (void)nbytes, (void)number, (void)memory, (void)err;
    abort();
}

int
wm_node_open_file(const wm_peer_t *peer, int number, size_t nbytes,
                  void **memory, wm_error_t *err)
{
    (void)peer, (void)number, (void)nbytes, (void)memory, (void)err;
    abort();
}

void
wm_node_close_file(int number, void *memory, size_t nbytes)
{
    (void)number, (void)memory, (void)nbytes;
}

int
wm_host_register(int number, void *memory, size_t nbytes, wm_error_t *err)
{
    (void)number, (void)memory, (void)nbytes, (void)err;
    abort();
}

void
wm_host_unregister(int number, void *memory)
{
    (void)number, (void)memory;
}

int
wm_sharers_besides(const wm_device_t *where, wm_peer_t *const *group, int size)
{
    assert(where == &device && group[1] == &peers[1] && size == 2);
    return 3;
}

void
wm_engine_lock(void)
{
}

void
wm_engine_unlock(void)
{
}

// The group's.
static int
exchange(const wm_symm_group_t *group, int code, const void *mine,
         size_t nbytes, void *all, wm_error_t *err)
{
    char *heard = all;
    (void)group, (void)err;
    if (code < 0)
        return code;
    memcpy(heard, mine, nbytes);
    if (nbytes == sizeof own) {
        memcpy(&own, mine, nbytes);
        memcpy(heard + nbytes, &other, nbytes);
    }
    else
        memset(heard + nbytes, 0, nbytes);
    return 0;
}

static int
damaged(const wm_symm_group_t *group, int rank, wm_error_t *err)
{
    (void)group, (void)err;
    assert(rank == 1);
    return WM_ERR_STATE;
}

static int
clear(const wm_symm_memory_t *symm, char *memory, wm_error_t *err)
{
    (void)symm, (void)memory, (void)err;
    return 0;
}

// Returns true if an error was set, and nothing was reached. Else both ranks'
// sizes are known.
static bool
is_refused(bool on_host, size_t least)
{
    wm_peer_t *both[] = {&peers[0], &peers[1]};
    const wm_symm_group_t group = {
        .size = 2,
        .least = least,
        .peers = both,
        .exchange = exchange,
        .damaged = damaged,
    };
    wm_symm_memory_t *symm = NULL;
    wm_error_t err;
    bool unreached;
    reached = 0;
    int code = wm_symm_memory_make(&group, 0, on_host, NBYTES, clear, &symm,
                                   &unreached, &err);
    assert(!unreached);
    assert(code < 0 ? reached == 0 : reached == 1);
    assert(own.nbytes == NBYTES);
    if (code == 0) {
        assert(symm->ranks[0].nbytes == NBYTES);
        assert(symm->ranks[1].nbytes == other.nbytes);
        // The least share, of ranks that have 5 and 8 sharers.
        assert(symm->multiprocessors == 132 / 8);
        wm_symm_memory_free(symm);
    }
    return code == WM_ERR_STATE;
}

int
main(void)
{
    static const int indices[] = {-1, WM_PINNED_SYMM_COUNT, 1 << 30};
    const wm_rkey_t place = {
        .address = 2 * NBYTES,
        .base = NBYTES,
        .size = 2 * NBYTES,
    };
    other.file = -1;
    other.has_gpu = device.mps = other.mps = true;
    device.multiprocessors = other.multiprocessors = 132;
    other.others = 6;
    static const size_t sizes[] = {NBYTES, 2 * NBYTES, NBYTES / 2, 0};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
        other.nbytes = sizes[i];
        other.pinned_symm = WM_PINNED_SYMM_COUNT - 1;
        assert(!is_refused(true, 0));
        assert(is_refused(true, NBYTES) == (sizes[i] < NBYTES));
        other.place = place;
        other.place.size = NBYTES + sizes[i];
        assert(!is_refused(false, 0));
        assert(is_refused(false, NBYTES) == (sizes[i] < NBYTES));
    }
    other.nbytes = WM_PINNED_SYMM_BYTES + 1;
    assert(is_refused(true, 0));
    other.nbytes = NBYTES;
    for (size_t i = 0; i < sizeof indices / sizeof *indices; ++i) {
        other.pinned_symm = indices[i];
        assert(is_refused(true, 0));
    }
    other.place = place;
    assert(!is_refused(false, 0));
    other.place.size = 2 * NBYTES - 1;
    assert(is_refused(false, 0));
    other.place = place;
    other.place.address = NBYTES - 1;
    assert(is_refused(false, 0));
    other.place.address = UINT64_MAX;
    assert(is_refused(false, 0));
    return 0;
}

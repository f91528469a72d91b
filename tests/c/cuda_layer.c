// SPDX-License-Identifier: BSD-3-Clause
// Tests of the bottom layer from C: `cuda_layer CASE` runs one and exits with
// 0, 77 for what this machine cannot do, or 1 after telling the failed check.
// Built and run by tests/test_memory.py.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/memory.h"
#include "check.h"

#define MIB ((size_t)1 << 20)
#define SKIP 77

static wm_error_t err;

static wm_memory_stats_t
stats(void)
{
    wm_memory_stats_t now;
    wm_memory_stats(&now);
    return now;
}

static wm_block_t *
alloc(size_t size)
{
    wm_block_t *block;
    CHECK(wm_block_alloc(0, size, &block, &err) == 0);
    return block;
}

static void
release(wm_block_t *block)
{
    wm_block_free(block, 0, NULL, NULL);
}

// A stream that is stuck until *word is set: how work is kept pending.
static CUstream
stuck_stream(uint32_t **word)
{
    CUstream stream;
    wm_scope_t scope;
    void *ptr;
    CHECK(wm_pinned_alloc(64, &ptr, &err) == 0);
    *word = ptr;
    **word = 0;
    CHECK(wm_stream_acquire(0, &stream, &err) == 0);
    CHECK(wm_device_enter(0, &scope, &err) == 0);
    CHECK(WM_CU(&err, StreamWaitValue32, stream, (CUdeviceptr)ptr, 1,
                CU_STREAM_WAIT_VALUE_GEQ)
          == 0);
    wm_device_leave(&scope);
    return stream;
}

static void
set_word(uint32_t *word)
{
    __atomic_store_n(word, 1, __ATOMIC_SEQ_CST);
}

static void *
set_word_later(void *word)
{
    usleep(50000);
    set_word(word);
    return NULL;
}

static CUevent
recorded(CUstream stream)
{
    CUevent event;
    CHECK(wm_event_acquire(0, &event, &err) == 0);
    CHECK(wm_event_record(0, event, stream, &err) == 0);
    return event;
}

static int
nothing_is_taken_before_the_first_block(void)
{
    CHECK(wm_device_count() > 0);
    bool active;
    CHECK(wm_device_active(0, &active, &err) == 0 && !active);
    CHECK(stats().device_allocations == 0 && stats().pinned_allocations == 0);
    return 0;
}

static int
small_blocks_share_a_slab(void)
{
    wm_block_t *blocks[64];
    for (int i = 0; i < 64; i++) {
        blocks[i] = alloc((size_t)i * 100);
        CHECK((uintptr_t)wm_block_pointer(blocks[i]) % WM_MEMORY_ALIGN == 0);
        CHECK(wm_block_size(blocks[i]) >= (size_t)i * 100);
    }
    CHECK(stats().device_allocations == 1 && stats().blocks == 64);
    CHECK(stats().device_bytes == 16 * MIB);
    for (int i = 0; i < 64; i += 2)
        release(blocks[i]);
    for (int i = 1; i < 64; i += 2)
        release(blocks[i]);
    CHECK(stats().blocks == 0 && stats().device_bytes_used == 0);
    // All joined again: four of the largest fit in the same slab.
    for (int i = 0; i < 4; i++)
        blocks[i] = alloc(4 * MIB);
    CHECK(stats().device_allocations == 1);
    return 0;
}

enum { SLOTS = 200, ROUNDS = 4000 };

static void *
stress(void *argument)
{
    unsigned seed = (unsigned)(uintptr_t)argument;
    wm_block_t *blocks[SLOTS] = {NULL};
    for (int i = 0; i < ROUNDS; i++) {
        int at = rand_r(&seed) % SLOTS;
        if (blocks[at] != NULL) {
            release(blocks[at]);
            blocks[at] = NULL;
            continue;
        }
        size_t size = (size_t)1 << rand_r(&seed) % 20;
        blocks[at] = alloc(size + (size_t)rand_r(&seed) % size);
        uintptr_t low = (uintptr_t)wm_block_pointer(blocks[at]);
        uintptr_t high = low + wm_block_size(blocks[at]);
        wm_pointer_t facts;
        wm_block_describe(blocks[at], &facts);
        CHECK(low >= facts.base && high <= facts.base + facts.size);
        for (int other = 0; other < SLOTS; other++) {
            if (other != at && blocks[other] != NULL) {
                uintptr_t begin = (uintptr_t)wm_block_pointer(blocks[other]);
                CHECK(high <= begin
                      || low >= begin + wm_block_size(blocks[other]));
            }
        }
    }
    for (int i = 0; i < SLOTS; i++)
        release(blocks[i]);
    return NULL;
}

static int
blocks_never_overlap_from_many_threads(void)
{
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, stress, (void *)(i + 1));
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    CHECK(stats().blocks == 0 && stats().device_bytes_used == 0);
    wm_memory_trim(-1);
    CHECK(stats().device_bytes == 0);
    return 0;
}

static int
a_freed_block_waits_for_its_events(void)
{
    uint32_t *word;
    int device = 0;
    CUstream stream = stuck_stream(&word);
    wm_block_t *block = alloc(3 * MIB);
    void *ptr = wm_block_pointer(block);
    CUevent event = recorded(stream);
    wm_block_free(block, 1, &event, &device);
    CHECK(stats().blocks == 0);
    for (int i = 0; i < 20; i++)
        CHECK(wm_block_pointer(alloc(3 * MIB)) != ptr);
    set_word(word);
    CHECK(wm_stream_synchronize(0, stream, &err) == 0);
    bool seen = false; // once nothing else fits
    for (int i = 0; i < 6; i++)
        seen |= wm_block_pointer(alloc(3 * MIB)) == ptr;
    CHECK(seen);
    return 0;
}

static int
a_large_block_is_kept_and_reused(void)
{
    wm_block_t *first = alloc(9 * MIB);
    void *ptr = wm_block_pointer(first);
    wm_pointer_t facts;
    CHECK(wm_pointer_describe(ptr, &facts, &err) == 0);
    CHECK(facts.base == (uintptr_t)ptr && facts.size >= 9 * MIB);
    release(first);
    size_t calls = stats().device_allocations;
    first = alloc(8 * MIB);
    CHECK(wm_block_pointer(first) == ptr);
    CHECK(stats().device_allocations == calls);
    release(first);
    alloc(5 * MIB); // would waste too much of it
    CHECK(stats().device_allocations == calls + 1);
    return 0;
}

static int
idle_memory_is_bounded(void)
{
    size_t left, total;
    CHECK(wm_device_memory(0, &left, &total, &err) == 0);
    wm_block_t *blocks[4];
    for (int i = 0; i < 4; i++)
        blocks[i] = alloc(total / 16);
    for (int i = 0; i < 4; i++)
        release(blocks[i]);
    CHECK(stats().device_bytes <= total / 8 + 16 * MIB);
    wm_memory_trim(0);
    CHECK(stats().device_bytes == 0);
    return 0;
}

static int
fill_device(wm_block_t **blocks, int room, size_t size)
{
    int count = 0;
    while (count < room && wm_block_alloc(0, size, &blocks[count], &err) == 0)
        count++;
    CHECK(count < room && err.code == WM_ERR_MEMORY);
    return count;
}

static int
out_of_memory_tells_what_was_asked_for(void)
{
    size_t left, total;
    CHECK(wm_device_memory(0, &left, &total, &err) == 0);
    wm_block_t *blocks[64], *one;
    int count = fill_device(blocks, 64, total / 16);
    char asked[64];
    snprintf(asked, sizeof(asked), "allocating %zu bytes on cuda:0",
             total / 16);
    CHECK(strstr(err.text, asked) != NULL);
    CHECK(strstr(err.text, "CUDA_ERROR_OUT_OF_MEMORY") != NULL);
    CHECK(strstr(err.text, "bytes are free") != NULL);
    CHECK(wm_block_alloc(0, SIZE_MAX, &one, &err) == WM_ERR_MEMORY);
    for (int i = 0; i < count; i++)
        release(blocks[i]);
    // What lies idle is given back for a size that fits none of it.
    alloc(total / 2);
    return 0;
}

static int
out_of_memory_waits_for_pending_frees(void)
{
    size_t left, total;
    uint32_t *word;
    int device = 0;
    CHECK(wm_device_memory(0, &left, &total, &err) == 0);
    wm_block_t *blocks[64];
    int count = fill_device(blocks, 64, total / 16);
    CUstream stream = stuck_stream(&word);
    CUevent event = recorded(stream);
    wm_block_free(blocks[count - 1], 1, &event, &device);
    pthread_t thread;
    pthread_create(&thread, NULL, set_word_later, word);
    alloc(total / 16);
    pthread_join(thread, NULL);
    return 0;
}

static wm_block_t *spare;
static int reclaims;

static bool
reclaim(int device)
{
    reclaims++;
    release(spare);
    spare = NULL;
    return device == 0;
}

static int
out_of_memory_asks_the_reclaim_hook(void)
{
    size_t left, total;
    CHECK(wm_device_memory(0, &left, &total, &err) == 0);
    wm_block_t *blocks[64];
    int count = fill_device(blocks, 64, total / 16);
    spare = blocks[count - 1];
    wm_memory_set_reclaim(reclaim);
    alloc(total / 16);
    CHECK(reclaims == 1 && spare == NULL);
    return 0;
}

static int
a_block_knows_its_allocation(void)
{
    wm_block_t *block = alloc(1000), *other = alloc(1000);
    wm_pointer_t told, asked;
    wm_block_describe(other, &told);
    CHECK(wm_pointer_describe(wm_block_pointer(other), &asked, &err) == 0);
    CHECK(told.kind == WM_MEMORY_DEVICE && told.device == 0);
    CHECK(told.exportable);
    CHECK(told.kind == asked.kind && told.device == asked.device);
    CHECK(told.base == asked.base && told.size == asked.size);
    CHECK(told.buffer_id == asked.buffer_id && told.buffer_id != 0);
    CHECK(told.exportable == asked.exportable);
    CHECK(wm_pointer_buffer_id(told.base) == told.buffer_id);
    release(block);
    release(other);
    wm_memory_trim(0);
    CHECK(wm_pointer_buffer_id(told.base) == 0);
    return 0;
}

static int
host_memory_is_host_memory(void)
{
    int on_stack = 0;
    wm_pointer_t facts;
    CHECK(wm_pointer_describe(&on_stack, &facts, &err) == 0);
    CHECK(facts.kind == WM_MEMORY_HOST && facts.device == -1);
    CHECK(!wm_driver_in_process()); // and nobody started CUDA for that
    CHECK(wm_pointer_describe(NULL, &facts, &err) == 0);
    CHECK(facts.kind == WM_MEMORY_HOST);
    if (wm_driver_load(&err) < 0)
        return 0;
    alloc(1);
    CHECK(wm_pointer_describe(&on_stack, &facts, &err) == 0);
    CHECK(facts.kind == WM_MEMORY_HOST && facts.device == -1);
    CHECK(facts.base == 0 && facts.size == 0 && facts.buffer_id == 0);
    return 0;
}

static void *
describe_elsewhere(void *ptr)
{
    static wm_pointer_t facts; // no context is current on this thread
    CHECK(wm_device_current() == -1);
    CHECK(wm_pointer_describe(ptr, &facts, &err) == 0);
    return &facts;
}

static int
a_pointer_is_known_on_any_thread(void)
{
    pthread_t thread;
    void *facts;
    pthread_create(&thread, NULL, describe_elsewhere,
                   wm_block_pointer(alloc(100)));
    pthread_join(thread, &facts);
    CHECK(((wm_pointer_t *)facts)->kind == WM_MEMORY_DEVICE);
    return 0;
}

static int
pinned_memory_is_pooled(void)
{
    void *first, *again, *large;
    wm_pointer_t facts;
    CHECK(wm_pinned_alloc(1000, &first, &err) == 0);
    memset(first, 1, 1000);
    CHECK((uintptr_t)first % 1024 == 0);
    CHECK(wm_pointer_describe(first, &facts, &err) == 0);
    CHECK(facts.kind == WM_MEMORY_PINNED && facts.device == -1);
    wm_pinned_free(first);
    CHECK(wm_pinned_alloc(700, &again, &err) == 0 && again == first);
    CHECK(stats().pinned_allocations == 1 && stats().pinned_blocks == 1);
    CHECK(stats().pinned_bytes_used == 1024);
    CHECK(wm_pinned_alloc(3 * MIB, &large, &err) == 0);
    CHECK(stats().pinned_bytes_used == 1024 + 4 * MIB);
    wm_pinned_free(large);
    CHECK(wm_pinned_alloc(4 * MIB, &again, &err) == 0 && again == large);
    CHECK(wm_pinned_alloc(SIZE_MAX, &large, &err) == WM_ERR_MEMORY);
    wm_pinned_free(NULL);
    return 0;
}

static int
a_busy_stream_is_not_handed_out(void)
{
    uint32_t *word;
    CUstream stuck = stuck_stream(&word), others[10];
    bool idle;
    wm_stream_release(0, stuck);
    for (int i = 0; i < 10; i++) {
        CHECK(wm_stream_acquire(0, &others[i], &err) == 0);
        CHECK(others[i] != stuck);
        CHECK(wm_stream_idle(0, others[i], &idle, &err) == 0 && idle);
    }
    wm_stream_release_idle(0, others[0]);
    CHECK(wm_stream_acquire(0, &others[1], &err) == 0);
    CHECK(others[1] == others[0]);
    CHECK(wm_stream_idle(0, stuck, &idle, &err) == 0 && !idle);
    set_word(word);
    CHECK(wm_stream_synchronize(0, stuck, &err) == 0);
    CHECK(wm_stream_acquire(0, &others[0], &err) == 0 && others[0] == stuck);
    return 0;
}

// Making ever more would end in waiting for the device.
static int
many_busy_streams_are_bounded(void)
{
    uint32_t *word;
    CUstream stuck = stuck_stream(&word), seen[200];
    CUevent event = recorded(stuck);
    int distinct = 0;
    for (int i = 0; i < 200; i++) {
        CHECK(wm_stream_acquire(0, &seen[i], &err) == 0);
        CHECK(wm_stream_wait_event(0, seen[i], event, &err) == 0);
        wm_stream_release(0, seen[i]);
        bool before = false;
        for (int other = 0; other < i; other++)
            before |= seen[other] == seen[i];
        distinct += !before;
    }
    CHECK(distinct > 1 && distinct < 32);
    set_word(word);
    return 0;
}

static CUresult
no_room(CUstream *stream, unsigned flags, int priority)
{
    (void)stream, (void)flags, (void)priority;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult
no_room_for_an_event(CUevent *event, unsigned flags)
{
    (void)event, (void)flags;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

// Also a caller that wants no text learns that memory is short.
static int
the_code_does_not_need_the_text(void)
{
    CUstream stream;
    CUevent event;
    CHECK(wm_device_get(0, &(const wm_device_t *){NULL}, &err) == 0);
    wm_cu.StreamCreateWithPriority = no_room;
    wm_cu.EventCreate = no_room_for_an_event;
    CHECK(wm_stream_create(0, &stream, NULL) == WM_ERR_MEMORY);
    CHECK(wm_event_create(0, &event, NULL) == WM_ERR_MEMORY);
    CHECK(wm_event_look_for_errors(0, NULL) == 0);
    return 0;
}

// A message that has come must be taken, also on a GPU that is full.
static int
without_memory_a_stream_is_shared(void)
{
    CUstream first, streams[3], made;
    CHECK(wm_device_get(0, &(const wm_device_t *){NULL}, &err) == 0);
    __typeof__(wm_cu.StreamCreateWithPriority) make =
        wm_cu.StreamCreateWithPriority;
    wm_cu.StreamCreateWithPriority = no_room;
    CHECK(wm_stream_create(0, &made, &err) == WM_ERR_MEMORY);
    for (int i = 0; i < 2; i++) {
        CHECK(wm_stream_acquire(0, &streams[i], NULL) == 0);
        CHECK(streams[i] == CU_STREAM_LEGACY);
    }
    wm_stream_release(0, streams[0]);
    wm_stream_release_idle(0, streams[1]);
    wm_cu.StreamCreateWithPriority = make;
    CHECK(wm_stream_acquire(0, &first, &err) == 0);
    CHECK(first != CU_STREAM_LEGACY);
    wm_cu.StreamCreateWithPriority = no_room;
    for (int i = 0; i < 3; i++)
        CHECK(wm_stream_acquire(0, &streams[i], &err) == 0
              && streams[i] == first);
    wm_stream_release_idle(0, first);
    wm_stream_release(0, streams[0]);
    wm_stream_release(0, streams[1]);
    wm_cu.StreamCreateWithPriority = make;
    CHECK(wm_stream_acquire(0, &made, &err) == 0 && made != first);
    wm_stream_release_idle(0, streams[2]); // the last owner
    CHECK(wm_stream_acquire(0, &streams[0], &err) == 0 && streams[0] == first);
    CHECK(wm_stream_acquire(0, &streams[1], &err) == 0);
    CHECK(streams[1] != first && streams[1] != made);
    return 0;
}

static int
a_stream_follows_another(void)
{
    uint32_t *word;
    CUstream first = stuck_stream(&word), second;
    wm_block_t *block = alloc(4);
    void *pinned;
    bool idle;
    CHECK(wm_pinned_alloc(64, &pinned, &err) == 0);
    int *value = pinned, *back = value + 1;
    *value = 42;
    *back = 0;
    CHECK(wm_stream_create(0, &second, &err) == 0);
    CHECK(wm_stream_follow(0, second, 0, first, &err) == 0);
    CHECK(wm_stream_follow(0, second, 0, second, &err) == 0);
    void *ptr = wm_block_pointer(block);
    CHECK(wm_memory_copy(0, ptr, value, 4, second, &err) == 0);
    CHECK(wm_memory_copy(0, back, ptr, 4, second, &err) == 0);
    for (int i = 0; i < 30; i++) { // long enough to run, were it free to
        CHECK(wm_stream_idle(0, second, &idle, &err) == 0 && !idle);
        usleep(1000);
    }
    set_word(word);
    CHECK(wm_stream_synchronize(0, second, &err) == 0);
    CHECK(*back == 42);
    wm_stream_destroy(0, second);
    return 0;
}

static int
entering_leaves_the_current_context_alone(void)
{
    const wm_device_t *device;
    wm_scope_t scope;
    CUcontext before, after;
    bool active;
    CHECK(wm_device_current() == -1);
    CHECK(wm_device_get(0, &device, &err) == 0);
    CHECK(wm_device_current() == -1); // retained, not made current
    CHECK(wm_device_enter(0, &scope, &err) == 0);
    CHECK(wm_device_current() == 0);
    wm_device_leave(&scope);
    CHECK(wm_device_current() == -1);
    CHECK(WM_CU(&err, CtxSetCurrent, device->context) == 0);
    release(alloc(100));
    CHECK(WM_CU(&err, CtxGetCurrent, &before) == 0);
    if (wm_device_count() > 1) {
        CHECK(wm_device_active(1, &active, &err) == 0 && !active);
        CHECK(wm_device_enter(1, &scope, &err) == 0);
        CHECK(wm_device_current() == 1);
        wm_device_leave(&scope);
    }
    CHECK(WM_CU(&err, CtxGetCurrent, &after) == 0 && before == after);
    return 0;
}

static CUstreamCaptureMode
capture_mode(void)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL, old;
    CHECK(WM_CU(&err, ThreadExchangeStreamCaptureMode, &mode) == 0);
    old = mode;
    CHECK(WM_CU(&err, ThreadExchangeStreamCaptureMode, &mode) == 0);
    return old;
}

static int
a_thread_stays_until_it_goes(void)
{
    wm_scope_t scope, other;
    int last = wm_device_count() - 1;
    wm_device_stay();
    CHECK(wm_device_current() == -1); // nothing was entered yet
    CHECK(wm_device_enter(0, &scope, &err) == 0);
    CHECK(wm_device_enter(last, &other, &err) == 0);
    wm_device_leave(&other); // the inner one
    CHECK(wm_device_current() == 0);
    wm_device_leave(&scope);
    for (int i = 0; i < 2; ++i) {
        wm_device_stay();
        CHECK(wm_device_current() == 0);
        CHECK(capture_mode() == CU_STREAM_CAPTURE_MODE_RELAXED);
        CHECK(wm_device_enter(0, &scope, &err) == 0);
        wm_device_leave(&scope);
        CHECK(wm_device_enter(last, &other, &err) == 0);
        CHECK(wm_device_current() == last);
        CHECK(wm_device_enter(0, &scope, &err) == 0);
        CHECK(wm_device_current() == 0);
        wm_device_leave(&scope);
        CHECK(wm_device_current() == last);
        wm_device_leave(&other);
        CHECK(wm_device_current() == 0);
        wm_device_go();
    }
    wm_device_go();
    CHECK(wm_device_current() == -1);
    CHECK(capture_mode() == CU_STREAM_CAPTURE_MODE_GLOBAL);
    CHECK(wm_device_enter(0, &scope, &err) == 0);
    CHECK(wm_device_current() == 0);
    wm_device_leave(&scope);
    CHECK(wm_device_current() == -1);
    return 0;
}

static int
a_stream_tells_its_device(void)
{
    CUstream stream;
    int device = -1, last = wm_device_count() - 1;
    CHECK(wm_stream_create(last, &stream, &err) == 0);
    CHECK(wm_stream_device(stream, &device, &err) == 0 && device == last);
    return 0;
}

static int
an_unknown_device_is_a_value_error(void)
{
    const wm_device_t *device;
    wm_scope_t scope;
    CHECK(wm_device_get(99, &device, &err) == WM_ERR_VALUE);
    CHECK(strstr(err.text, "cuda:99") != NULL);
    CHECK(strstr(err.text, "cuda:0") != NULL);
    CHECK(wm_device_enter(-1, &scope, &err) == WM_ERR_VALUE);
    CHECK(wm_device_get(-5, &device, NULL) == WM_ERR_VALUE);
    return 0;
}

static int
a_forked_child_is_refused(void)
{
    wm_block_t *block = alloc(100), *other;
    CUstream stream;
    CUevent event;
    void *ptr;
    pid_t child = fork();
    if (child == 0) {
        CHECK(wm_driver_forked());
        CHECK(wm_block_alloc(0, 8, &other, &err) == WM_ERR_STATE);
        CHECK(wm_stream_acquire(0, &stream, &err) == WM_ERR_STATE);
        CHECK(wm_event_acquire(0, &event, &err) == WM_ERR_STATE);
        CHECK(wm_pinned_alloc(8, &ptr, &err) == WM_ERR_STATE);
        CHECK(wm_device_synchronize(0, &err) == WM_ERR_STATE);
        CHECK(strstr(err.text, "fork") != NULL);
        release(block); // the parent's: nothing happens
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(!wm_driver_forked());
    release(block);
    return 0;
}

static int
pending_events_go_back_to_their_pool(void)
{
    CUevent event, again;
    int device = 0;
    CHECK(wm_event_acquire(0, &event, &err) == 0);
    wm_block_free(alloc(9 * MIB), 1, &event, &device);
    release(alloc(9 * MIB));
    CHECK(stats().device_allocations == 1);
    CHECK(wm_event_acquire(0, &again, &err) == 0 && again == event);
    return 0;
}

static int
a_text_is_cut_behind_a_word(void)
{
    static const struct {
        const char *text, *cut;
    } rows[] = {
        {"", ""},
        {"all of it", "all of it"},
        {"a first word 0x1234567", "a first word ..."},
        {"one-word-that-is-far-too-long", "one-word-tha ..."},
        {"seventeen are one", "seventeen ..."},
    };
    char cut[17];
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        memset(cut, '?', sizeof(cut));
        wm_error_cut(rows[i].text, sizeof(cut), cut);
        CHECK(strcmp(cut, rows[i].cut) == 0);
    }
    return 0;
}

static const struct {
    const char *name;
    int (*run)(void);
} cases[] = {
    CASE(nothing_is_taken_before_the_first_block),
    CASE(small_blocks_share_a_slab),
    CASE(blocks_never_overlap_from_many_threads),
    CASE(a_freed_block_waits_for_its_events),
    CASE(a_large_block_is_kept_and_reused),
    CASE(idle_memory_is_bounded),
    CASE(out_of_memory_tells_what_was_asked_for),
    CASE(out_of_memory_waits_for_pending_frees),
    CASE(out_of_memory_asks_the_reclaim_hook),
    CASE(a_block_knows_its_allocation),
    CASE(host_memory_is_host_memory),
    CASE(a_pointer_is_known_on_any_thread),
    CASE(pinned_memory_is_pooled),
    CASE(a_busy_stream_is_not_handed_out),
    CASE(many_busy_streams_are_bounded),
    CASE(the_code_does_not_need_the_text),
    CASE(without_memory_a_stream_is_shared),
    CASE(a_stream_follows_another),
    CASE(entering_leaves_the_current_context_alone),
    CASE(a_thread_stays_until_it_goes),
    CASE(a_stream_tells_its_device),
    CASE(an_unknown_device_is_a_value_error),
    CASE(a_forked_child_is_refused),
    CASE(pending_events_go_back_to_their_pool),
    CASE(a_text_is_cut_behind_a_word),
};

int
main(int argc, char **argv)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (argc < 2) {
            puts(cases[i].name);
        }
        else if (strcmp(argv[1], cases[i].name) == 0) {
            // host_memory_is_host_memory wants a process without CUDA.
            bool first = strcmp(argv[1], "host_memory_is_host_memory") != 0;
            if (first && wm_driver_load(&err) < 0) {
                fprintf(stderr, "%s\n", err.text);
                return SKIP;
            }
            return cases[i].run();
        }
    }
    return argc < 2 ? 0 : 2;
}

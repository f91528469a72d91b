// SPDX-License-Identifier: BSD-3-Clause
// Tests of the ordering rule from C, where calls of several streams can be
// interleaved at will: `array_layer CASE` runs one and exits with 0, or 1
// after telling the failed check. Built and run by tests/test_ordering.py.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "array/order.h"
#include "cuda/memory.h"
#include "check.h"

static wm_error_t err;

// A stream that is stuck until *word is set: how work is kept pending.
typedef struct {
    CUstream stream;
    uint32_t *word;
} stuck_t;

static stuck_t
stuck(void)
{
    stuck_t made;
    wm_scope_t scope;
    void *ptr;
    CHECK(wm_pinned_alloc(64, &ptr, &err) == 0);
    made.word = ptr;
    *made.word = 0;
    CHECK(wm_stream_create(0, &made.stream, &err) == 0);
    CHECK(wm_device_enter(0, &scope, &err) == 0);
    CHECK(WM_CU(&err, StreamWaitValue32, made.stream, (CUdeviceptr)ptr, 1,
                CU_STREAM_WAIT_VALUE_GEQ)
          == 0);
    wm_device_leave(&scope);
    return made;
}

static void
set_free(const stuck_t *stuck)
{
    __atomic_store_n(stuck->word, 1, __ATOMIC_SEQ_CST);
}

static CUstream
stream_new(void)
{
    CUstream stream;
    CHECK(wm_stream_create(0, &stream, &err) == 0);
    return stream;
}

// Whether the stream stays busy for long enough to have run, were it free to.
static bool
stays_busy(CUstream stream)
{
    bool idle = false;
    for (int i = 0; i < 30 && !idle; i++) {
        CHECK(wm_stream_idle(0, stream, &idle, &err) == 0);
        usleep(1000);
    }
    return !idle;
}

static int
writes_that_overlap_are_both_waited_for(void)
{
    wm_order_t *order = wm_order_new();
    stuck_t a = stuck(), b = stuck();
    CUstream reader = stream_new();
    CHECK(wm_order_before(order, true, 0, a.stream, 0, &err) == 0);
    CHECK(wm_order_before(order, true, 0, b.stream, 0, &err) == 0);
    CHECK(wm_order_after_write(order, 0, a.stream, &err) == 0);
    CHECK(wm_order_after_write(order, 0, b.stream, &err) == 0);
    CHECK(wm_order_before(order, false, 0, reader, 0, &err) == 0);
    set_free(&b);
    CHECK(stays_busy(reader));
    set_free(&a);
    CHECK(wm_stream_synchronize(0, reader, &err) == 0);
    wm_order_free(order);
    return 0;
}

static int
a_read_that_overlaps_a_write_is_not_forgotten(void)
{
    wm_order_t *order = wm_order_new();
    stuck_t read = stuck(), write = stuck();
    CUstream next = stream_new();
    CHECK(wm_order_before(order, true, 0, write.stream, 0, &err) == 0);
    CHECK(wm_order_before(order, false, 0, read.stream, 0, &err) == 0);
    CHECK(wm_order_after_read(order, 0, read.stream, &err) == 0);
    CHECK(wm_order_after_write(order, 0, write.stream, &err) == 0);
    CHECK(wm_order_before(order, true, 0, next, 0, &err) == 0);
    set_free(&write);
    CHECK(stays_busy(next));
    set_free(&read);
    CHECK(wm_stream_synchronize(0, next, &err) == 0);
    wm_order_free(order);
    return 0;
}

static int
a_reader_waits_for_writes_and_a_writer_for_reads_too(void)
{
    wm_order_t *order = wm_order_new();
    stuck_t read = stuck();
    CUstream reader = stream_new(), writer = stream_new();
    bool idle;
    CHECK(wm_order_idle(order, true, &idle, &err) == 0 && idle);
    CHECK(wm_order_after_read(order, 0, read.stream, &err) == 0);
    CHECK(wm_order_idle(order, false, &idle, &err) == 0 && idle);
    CHECK(wm_order_idle(order, true, &idle, &err) == 0 && !idle);
    CHECK(wm_order_before(order, false, 0, reader, 0, &err) == 0);
    CHECK(wm_stream_idle(0, reader, &idle, &err) == 0 && idle);
    CHECK(wm_order_wait(order, false, &err) == 0);
    CHECK(wm_order_before(order, true, 0, writer, 0, &err) == 0);
    CHECK(stays_busy(writer));
    set_free(&read);
    CHECK(wm_order_wait(order, true, &err) == 0);
    CHECK(wm_stream_synchronize(0, writer, &err) == 0);
    CHECK(wm_order_idle(order, true, &idle, &err) == 0 && idle);
    wm_order_free(order);
    return 0;
}

static int
pending_work_is_taken_out_with_its_devices(void)
{
    enum { READERS = 5, ROOM = 3 };
    wm_order_t *order = wm_order_new();
    stuck_t write = stuck(), readers[READERS];
    CUevent events[ROOM];
    int devices[ROOM] = {-1, -1, -1};
    bool idle;
    CHECK(wm_order_after_write(order, 0, write.stream, &err) == 0);
    for (int i = 0; i < READERS; i++) {
        readers[i] = stuck();
        CHECK(wm_order_after_read(order, 0, readers[i].stream, &err) == 0);
    }
    // Those there is no room for are waited for here.
    for (int i = 0; i < READERS; i++)
        set_free(&readers[i]);
    CHECK(wm_order_detach(order, ROOM, events, devices) == ROOM);
    CHECK(wm_order_detach(order, ROOM, events, devices) == 0);
    CHECK(wm_order_idle(order, true, &idle, &err) == 0 && idle);
    CHECK(wm_event_done(0, events[0], &idle, &err) == 0 && !idle);
    set_free(&write);
    for (int i = 0; i < ROOM; i++) {
        CHECK(devices[i] == 0);
        CHECK(wm_event_synchronize(0, events[i], &err) == 0);
        wm_event_release(0, events[i]);
    }
    wm_order_free(order);
    return 0;
}

static atomic_bool waited;

static void *
wait_for(void *order)
{
    wm_error_t failure;
    bool idle;
    if (wm_order_wait(order, true, &failure) < 0
        || wm_order_idle(order, true, &idle, &failure) < 0 || !idle)
        abort();
    atomic_store(&waited, true);
    return NULL;
}

// The host waits for a mark that another stream's write replaces meanwhile:
// the event must not go to anybody else before that wait has ended.
static int
a_waiting_host_keeps_nobody_out_and_its_event(void)
{
    enum { MANY = 50 };
    wm_order_t *order = wm_order_new();
    // Made beforehand: while a stream is stuck, making many may wait for it.
    CUstream other = stream_new();
    stuck_t first = stuck(), second = stuck();
    CUevent events[MANY];
    pthread_t threads[2];
    CHECK(wm_order_after_write(order, 0, first.stream, &err) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, wait_for, order) == 0);
    usleep(20000);
    CHECK(wm_order_before(order, true, 0, second.stream, 0, &err) == 0);
    CHECK(wm_order_after_write(order, 0, second.stream, &err) == 0);
    for (int i = 0; i < MANY; i++) {
        CHECK(wm_event_acquire(0, &events[i], &err) == 0);
        CHECK(wm_event_record(0, events[i], other, &err) == 0);
    }
    CHECK(!atomic_load(&waited));
    set_free(&first);
    usleep(20000);
    CHECK(!atomic_load(&waited));
    set_free(&second);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    CHECK(atomic_load(&waited));
    wm_order_free(order);
    return 0;
}

static int
a_named_stream_is_waited_for_on_the_host(void)
{
    stuck_t work = stuck();
    bool idle;
    wm_producer_t producer = {
        .kind = WM_PRODUCER_STREAM, .device = 0, .stream = work.stream};
    CHECK(wm_producer_idle(&producer, false, &idle, &err) == 0 && !idle);
    set_free(&work);
    CHECK(wm_producer_wait(&producer, false, &err) == 0);
    CHECK(wm_producer_idle(&producer, true, &idle, &err) == 0 && idle);
    producer.kind = WM_PRODUCER_DEVICE;
    CHECK(wm_producer_idle(&producer, false, &idle, &err) == 0 && !idle);
    producer.kind = WM_PRODUCER_NONE;
    CHECK(wm_producer_idle(&producer, false, &idle, &err) == 0 && idle);
    return 0;
}

static const struct {
    const char *name;
    int (*run)(void);
} cases[] = {
    CASE(writes_that_overlap_are_both_waited_for),
    CASE(a_read_that_overlaps_a_write_is_not_forgotten),
    CASE(a_reader_waits_for_writes_and_a_writer_for_reads_too),
    CASE(pending_work_is_taken_out_with_its_devices),
    CASE(a_waiting_host_keeps_nobody_out_and_its_event),
    CASE(a_named_stream_is_waited_for_on_the_host),
};

int
main(int argc, char **argv)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (argc == 2 && strcmp(argv[1], cases[i].name) == 0) {
            CHECK(wm_driver_load(&err) == 0);
            return cases[i].run();
        }
    }
    return 2;
}

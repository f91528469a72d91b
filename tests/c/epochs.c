// SPDX-License-Identifier: BSD-3-Clause
// Copies into a neighbour's memory, on the streams of two ranks, in epochs of
// neighbours: `epochs CASE` runs one case. Both ranks are acted out in one
// process, on one device; or are two processes, with a device each if there
// are two. Nothing but their words orders their streams.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/transfer/epochs.h"
#include "cuda/memory.h"
#include "cuda/stream.h"
#include "check.h"

#define ROUNDS 6
#define EDGE 5 // elements
#define GHOSTS_LOW 0
#define EDGE_LOW (1 * EDGE)
#define EDGE_HIGH (2 * EDGE)
#define GHOSTS_HIGH (3 * EDGE)
#define FIELD (4 * EDGE)

static wm_error_t err;
static wm_peer_t peers[2];
static int self; // the rank that is acted out

typedef struct {
    int device;
    CUstream stream;
    wm_block_t *block;
    float *field, *its;                  // on the device of each rank
    float (*sent)[FIELD], (*got)[FIELD]; // page-locked, by round
    wm_epochs_t *epochs;
} rank_t;

static rank_t ranks[2];

// What epochs.c needs of the rest.
wm_peer_t *
wm_node_self(void)
{
    return &peers[self];
}

int
wm_node_register(wm_peer_t *peer, bool staging, int device, wm_error_t *why)
{
    (void)peer, (void)staging, (void)device, (void)why;
    return 0; // it is page-locked
}

static void *
pinned(size_t nbytes)
{
    void *memory;
    CHECK(wm_pinned_alloc(nbytes, &memory, &err) == 0);
    memset(memory, 0, nbytes);
    return memory;
}

static float
value_of(int number, int round, int i)
{
    return (float)(1000 * number + 100 * round + i);
}

static void
rank_open(int number)
{
    rank_t *rank = &ranks[number];
    self = number;
    CHECK(wm_stream_create(rank->device, &rank->stream, &err) == 0);
    CHECK(
        wm_block_alloc(rank->device, FIELD * sizeof(float), &rank->block, &err)
        == 0);
    rank->field = wm_block_pointer(rank->block);
    rank->sent = pinned(ROUNDS * sizeof *rank->sent);
    rank->got = pinned(ROUNDS * sizeof *rank->got);
    for (int round = 0; round < ROUNDS; ++round)
        for (int i = 0; i < FIELD; ++i)
            rank->sent[round][i] = value_of(number, round, i);
}

// Both of a rank's neighbours are the other rank, as in a ring of two.
static void
rank_connect(int number, int its_index, void *its_field)
{
    rank_t *rank = &ranks[number];
    self = number;
    rank->its = its_field;
    CHECK(wm_epochs_connect(rank->epochs, 0, its_index, rank->device, &err)
          == 0);
    CHECK(wm_epochs_connect(rank->epochs, 0, -1, rank->device, &err)
          == WM_ERR_STATE);
}

static void
rank_begin(int number)
{
    wm_peer_t *other = &peers[1 - number];
    self = number;
    CHECK(wm_epochs_new(&other, 1, &ranks[number].epochs, &err) == 0);
}

static void
open_both(void)
{
    CHECK(wm_driver_load(&err) == 0);
    for (int i = 0; i < 2; ++i) {
        rank_open(i);
        peers[i].segment = pinned(sizeof(wm_segment_t));
    }
    for (int i = 0; i < 2; ++i)
        rank_begin(i);
    for (int i = 0; i < 2; ++i)
        rank_connect(i, ranks[1 - i].epochs->neighbors[0].index,
                     ranks[1 - i].field);
}

static void
copy(int number, void *into, const void *from, int elements)
{
    const rank_t *rank = &ranks[number];
    CHECK(wm_memory_copy(rank->device, into, from,
                         (size_t)elements * sizeof(float), rank->stream, &err)
          == 0);
}

static void
exchange(int number)
{
    const rank_t *rank = &ranks[number];
    self = number;
    CHECK(wm_epochs_enqueue(rank->epochs, WM_EPOCHS_POST | WM_EPOCHS_START,
                            rank->device, rank->stream, &err)
          == 0);
    copy(number, rank->its + GHOSTS_HIGH, rank->field + EDGE_LOW, EDGE);
    copy(number, rank->its + GHOSTS_LOW, rank->field + EDGE_HIGH, EDGE);
    CHECK(wm_epochs_enqueue(rank->epochs, WM_EPOCHS_COMPLETE | WM_EPOCHS_WAIT,
                            rank->device, rank->stream, &err)
          == 0);
}

static void
check(int number)
{
    for (int round = 0; round < ROUNDS; ++round)
        for (int i = 0; i < EDGE; ++i) {
            const float *got = ranks[number].got[round];
            CHECK(got[GHOSTS_HIGH + i]
                  == value_of(1 - number, round, EDGE_LOW + i));
            CHECK(got[GHOSTS_LOW + i]
                  == value_of(1 - number, round, EDGE_HIGH + i));
            CHECK(got[EDGE_LOW + i] == value_of(number, round, EDGE_LOW + i));
        }
}

static void
run_rounds(int number)
{
    for (int round = 0; round < ROUNDS; ++round) {
        copy(number, ranks[number].field, ranks[number].sent[round], FIELD);
        exchange(number);
        copy(number, ranks[number].got[round], ranks[number].field, FIELD);
    }
}

static void
synchronize_both(void)
{
    for (int i = 0; i < 2; ++i)
        CHECK(wm_stream_synchronize(ranks[i].device, ranks[i].stream, &err)
              == 0);
}

// One rank gives its stream all rounds before the other gives the first.
static void
rounds_on_a_stream(void)
{
    run_rounds(0);
    run_rounds(1);
    synchronize_both();
    check(0);
    check(1);
}

// What two processes tell each other.
typedef struct {
    _Atomic int met;
    struct {
        int index;
        CUipcMemHandle handle;
        size_t offset;
    } of[2];
} meeting_t;

static void *
shared(size_t nbytes)
{
    int fd = memfd_create("epochs", 0);
    void *memory = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, (off_t)nbytes) == 0)
        memory = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

static void
meet(meeting_t *meeting, int all)
{
    ++meeting->met;
    while (meeting->met < all)
        sched_yield();
}

static void
run_process(int number, meeting_t *meeting)
{
    rank_t *rank = &ranks[number];
    wm_pointer_t memory;
    void *its;
    alarm(50); // for one whose other has failed
    CHECK(wm_driver_load(&err) == 0);
    rank->device = number % wm_device_count();
    rank_open(number);
    for (int i = 0; i < 2; ++i)
        CHECK(wm_host_register(rank->device, peers[i].segment,
                               WM_CONTROL_BYTES, &err)
              == 0);
    rank_begin(number);
    wm_block_describe(rank->block, &memory);
    meeting->of[number].index = rank->epochs->neighbors[0].index;
    meeting->of[number].offset = (uintptr_t)rank->field - memory.base;
    CHECK(wm_memory_export(rank->device, memory.base,
                           &meeting->of[number].handle, &err)
          == 0);
    meet(meeting, 2);
    CHECK(wm_memory_map(rank->device, &meeting->of[1 - number].handle, &its,
                        &err)
          == 0);
    rank_connect(number, meeting->of[1 - number].index,
                 (char *)its + meeting->of[1 - number].offset);
    run_rounds(number);
    CHECK(wm_stream_synchronize(rank->device, rank->stream, &err) == 0);
    check(number);
    meet(meeting, 4);
    wm_memory_unmap(rank->device, its);
    meet(meeting, 6);
}

static void
rounds_of_two_processes(void)
{
    int status;
    meeting_t *meeting = shared(sizeof *meeting);
    for (int i = 0; i < 2; ++i)
        peers[i].segment = shared(WM_CONTROL_BYTES);
    pid_t child = fork();
    run_process(child == 0, meeting);
    if (child == 0)
        _exit(0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

// A graph makes the calls of an exchange with the same values in each replay,
// in turn with exchanges on the stream and on the host.
static void
replays(void)
{
    const char *name = getenv("WARPMPI_CUDA_DRIVER");
    void *driver = dlopen(name != NULL ? name : "libcuda.so.1", RTLD_NOW);
    CUgraphExec execs[2];
    wm_scope_t scope;
#define FIND(name, symbol)                                                    \
    __typeof__(&cu##name) name = (__typeof__(name))dlsym(driver, symbol)
    FIND(StreamBeginCapture, "cuStreamBeginCapture_v2");
    FIND(StreamEndCapture, "cuStreamEndCapture");
    FIND(GraphInstantiateWithFlags, "cuGraphInstantiateWithFlags");
    FIND(GraphLaunch, "cuGraphLaunch");
    for (int i = 0; i < 2; ++i) {
        CUgraph graph;
        CUstream stream = ranks[i].stream;
        CHECK(wm_device_enter(ranks[i].device, &scope, &err) == 0);
        CHECK(StreamBeginCapture(stream, 0) == 0);
        exchange(i);
        CHECK(StreamEndCapture(stream, &graph) == 0);
        CHECK(GraphInstantiateWithFlags(&execs[i], graph, 0) == 0);
        wm_device_leave(&scope);
    }
    for (int i = 0; i < 2; ++i) {
        CHECK(wm_device_enter(ranks[i].device, &scope, &err) == 0);
        for (int round = 0; round < ROUNDS; ++round) {
            copy(i, ranks[i].field, ranks[i].sent[round], FIELD);
            if (round == ROUNDS / 2)
                exchange(i);
            else
                CHECK(GraphLaunch(execs[i], ranks[i].stream) == 0);
            copy(i, ranks[i].got[round], ranks[i].field, FIELD);
        }
        wm_device_leave(&scope);
    }
    synchronize_both();
    check(0);
    check(1);
}

// The host makes the calls, in the order of MPI's, of one neighbour that
// accesses and one that is accessed.
static void
on_the_host(void)
{
    wm_epochs_t *target = ranks[0].epochs, *origin = ranks[1].epochs;
    target->neighbors[0].is_accessed = false;
    origin->neighbors[0].accesses_us = false;
    for (int turn = 0; turn < 3; ++turn) {
        CHECK(!wm_epochs_try(origin, WM_EPOCHS_START));
        CHECK(wm_epochs_try(origin, WM_EPOCHS_POST | WM_EPOCHS_WAIT));
        CHECK(wm_epochs_try(target, WM_EPOCHS_POST | WM_EPOCHS_START));
        CHECK(wm_epochs_try(origin, WM_EPOCHS_START));
        CHECK(!wm_epochs_try(target, WM_EPOCHS_WAIT));
        CHECK(wm_epochs_try(origin, WM_EPOCHS_COMPLETE));
        CHECK(wm_epochs_try(target, WM_EPOCHS_COMPLETE | WM_EPOCHS_WAIT));
    }
}

// A stream does not wait for a dead neighbour.
static void
a_dead_neighbor(void)
{
    bool revoked = false, idle = false;
    const rank_t *rank = &ranks[0];
    CHECK(wm_epochs_any_on_streams());
    for (int turn = 0; turn < 2; ++turn) {
        exchange(0);
        CHECK(!wm_epochs_release());
        peers[1].dead = turn == 0; // then the communicator is revoked
        rank->epochs->revoked = &revoked;
        revoked = turn == 1;
        CHECK(wm_epochs_release());
        for (idle = false; !idle; (void)wm_epochs_release())
            CHECK(wm_stream_idle(rank->device, rank->stream, &idle, &err)
                  == 0);
        CHECK(!wm_epochs_release()); // the words stay set
        peers[1].dead = revoked = false;
        CHECK(wm_epochs_try(rank->epochs, WM_EPOCHS_START | WM_EPOCHS_WAIT));
    }
}

static void
words_run_out(void)
{
    wm_peer_t *many[WM_EPOCH_WORDS];
    wm_epochs_t *all, *more;
    self = 0;
    for (int i = 0; i < WM_EPOCH_WORDS; ++i)
        many[i] = &peers[1];
    wm_epochs_free(ranks[0].epochs);
    wm_epochs_free(ranks[1].epochs); // of one process here
    CHECK(!wm_epochs_any_on_streams());
    CHECK(wm_epochs_new(many, WM_EPOCH_WORDS, &all, &err) == 0);
    CHECK(wm_epochs_new(many, 1, &more, &err) == WM_ERR_MEMORY);
    wm_epochs_free(all);
    CHECK(wm_epochs_new(many, 1, &more, &err) == 0);
    // Hundreds of operations go in several batches.
    CHECK(wm_epochs_new(many, 300, &all, &err) == 0);
    self = 1;
    for (int i = 0; i < 300; ++i) {
        all->neighbors[i].its = all->neighbors[i].own;
        all->neighbors[i].peer = &peers[0];
    }
    CHECK(wm_epochs_enqueue(all, 15, 0, ranks[0].stream, &err) == 0);
    CHECK(wm_stream_synchronize(0, ranks[0].stream, &err) == 0);
    for (int i = 0; i < 300; ++i)
        CHECK(!wm_word_reached(&all->neighbors[i].own->completion, 1));
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    CASE(rounds_on_a_stream),
    CASE(rounds_of_two_processes),
    CASE(replays),
    CASE(on_the_host),
    CASE(a_dead_neighbor),
    CASE(words_run_out),
};

int
main(int argc, char **argv)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i)
        if (argc == 2 && strcmp(argv[1], cases[i].name) == 0) {
            if (cases[i].run != rounds_of_two_processes)
                open_both();
            cases[i].run();
            return 0;
        }
    return 2;
}

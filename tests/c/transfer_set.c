// SPDX-License-Identifier: BSD-3-Clause
// Kept sets of transfers, without a collective, between two ranks that are
// acted out in host memory.
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "array/copy.h"
#include "array/pull.h"
#include "comm/transfer/fuse.h"
#include "comm/transfer/transfer_set.h"

#define SIDE 6 // of a rank's field, with a ghost on each side
#define WINDOW 4096
#define COPIES (WM_PULLS + 10)

struct wm_mapping {
    bool closed;
    int users, holders;
};

static wm_peer_t peer;
static struct wm_mapping mapping;
static float field[SIDE][SIDE], other[SIDE][SIDE];
static char window[WINDOW], origin[WINDOW];
static int pulls, copies, kernels, fused; // launches
static uint32_t word;
static bool ended; // the stream has

// What transfer_*.c need of the rest.
int
wm_mapping_reach(wm_peer_t *of, const wm_rkey_t *place, int device,
                 wm_mapping_t **found, char **at, wm_error_t *err)
{
    (void)device, (void)err;
    assert(of == &peer);
    ++mapping.users;
    *found = &mapping;
    *at = (char *)(uintptr_t)place->address;
    return 0;
}

void
wm_mapping_release(wm_mapping_t *found)
{
    --found->users;
}

void
wm_mapping_rest(wm_mapping_t *found)
{
    --found->users;
    ++found->holders;
}

bool
wm_mapping_is_there(const wm_mapping_t *found)
{
    return !found->closed;
}

void
wm_mapping_resume(wm_mapping_t *found)
{
    ++found->users;
    --found->holders;
}

void
wm_mapping_forget(wm_mapping_t *found)
{
    --found->holders;
}

bool
wm_rkey_holds(const wm_rkey_t *place, uint64_t nbytes)
{
    uint64_t offset = place->address - place->base;
    return offset <= place->size && nbytes <= place->size - offset;
}

int
wm_access_open(wm_access_t *access, wm_error_t *err)
{
    (void)err;
    access->opened = true;
    return 0;
}

int
wm_access_look(wm_access_t *access, int tries, wm_error_t *err)
{
    (void)access, (void)tries, (void)err;
    return ended;
}

bool
wm_signal_acquire(wm_signal_t *signal)
{
    signal->word = &word;
    return true;
}

void
wm_signal_renew(wm_signal_t *signal)
{
    ++signal->value;
}

bool
wm_signal_is_set(const wm_signal_t *signal)
{
    return *signal->word == signal->value;
}

int
wm_memory_copy(int device, void *dst, const void *src, size_t nbytes,
               CUstream stream, wm_error_t *err)
{
    (void)device, (void)stream, (void)err;
    memcpy(dst, src, nbytes);
    ++copies;
    return 0;
}

int
wm_copy_layout(const wm_layout_t *layout, int device, CUstream stream,
               wm_error_t *err)
{
    (void)device, (void)stream, (void)err;
    wm_layout_copy_host(layout);
    ++copies;
    return 0;
}

bool
wm_pull_serves(const wm_pull_t *pull)
{
    return pull->nbytes <= 64;
}

int
wm_pull_launch(int device, wm_pull_params_t *params, CUstream stream,
               wm_error_t *err)
{
    (void)device, (void)stream, (void)err;
    assert(params->count > 0 && params->count <= WM_PULLS);
    for (uint32_t i = 0; i < params->count; ++i)
        memcpy(params->pulls[i].dst, params->pulls[i].src,
               params->pulls[i].nbytes);
    if (params->signal.word != NULL)
        *params->signal.word = params->signal.value;
    ++pulls;
    return 0;
}

size_t
wm_reduce_size(wm_reduce_type_t type)
{
    return type == WM_REDUCE_UINT8 ? 1 : sizeof(float);
}

static float
combine(const wm_reduction_t *given, size_t i)
{
    float product = 1;
    assert(given->op == WM_REDUCE_PROD);
    for (int k = 0; k < given->n; ++k)
        product *= ((const float *)given->src[k])[i];
    return product;
}

static void
reduce(const wm_reduction_t *given)
{
    for (size_t i = 0; i < given->count; ++i)
        for (int target = 0; target < given->targets; ++target)
            if (given->n > 1)
                ((float *)given->dst[target])[i] = combine(given, i);
            else
                ((char *)given->dst[target])[i] =
                    ((const char *)given->src[0])[i];
    if (given->signal.word != NULL)
        *given->signal.word = given->signal.value;
}

int
wm_reduce_enqueue(int device, const wm_reduction_t *given, CUstream stream,
                  wm_error_t *err)
{
    (void)device, (void)stream, (void)err;
    reduce(given);
    ++kernels;
    return 0;
}

bool
wm_fuse_add(wm_transfer_set_t *set, const wm_reduction_t *given)
{
    assert(set->shares && given->signal.word == NULL);
    reduce(given);
    set->awaited = (wm_signal_t){.word = &word, .value = word + 1};
    ++fused;
    return true;
}

bool
wm_pattern_cut(const wm_pattern_t *pattern, size_t at, size_t nbytes,
               wm_strided_t *part)
{
    return wm_strided_cut(&pattern->parts[0], at, nbytes, part);
}

int
wm_pattern_copy_part(const wm_pattern_t *pattern, size_t at, char *packed,
                     size_t nbytes, bool packs, int device, CUstream stream,
                     wm_error_t *err)
{
    return wm_strided_copy_part(&pattern->parts[0], at, packed, nbytes, packs,
                                device, stream, err);
}

static wm_rkey_t
place_of(void *memory, size_t nbytes)
{
    return (wm_rkey_t){
        .address = (uintptr_t)memory,
        .base = (uintptr_t)memory,
        .size = nbytes,
    };
}

// Returns a column of a field, as its own rank knows it.
static wm_pattern_t *
column(float (*of)[SIDE], int number)
{
    wm_pattern_t *pattern = calloc(1,
                                   sizeof *pattern + sizeof pattern->parts[0]);
    assert(pattern != NULL);
    pattern->count = 1;
    wm_strided_init(&pattern->parts[0], (char *)&of[0][number], sizeof(float));
    assert(wm_strided_repeat(&pattern->parts[0], SIDE, sizeof of[0]));
    return pattern;
}

static wm_access_t access_;
static wm_signal_t signal_;

static wm_transfer_set_t
make(wm_transfer_region_t *regions, int region_count,
     const wm_transfer_t *transfers, int count)
{
    wm_transfer_set_t set;
    wm_transfer_set_init(&set);
    set.regions = regions;
    set.region_count = region_count;
    set.transfers = transfers;
    set.count = count;
    set.type = WM_REDUCE_FLOAT32;
    set.op = WM_REDUCE_PROD;
    set.access = &access_;
    set.signal = &signal_;
    pulls = copies = kernels = fused = 0;
    return set;
}

// Runs a phase. Returns true if a kernel told its end.
static bool
run(wm_transfer_set_t *set, int phase)
{
    wm_error_t err;
    bool begun = false;
    assert(wm_transfer_set_enqueue(set, phase, false, &begun, &err) == 0);
    assert(begun);
    bool tells = set->signals;
    ended = !tells;
    assert(wm_transfer_set_look(set, 1, &err) == 1 && !set->signals);
    return tells;
}

// An edge, a column, goes into the other's ghosts, and the other's edge into
// ours: out of strides into strides, without a copy between. Then the other
// gets its row through memory without gaps.
static void
test_gaps(void)
{
    wm_pattern_t *edge = column(field, 1), *ghost = column(field, 0);
    wm_pattern_t *its[] = {column(other, SIDE - 1), column(other, SIDE - 2)};
    wm_strided_desc_t gaps[2];
    wm_rkey_t place = place_of(other, sizeof other);
    for (int i = 0; i < 2; ++i)
        assert(wm_strided_desc_describe(&its[i]->parts[0], (char *)other,
                                        &gaps[i]));
    wm_transfer_region_t regions[] = {
        {.memory = (char *)&field[0][1], .pattern = edge},
        {.memory = (char *)&field[0][0], .pattern = ghost},
        {.peer = &peer, .place = &place, .gaps = &gaps[0]},
        {.peer = &peer, .place = &place, .gaps = &gaps[1]},
        {.memory = (char *)field},
    };
    const wm_transfer_t transfers[] = {
        {.sources = {0, 1}, .targets = {2, 1}, .nbytes = SIDE * sizeof(float)},
        {.sources = {3, 1}, .targets = {1, 1}, .nbytes = SIDE * sizeof(float)},
        {.phase = 1,
         .sources = {4, 1},
         .targets = {3, 1},
         .from = 2 * sizeof field[0],
         .nbytes = sizeof field[0]},
    };
    wm_transfer_set_t set = make(regions, 5, transfers, 3);
    wm_error_t err;
    assert(wm_transfer_set_find_damaged(&set) == -1);
    assert(wm_transfer_set_map(&set, &err) == 0);
    assert(mapping.users == 2);
    assert(wm_transfer_set_can_copy(&set));
    for (int turn = 0; turn < 3; ++turn) {
        for (int i = 0; i < SIDE * SIDE; ++i) {
            ((float *)field)[i] = (float)(turn * 100 + i);
            ((float *)other)[i] = (float)(turn * 1000 + i);
        }
        float row[SIDE];
        memcpy(row, field[2], sizeof row);
        assert(!run(&set, 0));
        for (int i = 0; i < SIDE; ++i) {
            assert(other[i][SIDE - 1] == field[i][1]);
            assert(field[i][0] == other[i][SIDE - 2]);
            assert(other[i][1] == (float)(turn * 1000 + SIDE * i + 1));
        }
        row[0] = field[2][0];
        assert(!run(&set, 1));
        for (int i = 0; i < SIDE; ++i)
            assert(other[i][SIDE - 2] == row[i]);
        wm_transfer_set_rest(&set);
        assert(mapping.users == 0 && mapping.holders == 2);
        assert(wm_transfer_set_resume(&set));
        assert(mapping.users == 2 && mapping.holders == 0);
    }
    wm_transfer_set_rest(&set);
    mapping.closed = true;
    assert(!wm_transfer_set_resume(&set));
    wm_transfer_set_drop(&set);
    assert(mapping.users == 0 && mapping.holders == 0);
    mapping.closed = false;
    gaps[1].shape[0] = SIDE + 1; // one row too far
    assert(wm_transfer_set_find_damaged(&set) == 3);
    free(edge), free(ghost), free(its[0]), free(its[1]);
}

// Short copies share kernels, however many there are. A reduction of both
// regions goes into one of them.
static void
test_copies_and_a_reduction(void)
{
    wm_rkey_t place = place_of(window, sizeof window);
    wm_transfer_region_t regions[] = {
        {.peer = &peer, .place = &place},
        {.memory = origin},
    };
    wm_transfer_t moves[COPIES];
    for (int i = 0; i < WINDOW; ++i)
        origin[i] = (char)(i * 7);
    for (int i = 0; i < COPIES; ++i)
        moves[i] = (wm_transfer_t){
            .sources = {1, 1},
            .targets = {0, 1},
            .from = (size_t)i * 8,
            .into = (size_t)(COPIES - 1 - i) * 8,
            .nbytes = 8,
        };
    wm_error_t err;
    wm_transfer_set_t set = make(regions, 2, moves, COPIES);
    assert(wm_transfer_set_find_damaged(&set) == -1);
    assert(wm_transfer_set_map(&set, &err) == 0);
    assert(!run(&set, 0) && pulls == 2 && copies == 0);
    for (int i = 0; i < COPIES; ++i)
        assert(memcmp(window + (COPIES - 1 - i) * 8, origin + i * 8, 8) == 0);
    set.count = WM_PULLS;
    pulls = 0;
    assert(run(&set, 0) && pulls == 1); // one kernel tells its end
    set.count = 1;
    assert(!run(&set, 0) && copies == 1); // a single one: a copy engine
    moves[0].into = WINDOW - 7;
    assert(wm_transfer_set_find_damaged(&set) == 0);
    const wm_transfer_t reduction = {
        .sources = {0, 2},
        .targets = {0, 1},
        .nbytes = 2 * sizeof(float),
    };
    const float one[] = {1, 2}, two[] = {10, 20};
    memcpy(window, one, sizeof one);
    memcpy(origin, two, sizeof two);
    set.transfers = &reduction;
    assert(wm_transfer_set_can_copy(&set));
    (void)run(&set, 0);
    assert(kernels == 1);
    assert(((float *)window)[0] == 10 && ((float *)window)[1] == 40);
    regions[1].pattern = column(field, 1); // a source of the reduction
    assert(!wm_transfer_set_can_copy(&set));
    free((void *)regions[1].pattern);
    wm_transfer_set_drop(&set);
    assert(mapping.users == 0);
}

// One source goes to all but its owner, who has the data.
static void
test_many_targets(void)
{
    static char own[64], first[64], second[64];
    static wm_peer_t third;
    wm_transfer_region_t regions[] = {
        {.peer = &third, .memory = first},
        {.peer = &peer, .memory = window},
        {.peer = &third, .memory = second},
        {.memory = own},
    };
    const wm_transfer_t transfer = {
        .sources = {0, 1},
        .targets = {1, 3},
        .nbytes = sizeof first,
    };
    wm_transfer_set_t set = make(regions, 4, &transfer, 1);
    memset(first, 5, sizeof first);
    memset(window, 0, sizeof window);
    (void)run(&set, 0);
    assert(kernels == 1 && second[0] == 0);
    assert(memcmp(own, first, sizeof own) == 0);
    assert(memcmp(window, first, sizeof first) == 0 && window[64] == 0);
    set.shares = true;
    // The stream is idle until the shared kernel is launched, which is later
    // than the first looks.
    wm_error_t err;
    ended = true;
    for (int turn = 1; turn <= 200; ++turn) {
        bool begun = false;
        access_.opened = false;
        assert(wm_transfer_set_enqueue(&set, 0, false, &begun, &err) == 0);
        assert(begun && fused == turn && !access_.opened);
        assert(wm_transfer_set_look(&set, 1, &err) == 0);
        word = set.awaited.value;
        assert(wm_transfer_set_look(&set, 1, &err) == 1);
    }
    // A launch that failed is told when the stream is idle.
    bool begun = false;
    assert(wm_transfer_set_enqueue(&set, 0, false, &begun, &err) == 0);
    set.failure.code = WM_ERR_CUDA;
    set.signals = false;
    assert(wm_transfer_set_look(&set, 1, &err) == WM_ERR_CUDA);
    assert(err.code == WM_ERR_CUDA && set.failure.code == 0);
}

int
main(void)
{
    test_gaps();
    test_copies_and_a_reduction();
    test_many_targets();
    return 0;
}

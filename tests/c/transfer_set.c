// SPDX-License-Identifier: BSD-3-Clause
// Kept sets of transfers, without a collective: a halo, and a window's list of
// puts, on two ranks that are acted out in host memory.
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "array/atomic.h"
#include "array/copy.h"
#include "array/kernels.h"
#include "array/pull.h"
#include "comm/transfer/fuse.h"
#include "comm/transfer/transfer_set.h"

#define SIDE 6 // of a rank's field, with a ghost on each side
#define WINDOW 4096
#define PUTS (WM_PULLS + 10)

struct wm_mapping {
    bool closed;
    int users, holders;
};

static wm_peer_t peer;
static struct wm_mapping mapping;
static float field[SIDE][SIDE], other[SIDE][SIDE];
static char window[WINDOW], origin[WINDOW];
static int pulls, copies, kernels, updates, fused; // launches
static int prepared; // bits: kernels that pull, reduce, update
static uint32_t word;
static bool ended;        // the stream has
static bool marked_ended; // the work before the mark has
static int marks;

// What transfer_*.c need of the rest.
int
wm_mapping_reach(wm_peer_t *of, const wm_rkey_t *place, int device,
                 wm_mapping_t **found, wm_error_t *err)
{
    (void)place, (void)device, (void)err;
    assert(of == &peer);
    ++mapping.users;
    *found = &mapping;
    return 0;
}

char *
wm_mapping_at(const wm_mapping_t *found, const wm_rkey_t *place)
{
    assert(found == &mapping);
    return (char *)(uintptr_t)place->address;
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
    (void)tries, (void)err;
    return access->end != NULL ? marked_ended : ended;
}

bool
wm_access_is_named(const wm_access_t *access)
{
    return access->user_device >= 0;
}

int
wm_access_mark_end(wm_access_t *access, wm_error_t *err)
{
    (void)err;
    access->end = (CUevent)&marks;
    ++marks;
    return 0;
}

void
wm_access_forget_end(wm_access_t *access)
{
    access->end = NULL;
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
wm_pull_prepare(int device, wm_error_t *err)
{
    (void)device, (void)err;
    prepared |= 1;
    return 0;
}

int
wm_kernels_prepare(int device, wm_kernel_family_t family, wm_error_t *err)
{
    (void)device, (void)family, (void)err;
    prepared |= 2;
    return 0;
}

int
wm_atomic_prepare(int device, wm_error_t *err)
{
    (void)device, (void)err;
    prepared |= 4;
    return 0;
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
    float sum = 0, product = 1;
    for (int k = 0; k < given->n; ++k) {
        sum += ((const float *)given->src[k])[i];
        product *= ((const float *)given->src[k])[i];
    }
    return given->op == WM_REDUCE_SUM ? sum : product;
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

int
wm_atomic_enqueue(int device, const wm_atomic_t *given, CUstream stream,
                  wm_error_t *err)
{
    (void)device, (void)stream, (void)err;
    assert(given->type == WM_REDUCE_FLOAT32);
    for (size_t i = 0; i < given->count; ++i) {
        if (given->fetched != NULL)
            ((float *)given->fetched)[i] = ((float *)given->dst)[i];
        ((float *)given->dst)[i] += ((const float *)given->src)[i];
    }
    ++updates;
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

static float old[2];
static const wm_transfer_op_t ops[] = {
    {.type = WM_REDUCE_FLOAT32, .op = WM_REDUCE_SUM},
    {.type = WM_REDUCE_FLOAT32, .op = WM_REDUCE_PROD},
    {.type = WM_REDUCE_FLOAT32,
     .op = WM_REDUCE_SUM,
     .atomic = true,
     .fetched = (char *)old},
};
static wm_access_t access_ = {.user_device = -1};
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
    set.ops = ops;
    set.access = &access_;
    set.signal = &signal_;
    pulls = copies = kernels = updates = fused = 0;
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
test_halo(void)
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

// Short puts share kernels, however many there are. An accumulate reduces
// window and origin into the window.
static void
test_puts(void)
{
    wm_rkey_t place = place_of(window, sizeof window);
    wm_transfer_region_t regions[] = {
        {.peer = &peer, .place = &place},
        {.memory = origin},
    };
    wm_transfer_t puts[PUTS];
    for (int i = 0; i < WINDOW; ++i)
        origin[i] = (char)(i * 7);
    for (int i = 0; i < PUTS; ++i)
        puts[i] = (wm_transfer_t){
            .sources = {1, 1},
            .targets = {0, 1},
            .from = (size_t)i * 8,
            .into = (size_t)(PUTS - 1 - i) * 8,
            .nbytes = 8,
        };
    wm_error_t err;
    wm_transfer_set_t set = make(regions, 2, puts, PUTS);
    assert(wm_transfer_set_find_damaged(&set) == -1);
    assert(wm_transfer_set_map(&set, &err) == 0);
    assert(!run(&set, 0) && pulls == 2 && copies == 0);
    for (int i = 0; i < PUTS; ++i)
        assert(memcmp(window + (PUTS - 1 - i) * 8, origin + i * 8, 8) == 0);
    set.count = WM_PULLS;
    pulls = 0;
    assert(run(&set, 0) && pulls == 1); // one kernel tells its end
    set.count = 1;
    assert(!run(&set, 0) && copies == 1); // a single one: a copy engine
    puts[0].into = WINDOW - 7;
    assert(wm_transfer_set_find_damaged(&set) == 0);
    const wm_transfer_t accumulate = {
        .sources = {0, 2},
        .targets = {0, 1},
        .nbytes = 2 * sizeof(float),
    };
    const float one[] = {1, 2}, two[] = {10, 20};
    memcpy(window, one, sizeof one);
    memcpy(origin, two, sizeof two);
    set.transfers = &accumulate;
    (void)run(&set, 0);
    assert(kernels == 1);
    assert(((float *)window)[0] == 11 && ((float *)window)[1] == 22);
    wm_transfer_set_drop(&set);
    assert(mapping.users == 0);
}

// A Put, a Get, two reductions and an atomic update are one phase, each with
// its own operation.
static void
test_operations(void)
{
    static float near[4][2] = {{2, 3}, {5, 7}, {0, 0}, {4, 5}};
    float *far = (float *)window;
    const float first[] = {1, 2, 10, 20, 100, 200, 6, 7};
    wm_rkey_t place = place_of(window, sizeof window);
    wm_transfer_region_t regions[] = {
        {.memory = (char *)near[0]},      {.memory = (char *)near[1]},
        {.memory = (char *)near[2]},      {.memory = (char *)near[3]},
        {.peer = &peer, .place = &place},
    };
    const size_t each = sizeof near[0];
    const wm_transfer_t transfers[] = {
        {.sources = {0, 2}, .targets = {4, 1}, .nbytes = each},
        {.op = 1,
         .sources = {0, 2},
         .targets = {4, 1},
         .into = each,
         .nbytes = each},
        {.op = 2,
         .sources = {3, 1},
         .targets = {4, 1},
         .into = 2 * each,
         .nbytes = each},
        {.sources = {4, 1},
         .targets = {2, 1},
         .from = 3 * each,
         .nbytes = each},
        {.sources = {3, 1},
         .targets = {4, 1},
         .into = 4 * each,
         .nbytes = each},
    };
    wm_transfer_set_t set = make(regions, 5, transfers, 5);
    wm_error_t err;
    memcpy(window, first, sizeof first);
    prepared = 0;
    set.count = 0;
    assert(wm_transfer_set_prepare(&set, &err) == 0 && prepared == 1);
    set.count = 5;
    assert(wm_transfer_set_prepare(&set, &err) == 0 && prepared == 7);
    wm_pattern_t *edge = column(field, 1);
    assert(wm_transfer_set_can_copy(&set));
    regions[1].pattern = edge; // a source of reductions
    assert(!wm_transfer_set_can_copy(&set));
    regions[1].pattern = NULL;
    free(edge);
    assert(wm_transfer_set_find_damaged(&set) == -1);
    assert(wm_transfer_set_map(&set, &err) == 0);
    assert(!run(&set, 0)); // an update tells no end
    assert(pulls == 1 && kernels == 2 && updates == 1);
    assert(far[0] == 7 && far[1] == 10 && far[2] == 10 && far[3] == 21);
    assert(far[4] == 104 && far[5] == 205 && old[0] == 100 && old[1] == 200);
    assert(near[2][0] == 6 && near[2][1] == 7 && far[8] == 4 && far[9] == 5);
    wm_transfer_set_drop(&set);
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

// On a stream of the program, which has more to do, a set ends by a mark of
// its own, unless its kernel signals, more comes, or it is in a capture.
static void
test_named_stream(void)
{
    static char first[64], second[64];
    wm_transfer_region_t regions[] = {{.memory = first}, {.memory = second}};
    const wm_transfer_t copy = {
        .sources = {0, 1},
        .targets = {1, 1},
        .nbytes = sizeof first,
    };
    wm_transfer_set_t set = make(regions, 2, &copy, 1);
    wm_error_t err;
    bool begun = false;
    access_.user_device = 0;
    ended = marked_ended = false;
    assert(wm_transfer_set_enqueue(&set, 0, false, &begun, &err) == 0);
    assert(marks == 1 && wm_transfer_set_look(&set, 1, &err) == 0);
    marked_ended = true; // and not the stream
    assert(wm_transfer_set_look(&set, 1, &err) == 1);
    assert(wm_transfer_set_enqueue(&set, 0, true, &begun, &err) == 0);
    assert(marks == 1 && access_.end == NULL);
    set.captured = true;
    assert(wm_transfer_set_enqueue(&set, 0, false, &begun, &err) == 0);
    assert(marks == 1 && !set.signals);
    assert(wm_transfer_set_look(&set, 1, &err) == WM_ERR_STATE);
    access_.user_device = -1;
}

int
main(void)
{
    test_halo();
    test_puts();
    test_operations();
    test_many_targets();
    test_named_stream();
    return 0;
}

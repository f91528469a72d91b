// SPDX-License-Identifier: BSD-3-Clause
#include "comm/node/gate.h"

#include <stdlib.h>

#include "comm/node/node.h"
#include "cuda/word.h"

// A queue: a peer that is slow may yet read what was said last in one that was
// given back.
static int given_back[WM_GATES];
static unsigned taken, given;

struct wm_gates {
    int rank, size;
    uint32_t steps; // before this meeting
    int come;       // ranks before this one have reached `step`
    int step;
    struct {
        wm_gate_t *gate;
        uint32_t base;    // what it had reached before the first meeting
        uint32_t streams; // likewise, of streams
    } of[];
};

wm_gate_place_t
wm_gate_acquire(void)
{
    wm_gate_place_t place = {.index = -1};
    int index = -1;
    for (; given < WM_GATES; ++given) // the first time
        given_back[given] = (int)given;
    if (given != taken)
        index = given_back[taken++ % WM_GATES];
    if (index >= 0) {
        place.index = index;
        place.reached = atomic_load(
            &wm_node_self()->segment->gates[index].reached);
    }
    return place;
}

void
wm_gate_release(int index)
{
    given_back[given++ % WM_GATES] = index;
}

wm_gates_t *
wm_gates_new(int rank, int size)
{
    wm_gates_t *gates = calloc(1, sizeof *gates
                                      + (size_t)size * sizeof gates->of[0]);
    if (gates != NULL) {
        gates->rank = rank;
        gates->size = size;
    }
    return gates;
}

void
wm_gates_set(wm_gates_t *gates, int rank, wm_gate_t *gate,
             const wm_gate_place_t *place)
{
    gates->of[rank].gate = gate;
    gates->of[rank].base = place->reached;
}

int
wm_gates_index(const wm_gates_t *gates)
{
    return (int)(gates->of[gates->rank].gate - wm_node_self()->segment->gates);
}

static size_t
turn(const wm_gates_t *gates)
{
    return gates->steps / WM_GATE_STEPS % 2;
}

void *
wm_gates_begin(wm_gates_t *gates)
{
    gates->steps += WM_GATE_STEPS;
    gates->come = gates->step = 0;
    return gates->of[gates->rank].gate->said[turn(gates)];
}

void
wm_gates_reach(wm_gates_t *gates, int step)
{
    atomic_store_explicit(&gates->of[gates->rank].gate->reached,
                          gates->of[gates->rank].base + gates->steps
                              + (uint32_t)step,
                          memory_order_release);
}

bool
wm_gates_have_reached(wm_gates_t *gates, int step)
{
    if (step != gates->step) {
        gates->step = step;
        gates->come = 0;
    }
    for (; gates->come < gates->size; ++gates->come) {
        uint32_t reached = atomic_load_explicit(
            &gates->of[gates->come].gate->reached, memory_order_acquire);
        uint32_t wanted = gates->of[gates->come].base + gates->steps
                          + (uint32_t)step;
        if ((int32_t)(reached - wanted) < 0)
            return false;
    }
    return true;
}

const void *
wm_gates_said(const wm_gates_t *gates, int rank)
{
    return gates->of[rank].gate->said[turn(gates)];
}

uint32_t
wm_gates_streams_now(const wm_gates_t *gates)
{
    return atomic_load(&gates->of[gates->rank].gate->streams);
}

void
wm_gates_set_streams(wm_gates_t *gates, int rank, uint32_t now)
{
    gates->of[rank].streams = now;
}

int
wm_gates_enqueue_reach(const wm_gates_t *gates, int device, CUstream stream,
                       uint32_t value, wm_error_t *err)
{
    return wm_word_write(device, stream, &gates->of[gates->rank].gate->streams,
                         gates->of[gates->rank].streams + value, err);
}

int
wm_gates_enqueue_await(const wm_gates_t *gates, int rank, int device,
                       CUstream stream, uint32_t value, wm_error_t *err)
{
    return wm_word_wait(device, stream, &gates->of[rank].gate->streams,
                        gates->of[rank].streams + value, err);
}

bool
wm_gates_streams_reached(const wm_gates_t *gates, int rank, uint32_t value)
{
    return wm_word_reached(&gates->of[rank].gate->streams,
                           gates->of[rank].streams + value);
}

void
wm_gates_tell(const wm_gates_t *gates, uint64_t told)
{
    atomic_store_explicit(&gates->of[gates->rank].gate->told, told,
                          memory_order_release);
}

uint64_t
wm_gates_told(const wm_gates_t *gates, int rank)
{
    return atomic_load_explicit(&gates->of[rank].gate->told,
                                memory_order_acquire);
}

// SPDX-License-Identifier: BSD-3-Clause
#include "kernels/lane.h"
#include "kernels/peer_sync.h"

#define LANE_LINES 4   // LL lines that a thread has under way
#define LANE_UNITS 8   // units of a copy likewise
#define LANE_LOOKS 256 // failed polls before a look at the stop word

// Results of an attempt.
enum { LANE_WAITS, LANE_GOES, LANE_STOPS };

struct alignas(16) lane_wide_t {
    uint64_t part[2];
};

// This thread's part of an operation. On the host one thread does all, and
// never waits in one operation, as another may have to come first.
struct lane_part_t {
    const wm_lane_op_t *op;
    const wm_lane_place_t *place;
    uint32_t number; // of the message
    uint32_t block;  // of the operation
    size_t thread, threads;
};

WM_DEVICE bool
lane_reached(const uint32_t *word, uint32_t value)
{
    return (int32_t)(wm_load_acquire(word) - value) >= 0;
}

WM_DEVICE char *
lane_slot(const lane_part_t &part)
{
    const wm_lane_place_t *place = part.place;
    return place->memory + part.number % place->slots * place->slot_bytes;
}

template <typename unit_t>
WM_DEVICE void
lane_copy_units(char *dst, const char *src, size_t nbytes, size_t thread,
                size_t threads)
{
    const size_t count = nbytes / sizeof(unit_t);
    for (size_t i = thread; i < count; i += LANE_UNITS * threads) {
        unit_t values[LANE_UNITS];
        WM_UNROLL
        for (size_t k = 0; k < LANE_UNITS; k++) {
            const size_t at = i + k * threads;
            values[k] = wm_load_far((const unit_t *)src
                                    + (at < count ? at : count - 1));
        }
        WM_UNROLL
        for (size_t k = 0; k < LANE_UNITS; k++)
            if (i + k * threads < count)
                ((unit_t *)dst)[i + k * threads] = values[k];
    }
    for (size_t i = count * sizeof(unit_t) + thread; i < nbytes; i += threads)
        dst[i] = (char)wm_load_far((const uint8_t *)src + i);
}

WM_DEVICE void
lane_copy(char *dst, const char *src, const lane_part_t &part)
{
    const uintptr_t both = (uintptr_t)dst | (uintptr_t)src;
    const size_t nbytes = part.place->nbytes;
    if (both % 16 == 0)
        lane_copy_units<lane_wide_t>(dst, src, nbytes, part.thread,
                                     part.threads);
    else if (both % 4 == 0)
        lane_copy_units<uint32_t>(dst, src, nbytes, part.thread, part.threads);
    else
        lane_copy_units<uint8_t>(dst, src, nbytes, part.thread, part.threads);
}

// Returns the bytes of a line; the last line may have fewer than eight.
WM_DEVICE uint64_t
lane_load(const char *src, size_t left)
{
    if (left >= WM_LINE_PAYLOAD && (uintptr_t)src % 8 == 0)
        return *(const uint64_t *)src;
    uint64_t value = 0;
    for (size_t i = 0; i < WM_LINE_PAYLOAD && i < left; i++)
        value |= (uint64_t) * (const uint8_t *)(src + i) << (8 * i);
    return value;
}

WM_DEVICE void
lane_store(char *dst, size_t left, uint64_t value)
{
    if (left >= WM_LINE_PAYLOAD && (uintptr_t)dst % 8 == 0) {
        *(uint64_t *)dst = value;
        return;
    }
    for (size_t i = 0; i < WM_LINE_PAYLOAD && i < left; i++)
        dst[i] = (char)(value >> (8 * i));
}

WM_DEVICE size_t
lane_lines(const lane_part_t &part)
{
    return ((size_t)part.place->nbytes + WM_LINE_PAYLOAD - 1)
           / WM_LINE_PAYLOAD;
}

WM_DEVICE void
lane_write_lines(const lane_part_t &part)
{
    const size_t nbytes = part.place->nbytes, lines = lane_lines(part);
    char *slot = lane_slot(part);
    for (size_t i = part.thread; i < lines; i += LANE_LINES * part.threads) {
        uint64_t values[LANE_LINES];
        WM_UNROLL
        for (size_t k = 0; k < LANE_LINES; k++) {
            const size_t at = i + k * part.threads;
            const size_t line = at < lines ? at : lines - 1;
            values[k] = lane_load(part.op->user + line * WM_LINE_PAYLOAD,
                                  nbytes - line * WM_LINE_PAYLOAD);
        }
        WM_UNROLL
        for (size_t k = 0; k < LANE_LINES; k++)
            if (i + k * part.threads < lines)
                wm_store_line(slot + (i + k * part.threads) * WM_LINE_BYTES,
                              values[k], part.number);
    }
}

// Takes this thread's next lines, if all of them are there, and moves `at`
// past them.
WM_DEVICE bool
lane_take_lines(const lane_part_t &part, size_t lines, const char *slot,
                size_t *at)
{
    const size_t nbytes = part.place->nbytes;
    wm_line_t read[LANE_LINES];
    bool come = true;
    WM_UNROLL
    for (size_t k = 0; k < LANE_LINES; k++) {
        const size_t line = *at + k * part.threads;
        read[k] = wm_load_line(
            slot + (line < lines ? line : lines - 1) * WM_LINE_BYTES);
    }
    WM_UNROLL
    for (size_t k = 0; k < LANE_LINES; k++)
        come = come && read[k].flags[0] == part.number
               && read[k].flags[1] == part.number;
    if (!come)
        return false;
    WM_UNROLL
    for (size_t k = 0; k < LANE_LINES; k++) {
        const size_t line = *at + k * part.threads;
        if (line < lines)
            lane_store(part.op->user + line * WM_LINE_PAYLOAD,
                       nbytes - line * WM_LINE_PAYLOAD,
                       (uint64_t)read[k].high << 32 | read[k].low);
    }
    *at += LANE_LINES * part.threads;
    return true;
}

WM_DEVICE int
lane_look_at_stop(const wm_lane_op_t &op, uint32_t looks)
{
    return looks % LANE_LOOKS == 0 && wm_load_system(&op.late->stop) != 0
               ? LANE_STOPS
               : LANE_WAITS;
}

#ifdef __CUDACC__
#define LANE_PATIENT true
#else
#define LANE_PATIENT false
#endif

// Waits until a word has reached a value. On the host looks once.
WM_DEVICE int
lane_await(const wm_lane_op_t &op, const uint32_t *word, uint32_t value)
{
    for (uint32_t looks = 1;; looks++) {
        if (lane_reached(word, value))
            return LANE_GOES;
        const int result = lane_look_at_stop(op, LANE_PATIENT ? looks
                                                              : LANE_LOOKS);
        if (result != LANE_WAITS || !LANE_PATIENT)
            return result;
        wm_pause();
    }
}

WM_DEVICE int
lane_take_all_lines(const lane_part_t &part)
{
    const size_t lines = lane_lines(part);
    const char *slot = lane_slot(part);
    for (size_t at = part.thread; at < lines;)
        for (uint32_t looks = 1; !lane_take_lines(part, lines, slot, &at);
             looks++) {
            const int result = lane_look_at_stop(
                *part.op, LANE_PATIENT ? looks : LANE_LOOKS);
            if (result != LANE_WAITS || !LANE_PATIENT)
                return result;
        }
    return LANE_GOES;
}

// The word, and its value, for which an end waits before it moves the payload;
// nullptr: there is none.
WM_DEVICE const uint32_t *
lane_condition(const lane_part_t &part, bool begins, uint32_t *value)
{
    const wm_lane_place_t *place = part.place;
    *value = part.number;
    if ((part.op->what & WM_LANE_SENDS) == 0)
        return place->way == WM_LANE_LL ? nullptr : &part.op->lane->heard;
    if (begins) // a slot of the mailbox
        *value = part.number - place->slots;
    return place->way == WM_LANE_DIRECT ? place->asked : &part.op->lane->heard;
}

// Moves the payload. Returns LANE_WAITS on the host alone.
WM_DEVICE int
lane_move(const lane_part_t &part, bool begins)
{
    const bool sends = (part.op->what & WM_LANE_SENDS) != 0;
    const uint32_t way = part.place->way;
    if (sends && !begins && way != WM_LANE_DIRECT)
        return LANE_GOES; // it has been taken
    if (way == WM_LANE_LL && !sends)
        return lane_take_all_lines(part);
    if (way == WM_LANE_LL)
        lane_write_lines(part);
    else if (sends)
        lane_copy(way == WM_LANE_DIRECT ? part.place->memory : lane_slot(part),
                  part.op->user, part);
    else if (way == WM_LANE_STAGED)
        lane_copy(part.op->user, lane_slot(part), part);
    return LANE_GOES;
}

// Notes the end of an operation, and tells the other end. One thread, after
// all others have ended.
WM_DEVICE void
lane_note(const lane_part_t &part, bool begins, bool ends)
{
    wm_lane_t *lane = part.op->lane;
    const uint32_t way = part.place->way;
    const bool sends = (part.op->what & WM_LANE_SENDS) != 0;
    const bool lasting = way == WM_LANE_DIRECT;
    const bool written = sends && (lasting ? ends : begins);
    if (begins)
        lane->begun = part.number;
    if (written || (ends && !sends))
        lane->ended = part.number;
    // LL lines tell for themselves; a receiver tells that a slot is free.
    if (sends ? written && way != WM_LANE_LL : ends && !lasting)
        wm_store_system(part.place->tells, part.number);
    if (lane->place.way == WM_LANE_NOT_MET)
        lane->place = *part.place;
}

WM_DEVICE void
lane_fail(const lane_part_t &part)
{
    wm_lane_t *lane = part.op->lane;
    lane->place.way = WM_LANE_CLOSED;
    lane->begun = lane->ended = part.number;
    wm_store_system(&part.op->late->failed, 1);
}

// The steps of an operation: it may begin a message and end the same one.
struct lane_steps_t {
    bool begins, ends; // those that move the payload, or wait
};

WM_DEVICE lane_steps_t
lane_steps(const wm_lane_op_t &op, uint32_t way)
{
    const bool sends = (op.what & WM_LANE_SENDS) != 0;
    const bool lasting = way == WM_LANE_DIRECT;
    const bool syncs = (op.what & WM_LANE_SYNCS) != 0;
    return {(op.what & WM_LANE_BEGINS) != 0 && sends && !lasting,
            (op.what & WM_LANE_ENDS) != 0 && (!sends || lasting || syncs)};
}

// Waits until the ends have met. Returns the facts about the other end; their
// way may be one that is closed.
WM_DEVICE int
lane_meet(const wm_lane_op_t &op, const wm_lane_place_t **place)
{
    *place = &op.lane->place;
    if (op.lane->place.way != WM_LANE_NOT_MET)
        return op.lane->place.way == WM_LANE_CLOSED ? LANE_STOPS : LANE_GOES;
    *place = &op.late->place;
    const int result = lane_await(op, &op.late->place.way, WM_LANE_LL);
    return result == LANE_GOES && op.late->place.way == WM_LANE_CLOSED
               ? LANE_STOPS
               : result;
}

// Returns true if a send has begun, and waits for its receiver to ask.
WM_DEVICE bool
lane_is_pending(const wm_lane_op_t &op, const lane_part_t &part)
{
    return part.place->way == WM_LANE_DIRECT && op.lane->ended != part.number;
}

// Returns true if an earlier kernel has ended the send already.
WM_DEVICE bool
lane_is_over(const wm_lane_op_t &op, uint32_t number)
{
    return (op.what & (WM_LANE_SENDS | WM_LANE_BEGINS)) == WM_LANE_SENDS
           && op.lane->ended == number && op.lane->place.way == WM_LANE_DIRECT;
}

WM_DEVICE const wm_lane_place_t *
lane_known_place(const wm_lane_op_t &op)
{
    return op.lane->place.way == WM_LANE_NOT_MET ? &op.late->place
                                                 : &op.lane->place;
}

#ifdef __CUDACC__

// Returns true on one thread when all blocks of the operation have ended. If
// `visible`, what they wrote is then visible to the whole system. LL lines
// need no fence, which takes most of a microsecond.
WM_DEVICE bool
lane_is_last(const wm_lane_op_t &op, bool visible)
{
    __syncthreads();
    if (threadIdx.x != 0)
        return false;
    if (visible)
        __threadfence_system();
    if (op.blocks == 1)
        return true;
    if (atomicAdd(&op.lane->blocks, 1) + 1 < op.blocks)
        return false;
    op.lane->blocks = 0;
    if (visible)
        __threadfence_system();
    return true;
}

// Waits on the block's first thread, and tells the others.
WM_DEVICE bool
lane_block_goes(int result)
{
    return __syncthreads_and(threadIdx.x != 0 || result == LANE_GOES) != 0;
}

WM_DEVICE bool
lane_step(const lane_part_t &part, bool begins)
{
    uint32_t value;
    const uint32_t *word = lane_condition(part, begins, &value);
    if (word != nullptr
        && !lane_block_goes(
            threadIdx.x != 0 ? LANE_WAITS : lane_await(*part.op, word, value)))
        return false;
    return __syncthreads_and(lane_move(part, begins) == LANE_GOES) != 0;
}

// Decides, for all blocks of a send that is not required, if it is done now.
WM_DEVICE int
lane_decide(const lane_part_t &part, uint32_t required)
{
    const wm_lane_op_t &op = *part.op;
    for (uint32_t looks = 1;; looks++) {
        const uint32_t way = wm_load_acquire(&part.place->way);
        if (way != WM_LANE_NOT_MET && !lane_is_pending(op, part))
            return LANE_STOPS;
        if (way != WM_LANE_NOT_MET
            && lane_reached(part.place->asked, part.number))
            return LANE_GOES;
        if (wm_load_acquire(&op.lane->others) == required
            || lane_look_at_stop(op, looks) == LANE_STOPS)
            return LANE_STOPS;
    }
}

WM_DEVICE int
lane_follow(const uint32_t *verdict)
{
    uint32_t result;
    while ((result = wm_load_acquire(verdict)) == LANE_WAITS)
        ;
    return (int)result;
}

WM_DEVICE lane_part_t
lane_part_of(const wm_lane_op_t &op, uint32_t block)
{
    return {&op,
            lane_known_place(op),
            op.lane->begun,
            block,
            block * (size_t)blockDim.x + threadIdx.x,
            op.blocks * (size_t)blockDim.x};
}

// Does one block's part of a send that is not required.
WM_DEVICE void
lane_run_if_asked(const wm_lane_op_t &op, uint32_t block, uint32_t required)
{
    const lane_part_t part = lane_part_of(op, block);
    int result = LANE_WAITS;
    if (threadIdx.x == 0 && block > 0)
        result = lane_follow(&op.lane->verdict);
    else if (threadIdx.x == 0) {
        result = lane_decide(part, required);
        wm_store_system(&op.lane->verdict, (uint32_t)result);
    }
    const bool goes = lane_block_goes(result);
    if (goes)
        (void)lane_move(part, false);
    if (!lane_is_last(op, goes))
        return;
    if (goes)
        lane_note(part, false, true);
    while (wm_load_acquire(&op.lane->others) != required)
        ;
    op.lane->others = op.lane->verdict = 0;
}

// Does one block's part of an operation. Returns true on one thread when all
// of the operation has ended.
WM_DEVICE bool
lane_run(const wm_lane_op_t &op, uint32_t block)
{
    lane_part_t part = lane_part_of(op, block);
    const bool begins = (op.what & WM_LANE_BEGINS) != 0;
    const bool ends = (op.what & WM_LANE_ENDS) != 0;
    part.number += begins;
    if (lane_is_over(op, part.number))
        return lane_is_last(op, false);
    if (part.thread == 0)
        op.lane->active = part.number;
    // A receiver asks before it has met the sender, and waits for nobody.
    const bool asks = begins && (op.what & WM_LANE_SENDS) == 0
                      && op.lane->place.way != WM_LANE_CLOSED;
    if (asks && threadIdx.x == 0)
        wm_store_system(&op.lane->asks, part.number);
    if (asks && !ends) {
        const bool last = lane_is_last(op, false);
        if (last)
            op.lane->begun = part.number;
        return last;
    }
    bool goes = lane_block_goes(threadIdx.x == 0 ? lane_meet(op, &part.place)
                                                 : LANE_WAITS);
    if (goes) {
        part.place = lane_known_place(op);
        const lane_steps_t steps = lane_steps(op, part.place->way);
        goes = (!steps.begins || lane_step(part, true))
               && (!steps.ends || lane_step(part, false));
    }
    if (!lane_is_last(op, goes && part.place->way != WM_LANE_LL))
        return false;
    if (goes)
        lane_note(part, begins, ends);
    else
        lane_fail(part);
    return true;
}

template <typename params_t>
WM_DEVICE void
lane_run_all(const params_t &p)
{
    uint32_t block = blockIdx.x, at = 0;
    while (at < p.count && block >= p.ops[at].blocks)
        block -= p.ops[at++].blocks;
    if (at >= p.required)
        lane_run_if_asked(p.ops[at], block, p.required);
    else if (lane_run(p.ops[at], block))
        for (uint32_t i = p.required; i < p.count; i++)
            atomicAdd(&p.ops[i].lane->others, 1);
}

#else

// Does as much of an operation as needs no wait. Returns true when the
// operation has ended. `begun`: its first half has been done.
WM_DEVICE bool
lane_try(const wm_lane_op_t &op, bool *begun)
{
    lane_part_t part = {&op, nullptr, op.lane->begun, 0, 0, 1};
    const bool begins = (op.what & WM_LANE_BEGINS) != 0 && !*begun;
    const bool ends = (op.what & WM_LANE_ENDS) != 0;
    const bool sends = (op.what & WM_LANE_SENDS) != 0;
    part.number += begins;
    if (!*begun && lane_is_over(op, part.number))
        return true;
    op.lane->active = part.number;
    if (begins && !sends && op.lane->place.way != WM_LANE_CLOSED) {
        wm_store_system(&op.lane->asks, part.number);
        op.lane->begun = part.number;
        *begun = true;
        return !ends;
    }
    int result = lane_meet(op, &part.place);
    if (result == LANE_GOES) {
        const lane_steps_t steps = lane_steps(op, part.place->way);
        const bool first = begins && steps.begins;
        uint32_t value;
        const uint32_t *word = first || (!begins && steps.ends)
                                   ? lane_condition(part, first, &value)
                                   : nullptr;
        if (word != nullptr)
            result = lane_await(op, word, value);
        if (result == LANE_GOES && (first || (!begins && steps.ends)))
            result = lane_move(part, first);
    }
    if (result == LANE_STOPS)
        lane_fail(part);
    if (result == LANE_GOES)
        lane_note(part, begins, !begins && ends);
    if (result == LANE_GOES && begins) {
        *begun = true;
        return !ends;
    }
    return result != LANE_WAITS;
}

WM_DEVICE bool
lane_try_if_asked(const wm_lane_op_t &op)
{
    const lane_part_t part = {&op, lane_known_place(op), op.lane->begun, 0, 0,
                              1};
    bool begun = true;
    return lane_is_pending(op, part) && lane_try(op, &begun);
}

template <typename params_t>
WM_DEVICE void
lane_run_all(const params_t &p)
{
    bool begun[WM_LANE_OPS] = {}, ended[WM_LANE_OPS] = {};
    uint32_t left = wm_peer_works() ? p.required : 0;
    for (; left > 0; wm_pause())
        for (uint32_t i = 0; i < p.count; i++) {
            if (!ended[i] && i < p.required && lane_try(p.ops[i], &begun[i])) {
                ended[i] = true;
                left--;
            }
            if (!ended[i] && i >= p.required)
                ended[i] = lane_try_if_asked(p.ops[i]);
        }
}

#endif

WM_KERNEL_OF_HALF(wm_lane, wm_lane_params_t)
{
    lane_run_all(p);
}

WM_KERNEL_OF_HALF(wm_lane_few, wm_lane_few_params_t)
{
    lane_run_all(p);
}

// SPDX-License-Identifier: BSD-3-Clause
#include "kernels/port.h"
#include "kernels/peer_sync.h"

#define PORT_LINES 4   // LL lines that a thread has under way
#define PORT_UNITS 8   // units of a copy likewise
#define PORT_LOOKS 256 // failed polls before a look at the stop word

// Results of an attempt.
enum { PORT_WAITS, PORT_GOES, PORT_STOPS };

struct alignas(16) port_wide_t {
    uint64_t part[2];
};

// This thread's part of an operation. On the host one thread does all, and
// never waits in one operation, as another may have to come first.
struct port_part_t {
    const wm_port_op_t *op;
    const wm_port_place_t *place;
    uint32_t number; // of the message
    uint32_t block;  // of the operation
    size_t thread, threads;
};

WM_DEVICE bool
port_reached(const uint32_t *word, uint32_t value)
{
    return (int32_t)(wm_load_acquire(word) - value) >= 0;
}

WM_DEVICE char *
port_slot(const port_part_t &part)
{
    const wm_port_place_t *place = part.place;
    return place->memory + part.number % place->slots * place->slot_bytes;
}

template <typename unit_t>
WM_DEVICE void
port_copy_units(char *dst, const char *src, size_t nbytes, size_t thread,
                size_t threads)
{
    const size_t count = nbytes / sizeof(unit_t);
    for (size_t i = thread; i < count; i += PORT_UNITS * threads) {
        unit_t values[PORT_UNITS];
        WM_UNROLL
        for (size_t k = 0; k < PORT_UNITS; k++) {
            const size_t at = i + k * threads;
            values[k] = wm_load_far((const unit_t *)src
                                    + (at < count ? at : count - 1));
        }
        WM_UNROLL
        for (size_t k = 0; k < PORT_UNITS; k++)
            if (i + k * threads < count)
                ((unit_t *)dst)[i + k * threads] = values[k];
    }
    for (size_t i = count * sizeof(unit_t) + thread; i < nbytes; i += threads)
        dst[i] = (char)wm_load_far((const uint8_t *)src + i);
}

WM_DEVICE void
port_copy(char *dst, const char *src, const port_part_t &part)
{
    const uintptr_t both = (uintptr_t)dst | (uintptr_t)src;
    const size_t nbytes = part.place->nbytes;
    if (both % 16 == 0)
        port_copy_units<port_wide_t>(dst, src, nbytes, part.thread,
                                     part.threads);
    else if (both % 4 == 0)
        port_copy_units<uint32_t>(dst, src, nbytes, part.thread, part.threads);
    else
        port_copy_units<uint8_t>(dst, src, nbytes, part.thread, part.threads);
}

// Returns the bytes of a line; the last line may have fewer than eight.
WM_DEVICE uint64_t
port_load(const char *src, size_t left)
{
    if (left >= WM_LINE_PAYLOAD && (uintptr_t)src % 8 == 0)
        return *(const uint64_t *)src;
    uint64_t value = 0;
    for (size_t i = 0; i < WM_LINE_PAYLOAD && i < left; i++)
        value |= (uint64_t) * (const uint8_t *)(src + i) << (8 * i);
    return value;
}

WM_DEVICE void
port_store(char *dst, size_t left, uint64_t value)
{
    if (left >= WM_LINE_PAYLOAD && (uintptr_t)dst % 8 == 0) {
        *(uint64_t *)dst = value;
        return;
    }
    for (size_t i = 0; i < WM_LINE_PAYLOAD && i < left; i++)
        dst[i] = (char)(value >> (8 * i));
}

WM_DEVICE size_t
port_lines(const port_part_t &part)
{
    return ((size_t)part.place->nbytes + WM_LINE_PAYLOAD - 1)
           / WM_LINE_PAYLOAD;
}

WM_DEVICE void
port_write_lines(const port_part_t &part)
{
    const size_t nbytes = part.place->nbytes, lines = port_lines(part);
    char *slot = port_slot(part);
    for (size_t i = part.thread; i < lines; i += PORT_LINES * part.threads) {
        uint64_t values[PORT_LINES];
        WM_UNROLL
        for (size_t k = 0; k < PORT_LINES; k++) {
            const size_t at = i + k * part.threads;
            const size_t line = at < lines ? at : lines - 1;
            values[k] = port_load(part.op->user + line * WM_LINE_PAYLOAD,
                                  nbytes - line * WM_LINE_PAYLOAD);
        }
        WM_UNROLL
        for (size_t k = 0; k < PORT_LINES; k++)
            if (i + k * part.threads < lines)
                wm_store_line(slot + (i + k * part.threads) * WM_LINE_BYTES,
                              values[k], part.number);
    }
}

// Takes this thread's next lines, if all of them are there, and moves `at`
// past them.
WM_DEVICE bool
port_take_lines(const port_part_t &part, size_t lines, const char *slot,
                size_t *at)
{
    const size_t nbytes = part.place->nbytes;
    wm_line_t read[PORT_LINES];
    bool come = true;
    WM_UNROLL
    for (size_t k = 0; k < PORT_LINES; k++) {
        const size_t line = *at + k * part.threads;
        read[k] = wm_load_line(
            slot + (line < lines ? line : lines - 1) * WM_LINE_BYTES);
    }
    WM_UNROLL
    for (size_t k = 0; k < PORT_LINES; k++)
        come = come && read[k].flags[0] == part.number
               && read[k].flags[1] == part.number;
    if (!come)
        return false;
    WM_UNROLL
    for (size_t k = 0; k < PORT_LINES; k++) {
        const size_t line = *at + k * part.threads;
        if (line < lines)
            port_store(part.op->user + line * WM_LINE_PAYLOAD,
                       nbytes - line * WM_LINE_PAYLOAD,
                       (uint64_t)read[k].high << 32 | read[k].low);
    }
    *at += PORT_LINES * part.threads;
    return true;
}

WM_DEVICE int
port_look_at_stop(const wm_port_op_t &op, uint32_t looks)
{
    return looks % PORT_LOOKS == 0 && wm_load_system(&op.late->stop) != 0
               ? PORT_STOPS
               : PORT_WAITS;
}

#ifdef __CUDACC__
#define PORT_PATIENT true
#else
#define PORT_PATIENT false
#endif

// Waits until a word has reached a value. On the host looks once.
WM_DEVICE int
port_await(const wm_port_op_t &op, const uint32_t *word, uint32_t value)
{
    for (uint32_t looks = 1;; looks++) {
        if (port_reached(word, value))
            return PORT_GOES;
        const int result = port_look_at_stop(op, PORT_PATIENT ? looks
                                                              : PORT_LOOKS);
        if (result != PORT_WAITS || !PORT_PATIENT)
            return result;
        wm_pause();
    }
}

WM_DEVICE int
port_take_all_lines(const port_part_t &part)
{
    const size_t lines = port_lines(part);
    const char *slot = port_slot(part);
    for (size_t at = part.thread; at < lines;)
        for (uint32_t looks = 1; !port_take_lines(part, lines, slot, &at);
             looks++) {
            const int result = port_look_at_stop(
                *part.op, PORT_PATIENT ? looks : PORT_LOOKS);
            if (result != PORT_WAITS || !PORT_PATIENT)
                return result;
        }
    return PORT_GOES;
}

// The word, and its value, for which an end waits before it moves the payload;
// nullptr: there is none.
WM_DEVICE const uint32_t *
port_condition(const port_part_t &part, bool begins, uint32_t *value)
{
    const wm_port_place_t *place = part.place;
    *value = part.number;
    if ((part.op->what & WM_PORT_SENDS) == 0)
        return place->way == WM_PORT_LL ? nullptr : &part.op->port->heard;
    if (begins) // a slot of the mailbox
        *value = part.number - place->slots;
    return place->way == WM_PORT_DIRECT ? place->asked : &part.op->port->heard;
}

// Moves the payload. Returns PORT_WAITS on the host alone.
WM_DEVICE int
port_move(const port_part_t &part, bool begins)
{
    const bool sends = (part.op->what & WM_PORT_SENDS) != 0;
    const uint32_t way = part.place->way;
    if (sends && !begins && way != WM_PORT_DIRECT)
        return PORT_GOES; // it has been taken
    if (way == WM_PORT_LL && !sends)
        return port_take_all_lines(part);
    if (way == WM_PORT_LL)
        port_write_lines(part);
    else if (sends)
        port_copy(way == WM_PORT_DIRECT ? part.place->memory : port_slot(part),
                  part.op->user, part);
    else if (way == WM_PORT_STAGED)
        port_copy(part.op->user, port_slot(part), part);
    return PORT_GOES;
}

// Notes the end of an operation, and tells the other end. One thread, after
// all others have ended.
WM_DEVICE void
port_note(const port_part_t &part, bool begins, bool ends)
{
    wm_port_t *port = part.op->port;
    const uint32_t way = part.place->way;
    const bool sends = (part.op->what & WM_PORT_SENDS) != 0;
    const bool lasting = way == WM_PORT_DIRECT;
    const bool written = sends && (lasting ? ends : begins);
    if (begins)
        port->begun = part.number;
    if (written || (ends && !sends))
        port->ended = part.number;
    // LL lines tell for themselves; a receiver tells that a slot is free.
    if (sends ? written && way != WM_PORT_LL : ends && !lasting)
        wm_store_system(part.place->tells, part.number);
    if (port->place.way == WM_PORT_UNMATCHED)
        port->place = *part.place;
}

WM_DEVICE void
port_fail(const port_part_t &part)
{
    wm_port_t *port = part.op->port;
    port->place.way = WM_PORT_CLOSED;
    port->begun = port->ended = part.number;
    wm_store_system(&part.op->late->failed, 1);
}

// The steps of an operation: it may begin a message and end the same one.
struct port_steps_t {
    bool begins, ends; // those that move the payload, or wait
};

WM_DEVICE port_steps_t
port_steps(const wm_port_op_t &op, uint32_t way)
{
    const bool sends = (op.what & WM_PORT_SENDS) != 0;
    const bool lasting = way == WM_PORT_DIRECT;
    const bool syncs = (op.what & WM_PORT_SYNCS) != 0;
    return {(op.what & WM_PORT_BEGINS) != 0 && sends && !lasting,
            (op.what & WM_PORT_ENDS) != 0 && (!sends || lasting || syncs)};
}

// Waits until the ends have met. Returns the facts about the other end; their
// way may be one that is closed.
WM_DEVICE int
port_match(const wm_port_op_t &op, const wm_port_place_t **place)
{
    *place = &op.port->place;
    if (op.port->place.way != WM_PORT_UNMATCHED)
        return op.port->place.way == WM_PORT_CLOSED ? PORT_STOPS : PORT_GOES;
    *place = &op.late->place;
    const int result = port_await(op, &op.late->place.way, WM_PORT_LL);
    return result == PORT_GOES && op.late->place.way == WM_PORT_CLOSED
               ? PORT_STOPS
               : result;
}

// Returns true if a send has begun, and waits for its receiver to ask.
WM_DEVICE bool
port_is_pending(const wm_port_op_t &op, const port_part_t &part)
{
    return part.place->way == WM_PORT_DIRECT && op.port->ended != part.number;
}

// Returns true if an earlier kernel has ended the send already.
WM_DEVICE bool
port_is_over(const wm_port_op_t &op, uint32_t number)
{
    return (op.what & (WM_PORT_SENDS | WM_PORT_BEGINS)) == WM_PORT_SENDS
           && op.port->ended == number && op.port->place.way == WM_PORT_DIRECT;
}

WM_DEVICE const wm_port_place_t *
port_known_place(const wm_port_op_t &op)
{
    return op.port->place.way == WM_PORT_UNMATCHED ? &op.late->place
                                                   : &op.port->place;
}

#ifdef __CUDACC__

// Returns true on one thread when all blocks of the operation have ended. If
// `visible`, what they wrote is then visible to the whole system. LL lines
// need no fence, which takes most of a microsecond.
WM_DEVICE bool
port_is_last(const wm_port_op_t &op, bool visible)
{
    __syncthreads();
    if (threadIdx.x != 0)
        return false;
    if (visible)
        __threadfence_system();
    if (op.blocks == 1)
        return true;
    if (atomicAdd(&op.port->blocks, 1) + 1 < op.blocks)
        return false;
    op.port->blocks = 0;
    if (visible)
        __threadfence_system();
    return true;
}

// Waits on the block's first thread, and tells the others.
WM_DEVICE bool
port_block_goes(int result)
{
    return __syncthreads_and(threadIdx.x != 0 || result == PORT_GOES) != 0;
}

WM_DEVICE bool
port_step(const port_part_t &part, bool begins)
{
    uint32_t value;
    const uint32_t *word = port_condition(part, begins, &value);
    if (word != nullptr
        && !port_block_goes(
            threadIdx.x != 0 ? PORT_WAITS : port_await(*part.op, word, value)))
        return false;
    return __syncthreads_and(port_move(part, begins) == PORT_GOES) != 0;
}

// Decides, for all blocks of a send that is not required, if it is done now.
WM_DEVICE int
port_decide(const port_part_t &part, uint32_t required)
{
    const wm_port_op_t &op = *part.op;
    for (uint32_t looks = 1;; looks++) {
        const uint32_t way = wm_load_acquire(&part.place->way);
        if (way != WM_PORT_UNMATCHED && !port_is_pending(op, part))
            return PORT_STOPS;
        if (way != WM_PORT_UNMATCHED
            && port_reached(part.place->asked, part.number))
            return PORT_GOES;
        if (wm_load_acquire(&op.port->others) == required
            || port_look_at_stop(op, looks) == PORT_STOPS)
            return PORT_STOPS;
    }
}

WM_DEVICE int
port_follow(const uint32_t *verdict)
{
    uint32_t result;
    while ((result = wm_load_acquire(verdict)) == PORT_WAITS)
        ;
    return (int)result;
}

WM_DEVICE port_part_t
port_part_of(const wm_port_op_t &op, uint32_t block)
{
    return {&op,
            port_known_place(op),
            op.port->begun,
            block,
            block * (size_t)blockDim.x + threadIdx.x,
            op.blocks * (size_t)blockDim.x};
}

// Does one block's part of a send that is not required.
WM_DEVICE void
port_run_if_asked(const wm_port_op_t &op, uint32_t block, uint32_t required)
{
    const port_part_t part = port_part_of(op, block);
    int result = PORT_WAITS;
    if (threadIdx.x == 0 && block > 0)
        result = port_follow(&op.port->verdict);
    else if (threadIdx.x == 0) {
        result = port_decide(part, required);
        wm_store_system(&op.port->verdict, (uint32_t)result);
    }
    const bool goes = port_block_goes(result);
    if (goes)
        (void)port_move(part, false);
    if (!port_is_last(op, goes))
        return;
    if (goes)
        port_note(part, false, true);
    while (wm_load_acquire(&op.port->others) != required)
        ;
    op.port->others = op.port->verdict = 0;
}

// Does one block's part of an operation. Returns true on one thread when all
// of the operation has ended.
WM_DEVICE bool
port_run(const wm_port_op_t &op, uint32_t block)
{
    port_part_t part = port_part_of(op, block);
    const bool begins = (op.what & WM_PORT_BEGINS) != 0;
    const bool ends = (op.what & WM_PORT_ENDS) != 0;
    part.number += begins;
    if (port_is_over(op, part.number))
        return port_is_last(op, false);
    if (part.thread == 0)
        op.port->active = part.number;
    // A receiver asks before it has met the sender, and waits for nobody.
    const bool asks = begins && (op.what & WM_PORT_SENDS) == 0
                      && op.port->place.way != WM_PORT_CLOSED;
    if (asks && threadIdx.x == 0)
        wm_store_system(&op.port->asks, part.number);
    if (asks && !ends) {
        const bool last = port_is_last(op, false);
        if (last)
            op.port->begun = part.number;
        return last;
    }
    bool goes = port_block_goes(threadIdx.x == 0 ? port_match(op, &part.place)
                                                 : PORT_WAITS);
    if (goes) {
        part.place = port_known_place(op);
        const port_steps_t steps = port_steps(op, part.place->way);
        goes = (!steps.begins || port_step(part, true))
               && (!steps.ends || port_step(part, false));
    }
    if (!port_is_last(op, goes && part.place->way != WM_PORT_LL))
        return false;
    if (goes)
        port_note(part, begins, ends);
    else
        port_fail(part);
    return true;
}

template <typename params_t>
WM_DEVICE void
port_run_all(const params_t &p)
{
    uint32_t block = blockIdx.x, at = 0;
    while (at < p.count && block >= p.ops[at].blocks)
        block -= p.ops[at++].blocks;
    if (at >= p.required)
        port_run_if_asked(p.ops[at], block, p.required);
    else if (port_run(p.ops[at], block))
        for (uint32_t i = p.required; i < p.count; i++)
            atomicAdd(&p.ops[i].port->others, 1);
}

#else

// Does as much of an operation as needs no wait. Returns true when the
// operation has ended. `begun`: its first half has been done.
WM_DEVICE bool
port_try(const wm_port_op_t &op, bool *begun)
{
    port_part_t part = {&op, nullptr, op.port->begun, 0, 0, 1};
    const bool begins = (op.what & WM_PORT_BEGINS) != 0 && !*begun;
    const bool ends = (op.what & WM_PORT_ENDS) != 0;
    const bool sends = (op.what & WM_PORT_SENDS) != 0;
    part.number += begins;
    if (!*begun && port_is_over(op, part.number))
        return true;
    op.port->active = part.number;
    if (begins && !sends && op.port->place.way != WM_PORT_CLOSED) {
        wm_store_system(&op.port->asks, part.number);
        op.port->begun = part.number;
        *begun = true;
        return !ends;
    }
    int result = port_match(op, &part.place);
    if (result == PORT_GOES) {
        const port_steps_t steps = port_steps(op, part.place->way);
        const bool first = begins && steps.begins;
        uint32_t value;
        const uint32_t *word = first || (!begins && steps.ends)
                                   ? port_condition(part, first, &value)
                                   : nullptr;
        if (word != nullptr)
            result = port_await(op, word, value);
        if (result == PORT_GOES && (first || (!begins && steps.ends)))
            result = port_move(part, first);
    }
    if (result == PORT_STOPS)
        port_fail(part);
    if (result == PORT_GOES)
        port_note(part, begins, !begins && ends);
    if (result == PORT_GOES && begins) {
        *begun = true;
        return !ends;
    }
    return result != PORT_WAITS;
}

WM_DEVICE bool
port_try_if_asked(const wm_port_op_t &op)
{
    const port_part_t part = {&op, port_known_place(op), op.port->begun, 0, 0,
                              1};
    bool begun = true;
    return port_is_pending(op, part) && port_try(op, &begun);
}

template <typename params_t>
WM_DEVICE void
port_run_all(const params_t &p)
{
    bool begun[WM_PORT_OPS] = {}, ended[WM_PORT_OPS] = {};
    uint32_t left = wm_peer_works() ? p.required : 0;
    for (; left > 0; wm_pause())
        for (uint32_t i = 0; i < p.count; i++) {
            if (!ended[i] && i < p.required && port_try(p.ops[i], &begun[i])) {
                ended[i] = true;
                left--;
            }
            if (!ended[i] && i >= p.required)
                ended[i] = port_try_if_asked(p.ops[i]);
        }
}

#endif

WM_KERNEL_OF_HALF(wm_port, wm_port_params_t)
{
    port_run_all(p);
}

WM_KERNEL_OF_HALF(wm_port_few, wm_port_few_params_t)
{
    port_run_all(p);
}

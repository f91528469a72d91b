// SPDX-License-Identifier: BSD-3-Clause
#include "kernels/port.h"
#include "kernels/peer_wait.h"

#define PORT_UNITS 4       // units of a copy that a thread has under way
#define PORT_BEAT 65536    // polls before the host is told, some 50 ms
#define PORT_STOPPED 65536 // in the count of blocks: one that has stopped
#define PORT_LEFT 65536    // in the count of operations: a block that has left
#define PORT_OVER 65536    // in the first step: no other one comes

// Results of an attempt.
enum { PORT_WAITS, PORT_GOES, PORT_STOPS };

struct alignas(16) port_wide_t {
    uint64_t part[2];
};

WM_DEVICE bool
port_sends(const wm_port_op_t &op)
{
    return (op.what & WM_PORT_SENDS) != 0;
}

WM_DEVICE bool
port_is_closed(const wm_port_op_t &op)
{
    return wm_load_system(&op.port->closed) != 0;
}

WM_DEVICE bool
port_is_direct(const wm_port_place_t *place)
{
    return place->slot_bytes == 0;
}

// Returns the memory of a message there.
WM_DEVICE char *
port_slot(const wm_port_place_t *place, uint32_t number)
{
    return place->memory + number % place->slots * place->slot_bytes;
}

// Returns the lines of a message; an empty one has a line, too.
WM_DEVICE uint32_t
port_lines(uint64_t nbytes)
{
    return nbytes == 0
               ? 1
               : (uint32_t)((nbytes + WM_LINE_PAYLOAD - 1) / WM_LINE_PAYLOAD);
}

WM_DEVICE uint32_t
port_line_blocks(uint64_t nbytes)
{
    return (port_lines(nbytes) + WM_PORT_BLOCK_LINES - 1)
           / WM_PORT_BLOCK_LINES;
}

// Returns the bytes of a line; the last line may have fewer than eight.
WM_DEVICE uint64_t
port_load(const char *memory, uint64_t nbytes, uint32_t line)
{
    const uint64_t at = (uint64_t)line * WM_LINE_PAYLOAD;
    const char *src = memory + at;
    if (at + WM_LINE_PAYLOAD <= nbytes && (uintptr_t)src % 8 == 0)
        return *(const uint64_t *)src;
    uint64_t value = 0;
    for (uint32_t i = 0; i < WM_LINE_PAYLOAD && at + i < nbytes; i++)
        value |= (uint64_t) * (const uint8_t *)(src + i) << (8 * i);
    return value;
}

WM_DEVICE void
port_store(char *memory, uint64_t nbytes, uint32_t line, const wm_line_t &read)
{
    const uint64_t at = (uint64_t)line * WM_LINE_PAYLOAD;
    const uint64_t value = (uint64_t)read.high << 32 | read.low;
    char *dst = memory + at;
    if (at + WM_LINE_PAYLOAD <= nbytes && (uintptr_t)dst % 8 == 0) {
        *(uint64_t *)dst = value;
        return;
    }
    for (uint32_t i = 0; i < WM_LINE_PAYLOAD && at + i < nbytes; i++)
        dst[i] = (char)(value >> (8 * i));
}

// Copies units; `far`: from memory that another kernel has just written.
template <typename unit_t>
WM_DEVICE void
port_copy_units(char *dst, const char *src, size_t nbytes, size_t thread,
                size_t threads, bool far)
{
    const size_t count = nbytes / sizeof(unit_t);
    for (size_t i = thread; i < count; i += PORT_UNITS * threads) {
        unit_t values[PORT_UNITS];
        WM_UNROLL
        for (size_t k = 0; k < PORT_UNITS; k++) {
            const size_t at = i + k * threads;
            const unit_t *from = (const unit_t *)src
                                 + (at < count ? at : count - 1);
            values[k] = far ? wm_load_far(from) : *from;
        }
        WM_UNROLL
        for (size_t k = 0; k < PORT_UNITS; k++)
            if (i + k * threads < count)
                ((unit_t *)dst)[i + k * threads] = values[k];
    }
    for (size_t i = count * sizeof(unit_t) + thread; i < nbytes; i += threads)
        dst[i] = (char)wm_load_far((const uint8_t *)src + i);
}

// Moves a thread's part of a long payload, if the message is not in place.
WM_DEVICE void
port_move(const wm_port_op_t &op, const wm_port_place_t *place,
          uint32_t number, size_t thread, size_t threads)
{
    char *other = port_slot(place, number);
    char *dst = port_sends(op) ? other : op.user;
    const char *src = port_sends(op) ? op.user : other;
    const uintptr_t both = (uintptr_t)dst | (uintptr_t)src;
    const size_t nbytes = place->nbytes;
    const bool far = !port_sends(op);
    if (port_is_direct(place) && far)
        return;
    if (both % 16 == 0)
        port_copy_units<port_wide_t>(dst, src, nbytes, thread, threads, far);
    else if (both % 4 == 0)
        port_copy_units<uint32_t>(dst, src, nbytes, thread, threads, far);
    else
        port_copy_units<uint8_t>(dst, src, nbytes, thread, threads, far);
}

// Returns true if the wait is over in vain, and tells the host rarely that it
// goes on.
WM_DEVICE bool
port_stops(const wm_port_op_t &op, uint32_t looks)
{
    if (looks % PORT_BEAT == 0)
        wm_store_system(&op.late->beat,
                        wm_load_system(&op.port->left) << WM_PORT_BEAT_BITS
                            | (wm_load_system(&op.late->beat) + 1)
                                  % (1u << WM_PORT_BEAT_BITS));
    return wm_is_stopped(&op.late->stop, looks);
}

// Waits until has_come() is true. On the host looks once, as another operation
// may have to come first.
template <typename come_t>
WM_DEVICE int
port_await_until(const wm_port_op_t &op, const come_t &has_come)
{
#ifdef __CUDACC__
    return wm_await(has_come,
                    [&](uint32_t looks) { return port_stops(op, looks); })
               ? PORT_GOES
               : PORT_STOPS;
#else
    return has_come()          ? PORT_GOES
           : port_stops(op, 0) ? PORT_STOPS
                               : PORT_WAITS;
#endif
}

WM_DEVICE int
port_await(const wm_port_op_t &op, const uint32_t *word, uint32_t value)
{
    return port_await_until(
        op, [=] { return wm_has_reached(word, value); });
}

WM_DEVICE int
port_await_line(const wm_port_op_t &op, const char *line, uint32_t number,
                wm_line_t *read)
{
    return port_await_until(
        op,
        [=] {
            *read = wm_load_line(line);
            return read->flags[0] == number && read->flags[1] == number;
        });
}

// Returns the facts about the other end, where they are now.
WM_DEVICE const wm_port_place_t *
port_place(const wm_port_op_t &op)
{
    return wm_load_system(&op.port->place.matched) == 0 ? &op.late->place
                                                        : &op.port->place;
}

// Waits until the ends have matched.
WM_DEVICE int
port_match(const wm_port_op_t &op, const wm_port_place_t *place)
{
    if (place == &op.port->place || wm_load_acquire(&place->matched) != 0)
        return PORT_GOES;
    return port_is_closed(op) ? PORT_STOPS
                              : port_await(op, &place->matched, 1);
}

// Does so, unless no message passes any more.
WM_DEVICE int
port_match_open(const wm_port_op_t &op, const wm_port_place_t *place)
{
    return port_is_closed(op) ? PORT_STOPS : port_match(op, place);
}

// Leaves the facts in the port, once. One thread, at the end of an operation.
WM_DEVICE void
port_keep_place(const wm_port_op_t &op, const wm_port_place_t *place)
{
    if (place == &op.port->place)
        return;
    wm_port_place_t kept = *place;
    kept.matched = 0;
    op.port->place = kept;
    wm_fence_device();
    wm_store_system(&op.port->place.matched, 1);
}

WM_DEVICE void
port_fail(const wm_port_op_t &op)
{
    wm_store_system(&op.port->closed, 1);
    wm_store_system(&op.late->failed, 1);
}

// Notes that a long message has ended, and tells the other end: one that has
// come, or a slot that is free. One thread, after all others have ended.
WM_DEVICE void
port_end(const wm_port_op_t &op, const wm_port_place_t *place, uint32_t number,
         bool goes)
{
    wm_port_t *port = op.port;
    if (!goes)
        port_fail(op);
    else {
        if (port_sends(op) || !port_is_direct(place))
            wm_store_system(place->tells, number);
        port_keep_place(op, place);
        port->ended = number;
        if (!port_sends(op))
            port->begun = number;
    }
    port->left = number;
}

// The word, and its value, for which an end of a long message waits.
WM_DEVICE const uint32_t *
port_condition(const wm_port_op_t &op, const wm_port_place_t *place,
               uint32_t number, uint32_t *value)
{
    const bool direct = port_is_direct(place);
    *value = port_sends(op) && !direct ? number - place->slots : number;
    return port_sends(op) && direct ? place->asked : &op.port->heard[0];
}

#ifdef __CUDACC__

// Does one part of a short message. A part waits for the other end's same part
// alone.
WM_DEVICE void
port_run_part(const wm_port_op_t &op, uint32_t part,
              const wm_port_place_t *place)
{
    wm_port_t *port = op.port;
    const uint32_t number = port->counts[part] + 1;
    const uint32_t line = part * WM_PORT_BLOCK_LINES + threadIdx.x;
    const bool sends = port_sends(op), leads = threadIdx.x == 0;
    // Before any wait: the load is under way meanwhile.
    const uint64_t value = sends && line < port_lines(op.nbytes)
                               ? port_load(op.user, op.nbytes, line)
                               : 0;
    int result = port_match_open(op, place);
    if (leads && part == 0)
        port->active = number;
    const bool has_line = threadIdx.x < WM_PORT_BLOCK_LINES
                          && result == PORT_GOES
                          && line < port_lines(place->nbytes);
    if (has_line) {
        char *at = port_slot(place, number) + line * WM_LINE_BYTES;
        wm_line_t read;
        if (!sends)
            result = port_await_line(op, at, number, &read);
        else if ((op.what & WM_PORT_BEGINS) != 0)
            result = port_await(op, &port->heard[part], number - place->slots);
        if (result == PORT_GOES && !sends)
            port_store(op.user, place->nbytes, line, read);
        else if (result == PORT_GOES)
            wm_store_line(at, value, number);
    }
    const bool goes = __syncthreads_and(result == PORT_GOES) != 0;
    if (!leads)
        return;
    if (!goes)
        port_fail(op);
    else if (!sends)
        wm_store_system(place->tells + part, number);
    if (goes && part == 0)
        port_keep_place(op, place);
    port->counts[part] = number;
    if (part == 0)
        port->left = number;
}

// Does one block's parts of a short message of so many bytes. Returns true on
// the thread that ends the operation.
WM_DEVICE bool
port_run_short(const wm_port_op_t &op, uint32_t block,
               const wm_port_place_t *place, uint64_t nbytes)
{
    for (uint32_t i = block; i < port_line_blocks(nbytes); i += op.blocks)
        port_run_part(op, i, place);
    return threadIdx.x == 0 && block == 0;
}

// Waits until a short message that was written has been taken.
WM_DEVICE bool
port_run_sync(const wm_port_op_t &op, uint32_t block)
{
    if (threadIdx.x != 0)
        return false;
    for (uint32_t i = block; i < port_line_blocks(op.nbytes); i += op.blocks)
        if (!port_is_closed(op)
            && port_await(op, &op.port->heard[i], op.port->counts[i])
                   != PORT_GOES)
            port_fail(op);
    return block == 0;
}

// Returns true on one thread when all blocks of the operation have ended; what
// they wrote is then visible to the whole system. *goes: this block has not
// stopped; then none has.
WM_DEVICE bool
port_is_last(const wm_port_op_t &op, bool *goes)
{
    __syncthreads();
    if (threadIdx.x != 0)
        return false;
    __threadfence_system();
    if (op.blocks == 1)
        return true;
    const uint32_t before = atomicAdd(&op.port->blocks,
                                      *goes ? 1 : 1 + PORT_STOPPED);
    if (before % PORT_STOPPED + 1 < op.blocks)
        return false;
    *goes = *goes && before < PORT_STOPPED;
    op.port->blocks = 0;
    __threadfence_system();
    return true;
}

// Tells all threads the result of the block's first thread.
WM_DEVICE bool
port_block_goes(int result)
{
    return __syncthreads_and(threadIdx.x != 0 || result == PORT_GOES) != 0;
}

// Does one block's part of the end of a long message, once its condition
// holds.
WM_DEVICE bool
port_finish(const wm_port_op_t &op, const wm_port_place_t *place,
            uint32_t number, uint32_t block, bool goes, bool early)
{
    if (goes)
        port_move(op, place, number, block * (size_t)blockDim.x + threadIdx.x,
                  op.blocks * (size_t)blockDim.x);
    if (!port_is_last(op, &goes))
        return false;
    if (goes)
        op.port->early = early;
    if (goes || !early)
        port_end(op, place, number, goes);
    return true;
}

WM_DEVICE int
port_await_condition(const wm_port_op_t &op, const wm_port_place_t *place,
                     uint32_t number)
{
    uint32_t value;
    const uint32_t *word = port_condition(op, place, number, &value);
    return port_is_closed(op) ? PORT_STOPS : port_await(op, word, value);
}

// Does one block's part of the end of a message that may be long. Returns true
// on the thread that ends the operation: the last one or, of a mapped receive,
// where only the first block has work, this block's. So the blocks agree,
// whichever of them stop.
WM_DEVICE bool
port_end_long(const wm_port_op_t &op, uint32_t block,
              const wm_port_place_t *place, uint32_t number)
{
    const bool leads = threadIdx.x == 0;
    const bool mapped = (op.what & WM_PORT_MAPPED) != 0;
    bool goes = port_block_goes(leads ? port_match(op, place) : PORT_WAITS);
    if (goes && place->nbytes <= WM_PORT_LL_BYTES) {
        const bool first = port_run_short(op, block, place, place->nbytes);
        return mapped ? first : port_is_last(op, &goes);
    }
    if (mapped && (!leads || block > 0)) {
        if (leads && !goes) // a short one would lack this block's part
            port_fail(op);
        return false;
    }
    if (leads && goes)
        goes = port_await_condition(op, place, number) == PORT_GOES;
    if (!mapped)
        return port_finish(op, place, number, block,
                           port_block_goes(goes ? PORT_GOES : PORT_STOPS),
                           false);
    port_end(op, place, number, goes);
    return true;
}

// Does one block's part of a long message: of its receive that begins, or of
// its end.
WM_DEVICE bool
port_run_long(const wm_port_op_t &op, uint32_t block,
              const wm_port_place_t *place)
{
    wm_port_t *port = op.port;
    const bool sends = port_sends(op), first = threadIdx.x == 0 && block == 0;
    const bool asks = !sends && (op.what & WM_PORT_BEGINS) != 0;
    const bool ends = (op.what & WM_PORT_ENDS) != 0;
    const uint32_t number = sends ? port->ended + 1 : port->begun + asks;
    if (sends && port->early) { // an earlier kernel has ended it
        bool goes = true;
        const bool last = port_is_last(op, &goes);
        if (last)
            port->early = 0;
        return last;
    }
    if (first && !port_is_closed(op)) {
        port->active = number;
        // A receiver asks before it has matched the sender, and waits for
        // nobody.
        if (asks)
            wm_store_system(&port->asks, number);
        if (!ends)
            port->begun = number;
    }
    return ends ? port_end_long(op, block, place, number) : first;
}

// Decides if a send that is not required is done now, as the step of this
// number.
WM_DEVICE bool
port_decide(const wm_port_op_t &op, uint32_t step, uint32_t looks)
{
    const wm_port_place_t *place = port_place(op);
    const uint32_t number = op.port->ended + 1;
    uint32_t value;
    if (wm_load_system(&op.port->step) % PORT_OVER != 0 || op.port->early
        || port_is_closed(op) || port_stops(op, looks)
        || wm_load_acquire(&place->matched) == 0
        || !wm_has_reached(port_condition(op, place, number, &value), value))
        return false;
    op.port->active = number;
    wm_store_system(&op.port->step, step);
    return true;
}

// Waits until one of the sends that are not required is to be done. Returns
// its index; p.count: none is any more. The first block decides, and the
// others follow, step by step.
template <typename params_t>
WM_DEVICE uint32_t
port_find_other(const params_t &p, uint32_t block, uint32_t step)
{
    wm_port_t *first = p.ops[p.required].port;
    for (uint32_t looks = 1;; looks++) {
        // Loaded first: what was decided before is seen below, as a fence is
        // behind each step that was done (port_is_last).
        const bool over = block == 0
                              ? wm_load_acquire(&first->others) % PORT_LEFT
                                    == p.required
                              : wm_load_acquire(&first->step) >= PORT_OVER;
        for (uint32_t i = p.required; i < p.count; i++) {
            const wm_port_op_t &op = p.ops[i];
            if (block == 0
                    ? port_decide(op, step, looks)
                    : wm_load_acquire(&op.port->step) % PORT_OVER == step)
                return i;
        }
        if (over && block == 0)
            wm_store_system(&first->step,
                            wm_load_system(&first->step) + PORT_OVER);
        if (over)
            return p.count;
    }
}

// Does one block's part of the long sends that are not required. Their blocks
// do one after the other, so that few of them serve many.
template <typename params_t>
WM_DEVICE void
port_run_others(const params_t &p, uint32_t block)
{
    __shared__ uint32_t found;
    wm_port_t *first = p.ops[p.required].port;
    const uint32_t blocks = p.ops[p.required].blocks;
    for (uint32_t step = 1;; step++) {
        if (threadIdx.x == 0)
            found = port_find_other(p, block, step);
        __syncthreads();
        const uint32_t at = found;
        if (at == p.count)
            break;
        const wm_port_op_t &op = p.ops[at];
        port_finish(op, port_place(op), op.port->ended + 1, block, true, true);
        __syncthreads(); // `found` has been read
    }
    // The last block to leave resets what the others have read.
    if (threadIdx.x != 0
        || atomicAdd(&first->others, PORT_LEFT) / PORT_LEFT + 1 < blocks)
        return;
    for (uint32_t i = p.required; i < p.count; i++)
        p.ops[i].port->step = 0;
    first->others = 0;
}

template <typename params_t>
WM_DEVICE void
port_run_all(const params_t &p)
{
    uint32_t block = blockIdx.x, at = 0;
    while (at < p.required && block >= p.ops[at].blocks)
        block -= p.ops[at++].blocks;
    if (at == p.required) {
        port_run_others(p, block);
        return;
    }
    const wm_port_op_t &op = p.ops[at];
    const uint32_t half = port_sends(op) ? WM_PORT_BEGINS : WM_PORT_ENDS;
    const wm_port_place_t *place = port_place(op);
    bool ends;
    if (op.nbytes > WM_PORT_LL_BYTES)
        ends = port_run_long(op, block, place);
    else {
        ends = (op.what & half) != 0
               && port_run_short(op, block, place, op.nbytes);
        if ((op.what & WM_PORT_SYNCS) != 0 && (op.what & WM_PORT_ENDS) != 0)
            ends = port_run_sync(op, block);
    }
    if (ends && p.required < p.count)
        atomicAdd(&p.ops[p.required].port->others, 1);
}

#else

// Does a short message, or its half that writes. Returns PORT_WAITS if lines,
// or slots, are not there yet: then nothing has been done.
WM_DEVICE int
port_try_short(const wm_port_op_t &op, const wm_port_place_t *place)
{
    wm_port_t *port = op.port;
    const uint32_t number = port->counts[0] + 1;
    const uint32_t blocks = port_line_blocks(place->nbytes);
    char *slot = port_slot(place, number);
    wm_line_t read = {};
    int result = PORT_GOES;
    port->active = number;
    for (uint32_t i = 0; port_sends(op) && i < blocks && result == PORT_GOES;
         i++)
        result = port_await(op, &port->heard[i], number - place->slots);
    for (uint32_t i = 0; i < port_lines(place->nbytes) && result == PORT_GOES;
         i++) {
        if (port_sends(op))
            wm_store_line(slot + i * WM_LINE_BYTES,
                          port_load(op.user, op.nbytes, i), number);
        else
            result = port_await_line(op, slot + i * WM_LINE_BYTES, number,
                                     &read);
        if (!port_sends(op) && result == PORT_GOES)
            port_store(op.user, place->nbytes, i, read);
    }
    for (uint32_t i = 0; i < blocks && result == PORT_GOES; i++) {
        port->counts[i] = number;
        if (!port_sends(op))
            wm_store_system(place->tells + i, number);
    }
    if (result == PORT_GOES) {
        port->left = number;
        port_keep_place(op, place);
    }
    return result;
}

WM_DEVICE int
port_try_sync(const wm_port_op_t &op, const wm_port_place_t *place)
{
    int result = PORT_GOES;
    for (uint32_t i = 0;
         i < port_line_blocks(place->nbytes) && result == PORT_GOES; i++)
        result = port_await(op, &op.port->heard[i], op.port->counts[i]);
    return result;
}

// Does the end of a long message. `early`: it is not required.
WM_DEVICE int
port_try_long(const wm_port_op_t &op, const wm_port_place_t *place, bool early)
{
    wm_port_t *port = op.port;
    const uint32_t number = port_sends(op) ? port->ended + 1 : port->begun;
    uint32_t value;
    if (port_sends(op) && port->early) {
        port->early = early;
        return PORT_GOES;
    }
    port->active = number;
    const uint32_t *word = port_condition(op, place, number, &value);
    const int result = port_await(op, word, value);
    if (result == PORT_GOES) {
        port_move(op, place, number, 0, 1);
        port_end(op, place, number, true);
        port->early = early;
    }
    return result;
}

// Does as much of an operation as needs no wait. *done: bits of its halves
// that have been done. Returns true when the operation has ended.
WM_DEVICE bool
port_try(const wm_port_op_t &op, uint32_t *done, bool early)
{
    const wm_port_place_t *place = port_place(op);
    const bool sends = port_sends(op),
               is_short = op.nbytes <= WM_PORT_LL_BYTES;
    const uint32_t left = op.what & ~*done;
    if (!is_short && !sends && (left & WM_PORT_BEGINS) != 0
        && !port_is_closed(op)) {
        op.port->active = ++op.port->begun;
        wm_store_system(&op.port->asks, op.port->begun);
        *done |= WM_PORT_BEGINS;
        return (left & WM_PORT_ENDS) == 0;
    }
    int result = port_match_open(op, place);
    if (result == PORT_GOES && is_short && sends
        && (left & WM_PORT_BEGINS) != 0) {
        result = port_try_short(op, place);
        *done |= result == PORT_GOES ? WM_PORT_BEGINS : 0;
        if (result == PORT_GOES && (op.what & WM_PORT_SYNCS) != 0
            && (left & WM_PORT_ENDS) != 0)
            return false;
    }
    else if (result == PORT_GOES && is_short && sends)
        result = port_try_sync(op, place);
    else if (result == PORT_GOES)
        result = place->nbytes <= WM_PORT_LL_BYTES
                     ? port_try_short(op, place)
                     : port_try_long(op, place, early);
    if (result == PORT_STOPS && !early) {
        port_fail(op);
        op.port->left = op.port->active;
    }
    return result != PORT_WAITS;
}

template <typename params_t>
WM_DEVICE void
port_run_all(const params_t &p)
{
    uint32_t done[WM_PORT_OPS] = {};
    bool ended[WM_PORT_OPS] = {};
    uint32_t left = wm_peer_works() ? p.required : 0;
    for (; left > 0; wm_pause())
        for (uint32_t i = 0; i < p.count; i++) {
            const bool early = i >= p.required;
            if (ended[i] || (early && port_place(p.ops[i])->matched == 0))
                continue;
            ended[i] = port_try(p.ops[i], &done[i], early);
            left -= ended[i] && !early;
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

// SPDX-License-Identifier: BSD-3-Clause
#include "kernels/simple.h"
#include "kernels/abort.h"
#include "kernels/rule.h"

#define SIMPLE_AT_ONCE 6 // loads that a thread has under way
#define NEVER (1u << 30) // in place of steps: no more come

struct alignas(16) wm_simple16 {
    uint64_t part[2];
};

template <typename element_t> struct wm_simple_bytes {
    unsigned char each[sizeof(element_t)];
};

WM_DEVICE wm_ll_rank_t
simple_rank(const wm_simple_params_t &p, uint32_t rank)
{
    return wm_rank_of(p.few, p.many, p.size, rank);
}

WM_DEVICE char *
simple_memory(const wm_simple_params_t &p, uint32_t rank)
{
    return simple_rank(p, rank).ll - p.before;
}

WM_DEVICE wm_simple_head_t *
simple_head(const wm_simple_params_t &p, uint32_t rank)
{
    return (wm_simple_head_t *)simple_memory(p, rank);
}

// Returns the address of a chunk's slot in the memory of `to`, which `from`
// writes.
WM_DEVICE char *
slot_of(const wm_simple_params_t &p, uint32_t channel, uint32_t from,
        uint32_t to, uint32_t number)
{
    const uint32_t other = wm_rank_around(from + p.size - to - 1, p.size);
    const uint32_t index = (channel * (p.size - 1) + other) * p.slots
                           + number % p.slots;
    return simple_memory(p, to) + WM_SIMPLE_HEAD
           + (size_t)index * p.slot_bytes;
}

// Returns the bytes of a chunk of a span of `nbytes`; the same at both ends.
WM_DEVICE uint32_t
chunk_of(const wm_simple_params_t &p, uint64_t nbytes)
{
    if (nbytes >= (uint64_t)p.slot_bytes * p.channels)
        return p.slot_bytes;
    const uint32_t each = ((uint32_t)nbytes + p.channels - 1) / p.channels;
    return (each + WM_SIMPLE_ALIGN - 1) / WM_SIMPLE_ALIGN * WM_SIMPLE_ALIGN;
}

// The part of a span that goes through a channel in a step.
struct wm_simple_part {
    uint64_t at;
    uint32_t nbytes; // 0: none
};

WM_DEVICE wm_simple_part
part_of(const wm_simple_params_t &p, uint64_t nbytes, uint32_t channel,
        uint32_t step)
{
    const uint32_t chunk = chunk_of(p, nbytes);
    const uint64_t at = ((uint64_t)step * p.channels + channel) * chunk;
    if (at >= nbytes)
        return {0, 0};
    return {at, nbytes - at < chunk ? (uint32_t)(nbytes - at) : chunk};
}

// Waits until one thread of the block sees the word reach a value; all threads
// call this. Returns false if the word never will, as the call of that rank
// has ended.
WM_DEVICE bool
await_word(const wm_simple_params_t &p, const uint32_t *word, uint32_t wanted,
           uint32_t rank)
{
    bool ended = false, come = !wm_block_leads();
    for (uint32_t looks = 1; !come && !ended; looks++) {
        ended = wm_peer_has_ended(simple_rank(p, rank), p.past, p.done, looks);
        come = (int32_t)(wm_load_acquire(word) - wanted) >= 0;
        if (!come)
            wm_pause();
    }
    return wm_block_all(come);
}

// Loads the units that exist. Were one loaded in place of each other one, all
// threads would load one address of the host.
template <uint32_t AT_ONCE, bool far, typename unit_t>
WM_DEVICE void
load_units(unit_t *units, const char *src, uint32_t at, uint32_t step,
           uint32_t end)
{
    WM_UNROLL
    for (uint32_t k = 0; k < AT_ONCE; k++) {
        const unit_t *one = (const unit_t *)(src + at + k * step);
        if (at + k * step < end)
            units[k] = far ? wm_load_far(one) : *one;
    }
}

// Copies a whole number of units. `far`: the source is a slot, which others
// write while the kernel runs, and needs special loads.
template <typename unit_t, bool far>
WM_DEVICE void
copy_units(char *dst, const char *src, uint32_t nbytes)
{
    const uint32_t step = wm_block_threads() * sizeof(unit_t);
    for (uint32_t at = wm_block_thread() * sizeof(unit_t); at < nbytes;
         at += SIMPLE_AT_ONCE * step) {
        unit_t values[SIMPLE_AT_ONCE];
        load_units<SIMPLE_AT_ONCE, far>(values, src, at, step, nbytes);
        WM_UNROLL
        for (uint32_t k = 0; k < SIMPLE_AT_ONCE; k++)
            if (at + k * step < nbytes)
                *(unit_t *)(dst + at + k * step) = values[k];
    }
}

template <bool far>
WM_DEVICE void
copy_bytes(uint32_t unit, char *dst, const char *src, uint32_t nbytes)
{
    const uint32_t whole = unit == 16  ? nbytes / 16 * 16
                           : unit >= 4 ? nbytes / 4 * 4
                                       : 0;
    if (unit == 16 && whole > 0)
        copy_units<wm_simple16, far>(dst, src, whole);
    else if (whole > 0)
        copy_units<uint32_t, far>(dst, src, whole);
    if (whole < nbytes)
        copy_units<uint8_t, far>(dst + whole, src + whole, nbytes - whole);
}

template <bool far>
WM_CALLED void
call_copy_bytes(uint32_t unit, char *dst, const char *src, uint32_t nbytes)
{
    copy_bytes<far>(unit, dst, src, nbytes);
}

// Kernels that reduce call the copy, or the file would take twice as long to
// compile. The kernel that only moves does not: 16 MiB would take 5 % longer.
template <bool far, bool reduces>
WM_DEVICE void
copy_chunk(const wm_simple_params_t &p, char *dst, const char *src,
           uint32_t nbytes)
{
    if (reduces)
        call_copy_bytes<far>(p.unit, dst, src, nbytes);
    else
        copy_bytes<far>(p.unit, dst, src, nbytes);
}

// Return what a rank gives another, and takes from it. In the first half of an
// Allreduce a rank gives the others' parts and takes its own. In the second
// half (`back`) it gives its own part back and takes theirs.
template <bool back>
WM_DEVICE const wm_simple_span_t &
given_to(const wm_simple_params_t &p, uint32_t to)
{
    return back ? p.takes[to] : p.gives[to];
}

template <bool back>
WM_DEVICE const wm_simple_span_t &
taken_from(const wm_simple_params_t &p, uint32_t from)
{
    return back ? p.gives[from] : p.takes[from];
}

// Returns the rank of turn `i` that is given to. Channels begin with different
// ranks, so that no link gets the data of all at once.
WM_DEVICE uint32_t
taker(const wm_simple_params_t &p, uint32_t channel, uint32_t i)
{
    const uint32_t turn = (channel + i) % (p.size - 1);
    return wm_rank_around(p.rank + 1 + turn, p.size);
}

// Return the chunks sent to, or got from, a rank before this kernel, or before
// this half of it.
WM_DEVICE uint32_t
sent_to(const wm_simple_params_t &p, uint32_t channel, uint32_t to)
{
    return p.own->counts[channel][to].sent;
}

WM_DEVICE uint32_t
got_from(const wm_simple_params_t &p, uint32_t channel, uint32_t from)
{
    return p.own->counts[channel][from].got;
}

// Returns the slot in which `to` takes our chunk of a step; nullptr if the
// slot will never be free.
WM_DEVICE char *
await_slot(const wm_simple_params_t &p, uint32_t channel, uint32_t to,
           uint32_t step)
{
    const wm_simple_end_t *end = &simple_head(p, p.rank)->ends[channel][to];
    const uint32_t number = sent_to(p, channel, to) + step;
    if (!await_word(p, &end->taken, number + 1 - p.slots, to))
        return nullptr;
    return slot_of(p, channel, p.rank, to, number);
}

// Called by one thread, behind a fence: publishes that the chunk of a step can
// be taken.
WM_DEVICE void
publish_arrived(const wm_simple_params_t &p, uint32_t channel, uint32_t to,
                uint32_t step)
{
    wm_store_system(&simple_head(p, to)->ends[channel][p.rank].arrived,
                    sent_to(p, channel, to) + step + 1);
}

// Returns the chunk that arrived in a step; nullptr if it never will.
WM_DEVICE const char *
await_chunk(const wm_simple_params_t &p, uint32_t channel, uint32_t from,
            uint32_t step)
{
    const wm_simple_end_t *end = &simple_head(p, p.rank)->ends[channel][from];
    const uint32_t number = got_from(p, channel, from) + step;
    if (!await_word(p, &end->arrived, number + 1, from))
        return nullptr;
    return slot_of(p, channel, from, p.rank, number);
}

// Called by one thread: publishes that the slot may be written again.
WM_DEVICE void
publish_taken(const wm_simple_params_t &p, uint32_t channel, uint32_t from,
              uint32_t step)
{
    wm_store_system(&simple_head(p, from)->ends[channel][p.rank].taken,
                    got_from(p, channel, from) + step + 1);
}

template <bool back, bool reduces>
WM_DEVICE bool
give_chunks(const wm_simple_params_t &p, uint32_t channel, uint32_t step)
{
    const char *passed = nullptr;
    bool any = false;
    const uint32_t *reduced = &p.own->reduced[channel];
    if (back
        && (!await_word(p, reduced, step + 1, p.rank)
            || !wm_block_all(wm_load_system(reduced) != NEVER)))
        return false; // ranks that wait for it get nothing either
    if (!back && p.from != WM_SIMPLE_NOBODY) {
        const wm_simple_part part = part_of(p, p.takes[p.from].nbytes, channel,
                                            step);
        if (part.nbytes == 0)
            return true;
        passed = await_chunk(p, channel, p.from, step);
        if (passed == nullptr)
            return false;
        copy_chunk<true, reduces>(p, p.dst + p.takes[p.from].at + part.at,
                                  passed, part.nbytes);
    }
    for (uint32_t i = 0; i + 1 < p.size; i++) {
        const uint32_t to = taker(p, channel, i);
        const wm_simple_part part = part_of(p, given_to<back>(p, to).nbytes,
                                            channel, step);
        if (part.nbytes == 0)
            continue;
        char *slot = await_slot(p, channel, to, step);
        if (slot == nullptr)
            return false;
        if (passed != nullptr)
            copy_chunk<true, reduces>(p, slot, passed, part.nbytes);
        else
            copy_chunk<false, reduces>(
                p, slot,
                (back ? p.dst : p.src) + given_to<back>(p, to).at + part.at,
                part.nbytes);
        any = true;
    }
    if (!any && !p.overlaid)
        return true;
    wm_block_sync();
    if (!wm_block_publishes()) // other threads wait for the next slot
        return true;
    if (passed != nullptr)
        publish_taken(p, channel, p.from, step);
    if (any)
        wm_fence_system();
    for (uint32_t i = 1; i < p.size && any; i++) {
        const uint32_t to = wm_rank_around(p.rank + i, p.size);
        if (part_of(p, given_to<back>(p, to).nbytes, channel, step).nbytes > 0)
            publish_arrived(p, channel, to, step);
    }
    if (p.overlaid) // cleared only if overlaid
        wm_store_system(&p.own->read[channel], step + 1);
    return true;
}

// Publishes that all chunks of a step have been read.
template <bool back>
WM_DEVICE void
leave_slots(const wm_simple_params_t &p, uint32_t channel, uint32_t step)
{
    wm_block_sync();
    for (uint32_t i = 1; i < p.size && wm_block_leads(); i++) {
        const uint32_t from = wm_rank_around(p.rank + p.size - i, p.size);
        if (from != p.from
            && part_of(p, taken_from<back>(p, from).nbytes, channel, step)
                       .nbytes
                   > 0)
            publish_taken(p, channel, from, step);
    }
}

// Called by one thread, after all of its block: publishes how many steps of a
// channel can be given back.
WM_DEVICE void
publish_reduced(const wm_simple_params_t &p, uint32_t channel, uint32_t steps)
{
    wm_fence_device();
    wm_store_system(&p.own->reduced[channel], steps);
}

// The second half, `back`, is that of kernels which reduce.
template <bool back> struct wm_simple_mover {
    WM_DEVICE bool
    take(const wm_simple_params_t &p, uint32_t channel, uint32_t step)
    {
        for (uint32_t i = 0; i < p.size; i++) {
            const uint32_t from = wm_rank_around(p.rank + p.size - i, p.size);
            const wm_simple_part part = part_of(
                p, taken_from<back>(p, from).nbytes, channel, step);
            char *dst = p.dst + taken_from<back>(p, from).at + part.at;
            const char *own = (back ? p.dst : p.src)
                              + given_to<back>(p, from).at + part.at;
            if (part.nbytes == 0 || from == p.from
                || (from == p.rank && dst == own))
                continue;
            const char *chunk = from == p.rank
                                    ? own
                                    : await_chunk(p, channel, from, step);
            if (chunk == nullptr)
                return false;
            if (from == p.rank)
                copy_chunk<false, back>(p, dst, chunk, part.nbytes);
            else
                copy_chunk<true, back>(p, dst, chunk, part.nbytes);
        }
        leave_slots<back>(p, channel, step);
        return true;
    }
};

// Reduces units of several ranks' chunks, in rank order, all at one place.
template <typename unit_t, typename rule_t>
WM_DEVICE void
fold_units(rule_t rule, const wm_simple_params_t &p, uint32_t channel,
           uint32_t step, uint64_t part, char *into, uint32_t begin,
           uint32_t end)
{
    constexpr int EACH = sizeof(unit_t) / sizeof(typename rule_t::element_t);
    constexpr uint32_t AT_ONCE = EACH > 4 ? 2 : 4;
    typedef typename rule_t::acc_t acc_t;
    const uint32_t stride = wm_block_threads() * sizeof(unit_t);
    for (uint32_t at = begin + wm_block_thread() * sizeof(unit_t); at < end;
         at += AT_ONCE * stride) {
        acc_t acc[AT_ONCE][EACH] = {};
        bool first = true;
        for (uint32_t from = 0; from < p.size; from++) {
            if (p.takes[from].nbytes == 0)
                continue;
            const bool own = from == p.rank;
            const char *src = own ? p.src + p.gives[from].at + part
                                  : slot_of(p, channel, from, p.rank,
                                            got_from(p, channel, from) + step);
            unit_t units[AT_ONCE];
            if (own)
                load_units<AT_ONCE, false>(units, src, at, stride, end);
            else
                load_units<AT_ONCE, true>(units, src, at, stride, end);
            WM_UNROLL
            for (uint32_t k = 0; k < AT_ONCE; k++) {
                acc_t values[EACH];
                wm_widen(rule, units[k], values);
                if (!first)
                    rule.fold(p.op, acc[k], values, EACH);
                WM_UNROLL
                for (int i = 0; i < EACH && first; i++)
                    acc[k][i] = values[i];
            }
            first = false;
        }
        WM_UNROLL
        for (uint32_t k = 0; k < AT_ONCE; k++)
            if (at + k * stride < end)
                *(unit_t *)(into + at + k * stride) = wm_narrow<unit_t>(
                    rule, p.average, acc[k]);
    }
}

template <typename rule_t> struct wm_simple_folder {
    WM_DEVICE bool
    take(const wm_simple_params_t &p, uint32_t channel, uint32_t step)
    {
        typedef typename rule_t::element_t element_t;
        const rule_t rule = rule_t();
        wm_simple_part part = {0, 0};
        for (uint32_t from = 0; from < p.size; from++) {
            if (p.takes[from].nbytes == 0)
                continue;
            part = part_of(p, p.takes[from].nbytes, channel, step);
            if (part.nbytes > 0 && from != p.rank
                && await_chunk(p, channel, from, step) == nullptr)
                return false;
        }
        if (part.nbytes == 0) // no data, or no `dst`
            return true;
        const bool passes = p.onto != WM_SIMPLE_NOBODY;
        char *into = passes ? await_slot(p, channel, p.onto, step)
                            : p.dst + p.takes[0].at + part.at;
        if (into == nullptr)
            return false;
        const uint32_t whole = p.unit == 16 ? part.nbytes / 16 * 16 : 0;
        if (whole > 0)
            fold_units<wm_simple16>(rule, p, channel, step, part.at, into, 0,
                                    whole);
        if (whole < part.nbytes && p.unit % alignof(element_t) == 0)
            fold_units<element_t>(rule, p, channel, step, part.at, into, whole,
                                  part.nbytes);
        else if (whole < part.nbytes)
            fold_units<wm_simple_bytes<element_t>>(
                rule, p, channel, step, part.at, into, whole, part.nbytes);
        leave_slots<false>(p, channel, step);
        if (passes && wm_block_publishes()) {
            wm_fence_system();
            publish_arrived(p, channel, p.onto, step);
        }
        return true;
    }
};

// Returns the number of chunks of a span that went through a channel.
WM_DEVICE uint32_t
chunks_of(const wm_simple_params_t &p, uint64_t nbytes, uint32_t channel)
{
    uint32_t count = 0;
    if (nbytes == 0)
        return 0;
    const uint32_t chunk = chunk_of(p, nbytes);
    const uint64_t all = (nbytes + chunk - 1) / chunk;
    if (all > channel)
        count = (uint32_t)((all - channel - 1) / p.channels) + 1;
    return count;
}

// Adds the chunks of this half, or kernel, to the counts, as the other end
// does; the next one continues there. Each count belongs to one block, as
// another block may have ended long before. A rank that did not take all
// chunks frees the slots nevertheless, or the next call of the sender would
// wait.
template <bool back>
WM_DEVICE void
count_chunks(const wm_simple_params_t &p, const wm_block_role_t &role,
             uint32_t channel, bool took_all)
{
    for (uint32_t rank = 0; rank < p.size && wm_block_leads(); rank++) {
        wm_simple_count_t *count = &p.own->counts[channel][rank];
        const bool onto = rank == p.onto;
        if (rank == p.rank)
            continue;
        if (onto ? role.takes : role.gives)
            count->sent += chunks_of(p,
                                     onto ? p.takes[p.rank].nbytes
                                          : given_to<back>(p, rank).nbytes,
                                     channel);
        if (!(rank == p.from ? role.gives : role.takes))
            continue;
        count->got += chunks_of(p, taken_from<back>(p, rank).nbytes, channel);
        if (!took_all)
            wm_store_system(&simple_head(p, rank)->ends[channel][p.rank].taken,
                            count->got);
    }
}

// Goes through all chunks, or those of a half. Returns false if other ranks
// have aborted. Counts the chunks in any case.
template <bool gathers, bool back, bool reduces, typename taker_t>
WM_DEVICE bool
go_through(taker_t taker, const wm_simple_params_t &p,
           const wm_block_role_t &role, bool goes_on)
{
    wm_simple_own_t *own = p.own;
    for (uint32_t step = 0; step < p.steps && goes_on; step++)
        for (uint32_t channel = role.first; channel < p.channels && goes_on;
             channel += role.step) {
            if (role.gives)
                goes_on = give_chunks<back, reduces>(p, channel, step);
            if (!goes_on && p.overlaid && wm_block_leads()) // no block waits
                wm_store_system(&own->read[channel], NEVER);
            if (role.takes && goes_on && p.overlaid)
                goes_on = await_word(p, &own->read[channel], step + 1, p.rank);
            if (role.takes && goes_on)
                goes_on = taker.take(p, channel, step);
            if (gathers && role.takes && wm_block_publishes())
                publish_reduced(p, channel, goes_on ? step + 1 : NEVER);
        }
    wm_block_sync(); // all words are published
    for (uint32_t channel = role.first; channel < p.channels;
         channel += role.step)
        count_chunks<back>(p, role, channel, goes_on);
    return goes_on;
}

// With more than two ranks another block may have aborted before.
WM_DEVICE void
publish_begun(const wm_simple_params_t &p)
{
    if (p.size > 2)
        wm_raise_word(p.word, p.begun);
    else
        wm_store_system(p.word, p.begun);
}

template <bool gathers, bool reduces, typename taker_t>
WM_DEVICE void
simple_run(taker_t taker, const wm_simple_params_t &p)
{
    wm_simple_own_t *own = p.own;
    const wm_block_role_t role = wm_block_role(p.channels);
    if (wm_peer_publishes() && p.word != nullptr)
        publish_begun(p);
    bool goes_on = go_through<gathers, false, reduces>(taker, p, role, true);
    if (gathers) {
        wm_block_sync(); // the chunks of the block are counted
        goes_on = go_through<false, true, reduces>(wm_simple_mover<true>(), p,
                                                   role, goes_on);
    }
    if (!goes_on && wm_block_leads())
        wm_abort_call(p.word, p.left);
    if (!wm_grid_ended(&own->blocks))
        return;
    for (uint32_t channel = 0; channel < p.channels; channel++) {
        if (p.overlaid)
            wm_store_system(&own->read[channel], 0);
        if (gathers)
            wm_store_system(&own->reduced[channel], 0);
    }
    if (p.word != nullptr)
        wm_store_system(p.word, p.done);
}

WM_KERNEL_OF_HALF(wm_simple_move, wm_simple_params_t)
{
    simple_run<false, false>(wm_simple_mover<false>(), p);
}

#define X(name, ...)                                                          \
    WM_KERNEL_OF_HALF(wm_simple_##name, wm_simple_params_t)                   \
    {                                                                         \
        simple_run<false, true>(wm_simple_folder<wm_rule_##name>(), p);       \
    }                                                                         \
    WM_KERNEL_OF_HALF(wm_simple_all_##name, wm_simple_params_t)               \
    {                                                                         \
        simple_run<true, true>(wm_simple_folder<wm_rule_##name>(), p);        \
    }
WM_REDUCE_KERNEL_ROWS(X)
#undef X

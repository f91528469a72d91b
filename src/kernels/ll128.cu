// SPDX-License-Identifier: BSD-3-Clause
// Kernels of the LL128 protocol: lines of 128 bytes, of which 112 are data,
// not 120 as in NCCL (kernels/ll128_line.h). Otherwise as in ll.cu.
#include "kernels/ll_view.h"
#include "kernels/rule.h"
#include "kernels/ll128_line.h"

#define LL128_UNIT 16u  // bytes of a lane
#define LL128_UNITS 7u  // lanes of a line with data
#define LL128_AT_ONCE 4 // lines that a thread has under way

// The lines of a warp: `first`, `first` + `step`, and so on.
struct wm_ll128_lines_t {
    uint32_t first, step;
};

WM_DEVICE wm_ll128_lines_t
ll128_lines()
{
    const uint32_t each = wm_ll128_lines();
    return {wm_peer_warp() * each, wm_peer_warps() * each};
}

WM_DEVICE uint32_t
ll128_lines_of(uint32_t nbytes)
{
    return (nbytes + WM_LL128_PAYLOAD - 1) / WM_LL128_PAYLOAD;
}

// A block that goes to a rank, or comes from one.
struct wm_ll128_block_t {
    uint64_t at;
    uint32_t nbytes;
};

WM_DEVICE wm_ll128_block_t
ll128_block(const wm_ll_side_t &side, uint32_t rank)
{
    return {block_at(side, rank), side.nbytes};
}

// Returns the offset in the block of a lane's bytes of a line. The lane of the
// flag gets an offset past the end.
WM_DEVICE uint32_t
ll128_at(const wm_ll128_block_t &block, uint32_t line, uint32_t lane)
{
    return lane < LL128_UNITS ? (line * LL128_UNITS + lane) * LL128_UNIT
                              : block.nbytes;
}

WM_DEVICE wm_ll128_t
ll128_load_part(const wm_ll_view &view, const char *block, uint32_t at,
                uint32_t nbytes)
{
    const uint32_t unit = view.p.unit;
    wm_ll128_t value = {};
    const bool whole = at + LL128_UNIT <= nbytes;
    if (whole && unit == LL128_UNIT)
        return *(const wm_ll128_t *)(block + at);
    if (whole && unit >= 4) {
        const uint32_t *words = (const uint32_t *)(block + at);
        value.part[0] = (uint64_t)words[1] << 32 | words[0];
        value.part[1] = (uint64_t)words[3] << 32 | words[2];
        return value;
    }
    uint64_t low = 0, high = 0;
    WM_ROLLED
    for (uint32_t i = 0; i < LL128_UNIT && at + i < nbytes; i++) {
        const uint64_t byte = (uint64_t)(uint8_t)block[at + i] << i % 8 * 8;
        low |= i < 8 ? byte : 0;
        high |= i < 8 ? 0 : byte;
    }
    value.part[0] = low;
    value.part[1] = high;
    return value;
}

WM_DEVICE void
ll128_save_part(const wm_ll_view &view, char *block, uint32_t at,
                uint32_t nbytes, const wm_ll128_t &value)
{
    const bool whole = at + LL128_UNIT <= nbytes;
    if (whole && view.p.unit == LL128_UNIT) {
        *(wm_ll128_t *)(block + at) = value;
        return;
    }
    if (whole && view.p.unit >= 4) {
        uint32_t *words = (uint32_t *)(block + at);
        words[0] = (uint32_t)value.part[0];
        words[1] = (uint32_t)(value.part[0] >> 32);
        words[2] = (uint32_t)value.part[1];
        words[3] = (uint32_t)(value.part[1] >> 32);
        return;
    }
    const uint64_t low = value.part[0], high = value.part[1];
    WM_ROLLED
    for (uint32_t i = 0; i < LL128_UNIT && at + i < nbytes; i++)
        block[at + i] = (char)((i < 8 ? low : high) >> i % 8 * 8);
}

WM_DEVICE uint64_t
ll128_flag(const wm_ll_view &view)
{
    return (uint64_t)view.number << 32 | view.number;
}

// The functions below handle AT_ONCE lines of a warp, from `base` on. Lanes
// come and go together, and all loads are issued before any value is used.
//
// Loads lines of this rank's data.
template <uint32_t AT_ONCE>
WM_DEVICE void
ll128_load(const wm_ll_view &view, const wm_ll128_block_t &block,
           uint32_t base, uint32_t lane, wm_ll128_t *values)
{
    const wm_ll128_lines_t mine = ll128_lines();
    WM_UNROLL
    for (uint32_t k = 0; k < AT_ONCE; k++)
        values[k] = ll128_load_part(
            view, view.p.src + block.at,
            ll128_at(block, base + k * mine.step + wm_ll128_line(), lane),
            block.nbytes);
}

// Stores lines in this rank's destination.
template <uint32_t AT_ONCE>
WM_DEVICE void
ll128_save(const wm_ll_view &view, const wm_ll128_block_t &block,
           uint32_t base, uint32_t lane, const wm_ll128_t *values)
{
    const wm_ll128_lines_t mine = ll128_lines();
    WM_UNROLL
    for (uint32_t k = 0; k < AT_ONCE; k++)
        ll128_save_part(
            view, view.p.dst + block.at,
            ll128_at(block, base + k * mine.step + wm_ll128_line(), lane),
            block.nbytes, values[k]);
}

// Writes lines into a rank's LL buffer. Returns false if the rank takes no
// more.
template <uint32_t AT_ONCE>
WM_DEVICE bool
ll128_give(const wm_ll_view &view, uint32_t to, uint32_t nbytes, uint32_t base,
           uint32_t lane, wm_ll128_t *values)
{
    const wm_ll128_lines_t mine = ll128_lines();
    const uint32_t lines = ll128_lines_of(nbytes);
    char *buffer = buffer_of(view, view.p.rank, to);
    if (base == mine.first && base < lines
        && !wm_warp_all(await_room(view, to)))
        return false;
    wm_warp_sync();
    WM_UNROLL
    for (uint32_t k = 0; k < AT_ONCE; k++) {
        const uint32_t line = base + k * mine.step + wm_ll128_line();
        if (lane == LL128_UNITS)
            values[k].part[0] = values[k].part[1] = ll128_flag(view);
        if (line < lines)
            wm_ll128_store(buffer + (size_t)line * WM_LL128_BYTES, lane,
                           values[k]);
    }
    return true;
}

// Reads lines from the LL buffer that a rank fills. Returns false if they will
// never come.
template <uint32_t AT_ONCE>
WM_DEVICE bool
ll128_await(const wm_ll_view &view, uint32_t from, uint32_t nbytes,
            uint32_t base, uint32_t lane, wm_ll128_t *values)
{
    const wm_ll128_lines_t mine = ll128_lines();
    const uint32_t lines = ll128_lines_of(nbytes);
    const char *buffer = buffer_of(view, from, view.p.rank);
    bool come = false;
    for (uint32_t looks = 1; !come; looks++) {
        const bool ended = !wm_warp_all(!peer_has_ended(view, from, looks));
        uint64_t flags[AT_ONCE];
        WM_UNROLL
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            const uint32_t line = base + k * mine.step + wm_ll128_line();
            flags[k] = ll128_flag(view);
            if (line < lines)
                flags[k] = wm_ll128_load_flag(buffer
                                              + (size_t)line * WM_LL128_BYTES);
        }
        come = true;
        WM_UNROLL
        for (uint32_t k = 0; k < AT_ONCE; k++)
            come = come && flags[k] == ll128_flag(view);
        come = wm_warp_all(come);
        if (!come && ended)
            return false;
        if (!come)
            wm_pause();
    }
    WM_UNROLL
    for (uint32_t k = 0; k < AT_ONCE; k++) {
        const uint32_t line = base + k * mine.step + wm_ll128_line();
        if (line < lines)
            values[k] = wm_ll128_load(buffer + (size_t)line * WM_LL128_BYTES,
                                      lane);
    }
    return true;
}

template <uint32_t AT_ONCE>
WM_DEVICE bool
ll128_take(const wm_ll_view &view, uint32_t from,
           const wm_ll128_block_t &block, uint32_t base, uint32_t lane)
{
    wm_ll128_t values[AT_ONCE] = {};
    if (!ll128_await<AT_ONCE>(view, from, block.nbytes, base, lane, values))
        return false;
    ll128_save<AT_ONCE>(view, block, base, lane, values);
    return true;
}

// Reduces the lines of all ranks that give, in rank order, `own` among them.
// Returns false if some lines will never come.
template <uint32_t AT_ONCE, typename rule_t>
WM_DEVICE bool
ll128_reduce(rule_t rule, const wm_ll_view &view, const wm_ll128_block_t &own,
             uint32_t base, uint32_t lane, wm_ll128_t *reduced)
{
    constexpr int EACH = LL128_UNIT / sizeof(typename rule_t::element_t);
    const wm_ll_params_t &p = view.p;
    typename rule_t::acc_t acc[AT_ONCE][EACH] = {}, values[EACH];
    wm_ll128_t kept[AT_ONCE] = {}, read[AT_ONCE] = {};
    if (is_of(p.takes, p.rank))
        ll128_load<AT_ONCE>(view, own, base, lane, kept);
    for (uint32_t i = 0; i < p.takes.count; i++) {
        const uint32_t from = p.takes.first + i;
        if (from != p.rank
            && !ll128_await<AT_ONCE>(view, from, own.nbytes, base, lane, read))
            return false;
        WM_UNROLL
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            const bool is_own = from == p.rank; // a value, no address
            const wm_ll128_t unit = {
                {is_own ? kept[k].part[0] : read[k].part[0],
                 is_own ? kept[k].part[1] : read[k].part[1]}};
            wm_widen(rule, unit, values);
            if (i > 0)
                rule.fold(p.op, acc[k], values, EACH);
            WM_UNROLL
            for (int j = 0; j < EACH && i == 0; j++)
                acc[k][j] = values[j];
        }
    }
    WM_UNROLL
    for (uint32_t k = 0; k < AT_ONCE; k++)
        reduced[k] = wm_narrow<wm_ll128_t>(rule, p.average, acc[k]);
    return true;
}

// Gives all lines to the other ranks. A block that all of them get is loaded
// once.
WM_DEVICE void
ll128_give_all(const wm_ll_view &view, uint32_t lane)
{
    const wm_ll_params_t &p = view.p;
    const wm_ll128_lines_t mine = ll128_lines();
    const uint32_t lines = ll128_lines_of(p.gives.nbytes);
    const bool any = p.gives.count > is_of(p.gives, p.rank);
    for (uint32_t base = mine.first; base < lines && any;
         base += LL128_AT_ONCE * mine.step) {
        wm_ll128_t values[LL128_AT_ONCE];
        for (uint32_t k = 1; k < p.size; k++) {
            const uint32_t to = wm_rank_around(p.rank + k, p.size);
            const wm_ll128_block_t block = ll128_block(p.gives, to);
            if (k == 1 || p.gives.step > 0)
                ll128_load<LL128_AT_ONCE>(view, block, base, lane, values);
            if (is_of(p.gives, to)
                && !ll128_give<LL128_AT_ONCE>(view, to, block.nbytes, base,
                                              lane, values))
                return;
        }
    }
}

WM_DEVICE void
ll128_take_all(const wm_ll_view &view, uint32_t from, uint32_t lane)
{
    const wm_ll_params_t &p = view.p;
    const wm_ll128_lines_t mine = ll128_lines();
    const wm_ll128_block_t own = {block_at(p.gives, from), p.takes.nbytes};
    const wm_ll128_block_t block = ll128_block(p.takes, from);
    const uint32_t lines = ll128_lines_of(block.nbytes);
    bool goes_on = is_of(p.takes, from)
                   && (from != p.rank || p.src + own.at != p.dst + block.at);
    for (uint32_t base = mine.first; base < lines && goes_on;
         base += LL128_AT_ONCE * mine.step)
        if (from == p.rank) {
            wm_ll128_t values[LL128_AT_ONCE];
            ll128_load<LL128_AT_ONCE>(view, own, base, lane, values);
            ll128_save<LL128_AT_ONCE>(view, block, base, lane, values);
        }
        else
            goes_on = ll128_take<LL128_AT_ONCE>(view, from, block, base, lane);
}

// Lines that a thread has under way: fewer for one-byte elements, as each
// element is computed by itself.
template <typename rule_t>
constexpr uint32_t
    ll128_at_once = sizeof(typename rule_t::element_t) == 1 ? 2
                                                            : LL128_AT_ONCE;

template <typename rule_t>
WM_DEVICE void
ll128_reduce_all(rule_t rule, const wm_ll_view &view, uint32_t lane)
{
    constexpr uint32_t AT_ONCE = ll128_at_once<rule_t>;
    const wm_ll_params_t &p = view.p;
    const wm_ll128_lines_t mine = ll128_lines();
    const wm_ll128_block_t own = {block_at(p.gives, p.rank), p.takes.nbytes};
    const wm_ll128_block_t block = ll128_block(p.takes, p.rank);
    const uint32_t lines = p.takes.count > 0 ? ll128_lines_of(own.nbytes) : 0;
    bool goes_on = true;
    for (uint32_t base = mine.first; base < lines && goes_on;
         base += AT_ONCE * mine.step) {
        wm_ll128_t reduced[AT_ONCE];
        goes_on = ll128_reduce<AT_ONCE>(rule, view, own, base, lane, reduced);
        if (goes_on)
            ll128_save<AT_ONCE>(view, block, base, lane, reduced);
    }
}

// Begins a call. If several blocks pass on, another block may have aborted
// before this one begins. The word is raised only, so that a rank that waits
// for this block sees the abort.
WM_DEVICE wm_ll_view
ll128_begin(const wm_ll_params_t &p)
{
    if (wm_peer_publishes() && p.word != nullptr && p.in_parts && p.size > 2)
        wm_raise_word(p.word, p.begun);
    else if (wm_peer_publishes() && p.word != nullptr)
        wm_store_system(p.word, p.begun);
    return ll_begin(p);
}

WM_KERNEL(wm_ll128_move, wm_ll_params_t)
{
    const wm_ll_view view = ll128_begin(p);
    if (wm_peer_works()) {
        WM_EACH_LL128_LANE(lane)
        ll128_give_all(view, lane);
        WM_EACH_LL128_LANE(lane)
        for (uint32_t k = 0; k < p.size; k++)
            ll128_take_all(view, wm_rank_around(p.rank + p.size - k, p.size),
                           lane);
    }
    ll_end(view);
}

#define X(name, ...)                                                          \
    WM_KERNEL(wm_ll128_##name, wm_ll_params_t)                                \
    {                                                                         \
        const wm_ll_view view = ll128_begin(p);                               \
        if (wm_peer_works()) {                                                \
            WM_EACH_LL128_LANE(lane)                                          \
            ll128_give_all(view, lane);                                       \
            WM_EACH_LL128_LANE(lane)                                          \
            ll128_reduce_all(wm_rule_##name(), view, lane);                   \
        }                                                                     \
        ll_end(view);                                                         \
    }
WM_REDUCE_KERNEL_ROWS(X)
#undef X

// The vector is divided into parts: each rank but `without` has a part,
// reduces it, and passes the result on in the next exchange. In turn a warp
// gives some lines of each other part, passes on lines of its own part, and
// takes lines of the others' results. If only the rank `onto` gets the result,
// it takes last, as the others wait for the lines that it gives.

WM_DEVICE wm_ll128_block_t
ll128_part(const wm_ll_params_t &p, const wm_ll_side_t &side, uint32_t rank)
{
    const uint64_t at = (uint64_t)(rank - (rank > p.without)) * side.nbytes;
    const uint64_t left = at < p.whole && rank != p.without ? p.whole - at : 0;
    return {side.at + at, left < side.nbytes ? (uint32_t)left : side.nbytes};
}

// Returns true if a rank gets the whole result.
WM_DEVICE bool
has_all(const wm_ll_params_t &p, uint32_t rank)
{
    return p.onto == WM_LL_NOBODY ? rank != p.without : rank == p.onto;
}

template <uint32_t AT_ONCE>
WM_DEVICE bool
give_parts(const wm_ll_view &view, uint32_t base, uint32_t lane)
{
    const wm_ll_params_t &p = view.p;
    for (uint32_t k = 1; k < p.size && p.gives.count > 0; k++) {
        const uint32_t to = wm_rank_around(p.rank + k, p.size);
        const wm_ll128_block_t part = ll128_part(p, p.gives, to);
        wm_ll128_t values[AT_ONCE];
        ll128_load<AT_ONCE>(view, part, base, lane, values);
        if (part.nbytes > 0
            && !ll128_give<AT_ONCE>(view, to, part.nbytes, base, lane, values))
            return false;
    }
    return true;
}

template <uint32_t AT_ONCE, typename rule_t>
WM_DEVICE bool
pass_part(rule_t rule, const wm_ll_view &view, const wm_ll_view &next,
          uint32_t base, uint32_t lane)
{
    const wm_ll_params_t &p = view.p;
    const wm_ll128_block_t own = ll128_part(p, p.gives, p.rank);
    wm_ll128_t reduced[AT_ONCE];
    if (own.nbytes == 0)
        return true;
    if (!ll128_reduce<AT_ONCE>(rule, view, own, base, lane, reduced))
        return false;
    if (has_all(p, p.rank))
        ll128_save<AT_ONCE>(view, ll128_part(p, p.takes, p.rank), base, lane,
                            reduced);
    for (uint32_t k = 1; k < p.size; k++) {
        const uint32_t to = wm_rank_around(p.rank + k, p.size);
        if (has_all(p, to)
            && !ll128_give<AT_ONCE>(next, to, own.nbytes, base, lane, reduced))
            return false;
    }
    return true;
}

template <uint32_t AT_ONCE>
WM_DEVICE bool
take_parts(const wm_ll_view &next, uint32_t base, uint32_t lane)
{
    const wm_ll_params_t &p = next.p;
    for (uint32_t k = 1; k < p.size && has_all(p, p.rank); k++) {
        const uint32_t from = wm_rank_around(p.rank + p.size - k, p.size);
        const wm_ll128_block_t part = ll128_part(p, p.takes, from);
        if (part.nbytes > 0
            && !ll128_take<AT_ONCE>(next, from, part, base, lane))
            return false;
    }
    return true;
}

template <uint32_t AT_ONCE, typename rule_t>
WM_DEVICE bool
go_through_parts(rule_t rule, const wm_ll_view &view, const wm_ll_view &next)
{
    const uint32_t first = ll128_lines().first;
    const uint32_t step = AT_ONCE * ll128_lines().step;
    const uint32_t lines = ll128_lines_of(view.p.takes.nbytes);
    const bool late = view.p.onto != WM_LL_NOBODY;
    bool goes_on = true;
    for (uint32_t base = first; base < lines && goes_on; base += step) {
        WM_EACH_LL128_LANE(lane)
        {
            goes_on = goes_on && give_parts<AT_ONCE>(view, base, lane);
        }
        WM_EACH_LL128_LANE(lane)
        {
            goes_on = goes_on
                      && pass_part<AT_ONCE>(rule, view, next, base, lane);
        }
        WM_EACH_LL128_LANE(lane)
        {
            goes_on = goes_on
                      && (late || take_parts<AT_ONCE>(next, base, lane));
        }
    }
    for (uint32_t base = first; base < lines && goes_on && late; base += step)
        WM_EACH_LL128_LANE(lane)
        {
            goes_on = goes_on && take_parts<AT_ONCE>(next, base, lane);
        }
    return goes_on;
}

// If this rank does not go on, it aborts: the others get nothing more from it.
// If all ranks get the result, one line at a time is as fast as more.
template <typename rule_t>
WM_DEVICE void
ll128_pass_all(rule_t rule, const wm_ll_view &view, const wm_ll_view &next)
{
    const wm_ll_params_t &p = view.p;
    const bool goes_on = p.onto == WM_LL_NOBODY
                             ? go_through_parts<1>(rule, view, next)
                             : go_through_parts<ll128_at_once<rule_t>>(
                                 rule, view, next);
    if (!goes_on)
        wm_abort_call(p.word, p.done - 1);
}

#define X(name, ...)                                                          \
    WM_KERNEL(wm_ll128_parts_##name, wm_ll_params_t)                          \
    {                                                                         \
        const wm_ll_view view = ll128_begin(p);                               \
        const wm_ll_view next = {p, WM_LL_NEXT(view.number)};                 \
        if (wm_peer_works())                                                  \
            ll128_pass_all(wm_rule_##name(), view, next);                     \
        ll_end(next);                                                         \
    }
WM_REDUCE_KERNEL_ROWS(X)
#undef X

// SPDX-License-Identifier: BSD-3-Clause
// LL buffers of wide lines: as ll.cu, with 112 bytes in 128.
#include "kernels/ll_view.h"
#include "kernels/rule.h"
#include "kernels/wide_line.h"

#define WIDE_UNIT 16u  // bytes of a lane
#define WIDE_UNITS 7u  // of a line
#define WIDE_AT_ONCE 4 // lines that a thread has under way

// The lines that a warp goes through.
struct wm_wide_lines_t {
    uint32_t first, step;
};

WM_DEVICE wm_wide_lines_t
wide_lines()
{
    const uint32_t each = wm_wide_lines();
    return {wm_meeting_warp() * each, wm_meeting_warps() * each};
}

WM_DEVICE uint32_t
wide_lines_of(uint32_t nbytes)
{
    return (nbytes + WM_WIDE_PAYLOAD - 1) / WM_WIDE_PAYLOAD;
}

// What goes to a rank, or comes from one.
struct wm_wide_block_t {
    uint64_t at;
    uint32_t nbytes;
};

WM_DEVICE wm_wide_block_t
wide_block(const wm_ll_side_t &side, uint32_t rank)
{
    return {block_at(side, rank), side.nbytes};
}

// Where a lane's bytes of a line are in the block; past its end for the flag.
WM_DEVICE uint32_t
wide_at(const wm_wide_block_t &block, uint32_t line, uint32_t lane)
{
    return lane < WIDE_UNITS ? (line * WIDE_UNITS + lane) * WIDE_UNIT
                             : block.nbytes;
}

WM_DEVICE wm_wide_t
load_wide_part(const wm_ll_view &view, const char *block, uint32_t at,
               uint32_t nbytes)
{
    const uint32_t unit = view.p.unit;
    wm_wide_t value = {};
    const bool whole = at + WIDE_UNIT <= nbytes;
    if (whole && unit == WIDE_UNIT)
        return *(const wm_wide_t *)(block + at);
    if (whole && unit >= 4) {
        const uint32_t *words = (const uint32_t *)(block + at);
        value.part[0] = (uint64_t)words[1] << 32 | words[0];
        value.part[1] = (uint64_t)words[3] << 32 | words[2];
        return value;
    }
    uint64_t low = 0, high = 0;
    WM_ROLLED
    for (uint32_t i = 0; i < WIDE_UNIT && at + i < nbytes; i++) {
        const uint64_t byte = (uint64_t)(uint8_t)block[at + i] << i % 8 * 8;
        low |= i < 8 ? byte : 0;
        high |= i < 8 ? 0 : byte;
    }
    value.part[0] = low;
    value.part[1] = high;
    return value;
}

WM_DEVICE void
save_wide_part(const wm_ll_view &view, char *block, uint32_t at,
               uint32_t nbytes, const wm_wide_t &value)
{
    const bool whole = at + WIDE_UNIT <= nbytes;
    if (whole && view.p.unit == WIDE_UNIT) {
        *(wm_wide_t *)(block + at) = value;
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
    for (uint32_t i = 0; i < WIDE_UNIT && at + i < nbytes; i++)
        block[at + i] = (char)((i < 8 ? low : high) >> i % 8 * 8);
}

WM_DEVICE uint64_t
wide_flag(const wm_ll_view &view)
{
    return (uint64_t)view.number << 32 | view.number;
}

// Lines of a warp, from `base` on: lanes come and go together, and all lines
// are asked for before any is used. Of what this rank has:
template <uint32_t AT_ONCE>
WM_DEVICE void
load_wide(const wm_ll_view &view, const wm_wide_block_t &block, uint32_t base,
          uint32_t lane, wm_wide_t *values)
{
    const wm_wide_lines_t mine = wide_lines();
    WM_UNROLL
    for (uint32_t k = 0; k < AT_ONCE; k++)
        values[k] = load_wide_part(
            view, view.p.src + block.at,
            wide_at(block, base + k * mine.step + wm_wide_line(), lane),
            block.nbytes);
}

// To where this rank wants them.
template <uint32_t AT_ONCE>
WM_DEVICE void
save_wide(const wm_ll_view &view, const wm_wide_block_t &block, uint32_t base,
          uint32_t lane, const wm_wide_t *values)
{
    const wm_wide_lines_t mine = wide_lines();
    WM_UNROLL
    for (uint32_t k = 0; k < AT_ONCE; k++)
        save_wide_part(
            view, view.p.dst + block.at,
            wide_at(block, base + k * mine.step + wm_wide_line(), lane),
            block.nbytes, values[k]);
}

// Writes lines into a rank's LL buffer. Returns false if it takes no more.
template <uint32_t AT_ONCE>
WM_DEVICE bool
give_wide(const wm_ll_view &view, uint32_t to, uint32_t nbytes, uint32_t base,
          uint32_t lane, wm_wide_t *values)
{
    const wm_wide_lines_t mine = wide_lines();
    const uint32_t lines = wide_lines_of(nbytes);
    char *buffer = buffer_of(view, view.p.rank, to);
    if (base == mine.first && base < lines
        && !wm_warp_all(await_room(view, to)))
        return false;
    wm_warp_meets();
    WM_UNROLL
    for (uint32_t k = 0; k < AT_ONCE; k++) {
        const uint32_t line = base + k * mine.step + wm_wide_line();
        if (lane == WIDE_UNITS)
            values[k].part[0] = values[k].part[1] = wide_flag(view);
        if (line < lines)
            wm_store_wide(buffer + (size_t)line * WM_WIDE_BYTES, lane,
                          values[k]);
    }
    return true;
}

// Reads lines from the LL buffer that a rank fills. Returns false if they will
// never come.
template <uint32_t AT_ONCE>
WM_DEVICE bool
await_wide(const wm_ll_view &view, uint32_t from, uint32_t nbytes,
           uint32_t base, uint32_t lane, wm_wide_t *values)
{
    const wm_wide_lines_t mine = wide_lines();
    const uint32_t lines = wide_lines_of(nbytes);
    const char *buffer = buffer_of(view, from, view.p.rank);
    bool come = false;
    for (uint32_t looks = 1; !come; looks++) {
        const bool gone = !wm_warp_all(!has_gone(view, from, looks));
        uint64_t flags[AT_ONCE];
        WM_UNROLL
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            const uint32_t line = base + k * mine.step + wm_wide_line();
            flags[k] = wide_flag(view);
            if (line < lines)
                flags[k] = wm_load_wide_flag(buffer
                                             + (size_t)line * WM_WIDE_BYTES);
        }
        come = true;
        WM_UNROLL
        for (uint32_t k = 0; k < AT_ONCE; k++)
            come = come && flags[k] == wide_flag(view);
        come = wm_warp_all(come);
        if (!come && gone)
            return false;
        if (!come)
            wm_pause();
    }
    WM_UNROLL
    for (uint32_t k = 0; k < AT_ONCE; k++) {
        const uint32_t line = base + k * mine.step + wm_wide_line();
        if (line < lines)
            values[k] = wm_load_wide(buffer + (size_t)line * WM_WIDE_BYTES,
                                     lane);
    }
    return true;
}

template <uint32_t AT_ONCE>
WM_DEVICE bool
take_wide(const wm_ll_view &view, uint32_t from, const wm_wide_block_t &block,
          uint32_t base, uint32_t lane)
{
    wm_wide_t values[AT_ONCE] = {};
    if (!await_wide<AT_ONCE>(view, from, block.nbytes, base, lane, values))
        return false;
    save_wide<AT_ONCE>(view, block, base, lane, values);
    return true;
}

// Those of all who give, in their order, reduced, and `own` among them; false
// where some will not come.
template <uint32_t AT_ONCE, typename rule_t>
WM_DEVICE bool
reduce_wide(rule_t rule, const wm_ll_view &view, const wm_wide_block_t &own,
            uint32_t base, uint32_t lane, wm_wide_t *reduced)
{
    constexpr int EACH = WIDE_UNIT / sizeof(typename rule_t::element_t);
    const wm_ll_params_t &p = view.p;
    typename rule_t::acc_t acc[AT_ONCE][EACH] = {}, values[EACH];
    wm_wide_t kept[AT_ONCE] = {}, read[AT_ONCE] = {};
    if (is_of(p.takes, p.rank))
        load_wide<AT_ONCE>(view, own, base, lane, kept);
    for (uint32_t i = 0; i < p.takes.count; i++) {
        const uint32_t from = p.takes.first + i;
        if (from != p.rank
            && !await_wide<AT_ONCE>(view, from, own.nbytes, base, lane, read))
            return false;
        WM_UNROLL
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            const bool is_own = from == p.rank; // by values: no address
            const wm_wide_t unit = {
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
        reduced[k] = wm_narrow<wm_wide_t>(rule, acc[k]);
    return true;
}

// All that goes to others; what is one block is loaded once.
WM_DEVICE void
give_all_wide(const wm_ll_view &view, uint32_t lane)
{
    const wm_ll_params_t &p = view.p;
    const wm_wide_lines_t mine = wide_lines();
    const uint32_t lines = wide_lines_of(p.gives.nbytes);
    const bool any = p.gives.count > is_of(p.gives, p.rank);
    for (uint32_t base = mine.first; base < lines && any;
         base += WIDE_AT_ONCE * mine.step) {
        wm_wide_t values[WIDE_AT_ONCE];
        for (uint32_t k = 1; k < p.size; k++) {
            const uint32_t to = wm_rank_around(p.rank + k, p.size);
            const wm_wide_block_t block = wide_block(p.gives, to);
            if (k == 1 || p.gives.step > 0)
                load_wide<WIDE_AT_ONCE>(view, block, base, lane, values);
            if (is_of(p.gives, to)
                && !give_wide<WIDE_AT_ONCE>(view, to, block.nbytes, base, lane,
                                            values))
                return;
        }
    }
}

WM_DEVICE void
take_all_wide(const wm_ll_view &view, uint32_t from, uint32_t lane)
{
    const wm_ll_params_t &p = view.p;
    const wm_wide_lines_t mine = wide_lines();
    const wm_wide_block_t own = {block_at(p.gives, from), p.takes.nbytes};
    const wm_wide_block_t block = wide_block(p.takes, from);
    const uint32_t lines = wide_lines_of(block.nbytes);
    bool goes_on = is_of(p.takes, from)
                   && (from != p.rank || p.src + own.at != p.dst + block.at);
    for (uint32_t base = mine.first; base < lines && goes_on;
         base += WIDE_AT_ONCE * mine.step)
        if (from == p.rank) {
            wm_wide_t values[WIDE_AT_ONCE];
            load_wide<WIDE_AT_ONCE>(view, own, base, lane, values);
            save_wide<WIDE_AT_ONCE>(view, block, base, lane, values);
        }
        else
            goes_on = take_wide<WIDE_AT_ONCE>(view, from, block, base, lane);
}

// Of small elements fewer lines, as each is computed with by itself.
template <typename rule_t>
constexpr uint32_t
    wide_at_once = sizeof(typename rule_t::element_t) == 1 ? 2 : WIDE_AT_ONCE;

template <typename rule_t>
WM_DEVICE void
reduce_all_wide(rule_t rule, const wm_ll_view &view, uint32_t lane)
{
    constexpr uint32_t AT_ONCE = wide_at_once<rule_t>;
    const wm_ll_params_t &p = view.p;
    const wm_wide_lines_t mine = wide_lines();
    const wm_wide_block_t own = {block_at(p.gives, p.rank), p.takes.nbytes};
    const wm_wide_block_t block = wide_block(p.takes, p.rank);
    const uint32_t lines = p.takes.count > 0 ? wide_lines_of(own.nbytes) : 0;
    bool goes_on = true;
    for (uint32_t base = mine.first; base < lines && goes_on;
         base += AT_ONCE * mine.step) {
        wm_wide_t reduced[AT_ONCE];
        goes_on = reduce_wide<AT_ONCE>(rule, view, own, base, lane, reduced);
        if (goes_on)
            save_wide<AT_ONCE>(view, block, base, lane, reduced);
    }
}

// Where several pass on, another block may have given up before this one
// begins, and one who waits for what it gives must see it.
WM_DEVICE wm_ll_view
wide_begin(const wm_ll_params_t &p)
{
    if (wm_meeting_tells() && p.word != nullptr && p.in_parts && p.size > 2)
        wm_raise_word(p.word, p.begun);
    else if (wm_meeting_tells() && p.word != nullptr)
        wm_store_system(p.word, p.begun);
    return ll_begin(p);
}

WM_KERNEL(wm_wide_move, wm_ll_params_t)
{
    const wm_ll_view view = wide_begin(p);
    if (wm_meeting_works()) {
        WM_EACH_WIDE_LANE(lane)
        give_all_wide(view, lane);
        WM_EACH_WIDE_LANE(lane)
        for (uint32_t k = 0; k < p.size; k++)
            take_all_wide(view, wm_rank_around(p.rank + p.size - k, p.size),
                          lane);
    }
    ll_end(view);
}

#define X(name, ...)                                                          \
    WM_KERNEL(wm_wide_##name, wm_ll_params_t)                                 \
    {                                                                         \
        const wm_ll_view view = wide_begin(p);                                \
        if (wm_meeting_works()) {                                             \
            WM_EACH_WIDE_LANE(lane)                                           \
            give_all_wide(view, lane);                                        \
            WM_EACH_WIDE_LANE(lane)                                           \
            reduce_all_wide(wm_rule_##name(), view, lane);                    \
        }                                                                     \
        ll_end(view);                                                         \
    }
WM_REDUCE_KERNEL_ROWS(X)
#undef X

// What goes in parts: each rank but the one without has one, which it reduces,
// and passes on in the next exchange. Turn by turn a warp gives some lines of
// each other part, passes on those of its own, and takes those of the others;
// but if one rank alone has all in the end it takes last, as the others wait
// for what it gives.

WM_DEVICE wm_wide_block_t
wide_part(const wm_ll_params_t &p, const wm_ll_side_t &side, uint32_t rank)
{
    const uint64_t at = (uint64_t)(rank - (rank > p.without)) * side.nbytes;
    const uint64_t left = at < p.whole && rank != p.without ? p.whole - at : 0;
    return {side.at + at, left < side.nbytes ? (uint32_t)left : side.nbytes};
}

// Whether a rank has all in the end.
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
        const wm_wide_block_t part = wide_part(p, p.gives, to);
        wm_wide_t values[AT_ONCE];
        load_wide<AT_ONCE>(view, part, base, lane, values);
        if (part.nbytes > 0
            && !give_wide<AT_ONCE>(view, to, part.nbytes, base, lane, values))
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
    const wm_wide_block_t own = wide_part(p, p.gives, p.rank);
    wm_wide_t reduced[AT_ONCE];
    if (own.nbytes == 0)
        return true;
    if (!reduce_wide<AT_ONCE>(rule, view, own, base, lane, reduced))
        return false;
    if (has_all(p, p.rank))
        save_wide<AT_ONCE>(view, wide_part(p, p.takes, p.rank), base, lane,
                           reduced);
    for (uint32_t k = 1; k < p.size; k++) {
        const uint32_t to = wm_rank_around(p.rank + k, p.size);
        if (has_all(p, to)
            && !give_wide<AT_ONCE>(next, to, own.nbytes, base, lane, reduced))
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
        const wm_wide_block_t part = wide_part(p, p.takes, from);
        if (part.nbytes > 0
            && !take_wide<AT_ONCE>(next, from, part, base, lane))
            return false;
    }
    return true;
}

template <uint32_t AT_ONCE, typename rule_t>
WM_DEVICE bool
go_through_parts(rule_t rule, const wm_ll_view &view, const wm_ll_view &next)
{
    const uint32_t first = wide_lines().first;
    const uint32_t step = AT_ONCE * wide_lines().step;
    const uint32_t lines = wide_lines_of(view.p.takes.nbytes);
    const bool late = view.p.onto != WM_LL_NOBODY;
    bool goes_on = true;
    for (uint32_t base = first; base < lines && goes_on; base += step) {
        WM_EACH_WIDE_LANE(lane)
        {
            goes_on = goes_on && give_parts<AT_ONCE>(view, base, lane);
        }
        WM_EACH_WIDE_LANE(lane)
        {
            goes_on = goes_on
                      && pass_part<AT_ONCE>(rule, view, next, base, lane);
        }
        WM_EACH_WIDE_LANE(lane)
        {
            goes_on = goes_on
                      && (late || take_parts<AT_ONCE>(next, base, lane));
        }
    }
    for (uint32_t base = first; base < lines && goes_on && late; base += step)
        WM_EACH_WIDE_LANE(lane)
        {
            goes_on = goes_on && take_parts<AT_ONCE>(next, base, lane);
        }
    return goes_on;
}

// Where a rank does not go on, others have nothing more of it. Of what all
// have in the end a line at a time is as fast as more.
template <typename rule_t>
WM_DEVICE void
pass_all_wide(rule_t rule, const wm_ll_view &view, const wm_ll_view &next)
{
    const wm_ll_params_t &p = view.p;
    const bool goes_on = p.onto == WM_LL_NOBODY
                             ? go_through_parts<1>(rule, view, next)
                             : go_through_parts<wide_at_once<rule_t>>(
                                 rule, view, next);
    if (!goes_on)
        wm_give_up(p.word, p.done - 1);
}

#define X(name, ...)                                                          \
    WM_KERNEL(wm_wide_parts_##name, wm_ll_params_t)                           \
    {                                                                         \
        const wm_ll_view view = wide_begin(p);                                \
        const wm_ll_view next = {p, WM_LL_NEXT(view.number)};                 \
        if (wm_meeting_works())                                               \
            pass_all_wide(wm_rule_##name(), view, next);                      \
        ll_end(next);                                                         \
    }
WM_REDUCE_KERNEL_ROWS(X)
#undef X

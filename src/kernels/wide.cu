// SPDX-License-Identifier: BSD-3-Clause
// Boxes of wide lines: as boxes.cu, of 112 bytes in 128.
#include "kernels/boxes_view.h"
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
wide_lines_of(const wm_boxes_side_t &side)
{
    return (side.nbytes + WM_WIDE_PAYLOAD - 1) / WM_WIDE_PAYLOAD;
}

// Where a lane's bytes of a line are in the block; past its end for the flag.
WM_DEVICE uint32_t
wide_at(const wm_boxes_side_t &side, uint32_t line, uint32_t lane)
{
    return lane < WIDE_UNITS ? (line * WIDE_UNITS + lane) * WIDE_UNIT
                             : side.nbytes;
}

WM_DEVICE wm_wide_t
load_wide_part(const wm_boxes_view &view, const char *block, uint32_t at,
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
save_wide_part(const wm_boxes_view &view, char *block, uint32_t at,
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
wide_flag(const wm_boxes_view &view)
{
    return (uint64_t)view.number << 32 | view.number;
}

// All that goes to a rank: lanes of a warp come and go together. False where
// it takes no more.
WM_DEVICE bool
give_wide(const wm_boxes_view &view, uint32_t to, uint32_t lane)
{
    const wm_boxes_side_t &gives = view.p.gives;
    const wm_wide_lines_t mine = wide_lines();
    const uint32_t lines = wide_lines_of(gives);
    const char *block = view.p.src + block_at(gives, to);
    char *box = box_of(view, view.p.rank, to);
    if (!is_of(gives, to))
        return true;
    for (uint32_t base = mine.first; base < lines;
         base += WIDE_AT_ONCE * mine.step) {
        wm_wide_t values[WIDE_AT_ONCE] = {};
        WM_UNROLL
        for (uint32_t k = 0; k < WIDE_AT_ONCE; k++) {
            const uint32_t line = base + k * mine.step + wm_wide_line();
            values[k] = load_wide_part(view, block, wide_at(gives, line, lane),
                                       gives.nbytes);
            if (lane == WIDE_UNITS)
                values[k].part[0] = values[k].part[1] = wide_flag(view);
        }
        if (base == mine.first && !wm_warp_all(await_room(view, to)))
            return false;
        WM_UNROLL
        for (uint32_t k = 0; k < WIDE_AT_ONCE; k++) {
            const uint32_t line = base + k * mine.step + wm_wide_line();
            if (line < lines)
                wm_store_wide(box + (size_t)line * WM_WIDE_BYTES, lane,
                              values[k]);
        }
    }
    return true;
}

// Several lines of a rank, all asked for before any is used; false where they
// will not come.
template <uint32_t AT_ONCE>
WM_DEVICE bool
read_wide(const wm_boxes_view &view, uint32_t from, uint32_t base,
          uint32_t lane, wm_wide_t *values)
{
    const wm_wide_lines_t mine = wide_lines();
    const uint32_t lines = wide_lines_of(view.p.takes);
    const char *box = box_of(view, from, view.p.rank);
    for (uint32_t looks = 1;; looks++) {
        const bool gone = !wm_warp_all(!has_gone(view, from, looks));
        bool come = true;
        WM_UNROLL
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            const uint32_t line = base + k * mine.step + wm_wide_line();
            if (line < lines)
                come &= wm_load_wide(box + (size_t)line * WM_WIDE_BYTES, lane,
                                     wide_flag(view), &values[k]);
        }
        come = wm_warp_all(come);
        if (come || gone)
            return come;
        wm_pause();
    }
}

WM_DEVICE void
move_wide(const wm_boxes_view &view, uint32_t from, uint32_t lane)
{
    const wm_boxes_params_t &p = view.p;
    const wm_wide_lines_t mine = wide_lines();
    const uint32_t lines = wide_lines_of(p.takes);
    const char *own = p.src + block_at(p.gives, from);
    char *block = p.dst + block_at(p.takes, from);
    if (!is_of(p.takes, from) || (from == p.rank && own == block))
        return;
    for (uint32_t base = mine.first; base < lines;
         base += WIDE_AT_ONCE * mine.step) {
        wm_wide_t values[WIDE_AT_ONCE] = {};
        WM_UNROLL
        for (uint32_t k = 0; k < WIDE_AT_ONCE && from == p.rank; k++)
            values[k] = load_wide_part(
                view, own,
                wide_at(p.takes, base + k * mine.step + wm_wide_line(), lane),
                p.takes.nbytes);
        if (from != p.rank
            && !read_wide<WIDE_AT_ONCE>(view, from, base, lane, values))
            return;
        WM_UNROLL
        for (uint32_t k = 0; k < WIDE_AT_ONCE; k++)
            save_wide_part(
                view, block,
                wide_at(p.takes, base + k * mine.step + wm_wide_line(), lane),
                p.takes.nbytes, values[k]);
    }
}

// Of small elements fewer lines, as each is computed with by itself.
template <typename rule_t>
constexpr uint32_t
    wide_at_once = sizeof(typename rule_t::element_t) == 1 ? 2 : WIDE_AT_ONCE;

// Whether a rank is given what others reduce.
WM_DEVICE bool
is_spread_to(const wm_boxes_params_t &p, uint32_t rank)
{
    return rank - p.onto < p.spreads;
}

// Lines of this rank's block to others, in the next exchange; false where one
// takes no more.
template <uint32_t AT_ONCE>
WM_DEVICE bool
spread_wide(const wm_boxes_view &next, uint32_t base, uint32_t lane,
            wm_wide_t *values)
{
    const wm_boxes_params_t &p = next.p;
    const wm_wide_lines_t mine = wide_lines();
    const uint32_t lines = wide_lines_of(p.takes);
    WM_UNROLL
    for (uint32_t k = 0; k < AT_ONCE; k++)
        if (lane == WIDE_UNITS)
            values[k].part[0] = values[k].part[1] = wide_flag(next);
    for (uint32_t i = 1; i < p.size; i++) {
        const uint32_t to = wm_rank_around(p.rank + i, p.size);
        char *box = box_of(next, p.rank, to);
        if (!is_spread_to(p, to))
            continue;
        if (base == mine.first && !wm_warp_all(await_room(next, to)))
            return false;
        WM_UNROLL
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            const uint32_t line = base + k * mine.step + wm_wide_line();
            if (line < lines)
                wm_store_wide(box + (size_t)line * WM_WIDE_BYTES, lane,
                              values[k]);
        }
    }
    return true;
}

// False where it is not to go on.
template <bool spreads, typename rule_t>
WM_DEVICE bool
reduce_wide(rule_t rule, const wm_boxes_view &view, uint32_t base,
            uint32_t lane)
{
    constexpr int EACH = WIDE_UNIT / sizeof(typename rule_t::element_t);
    constexpr uint32_t AT_ONCE = wide_at_once<rule_t>;
    const wm_boxes_params_t &p = view.p;
    const wm_wide_lines_t mine = wide_lines();
    const char *own = p.src + block_at(p.gives, p.rank);
    typename rule_t::acc_t acc[AT_ONCE][EACH] = {}, values[EACH];
    wm_wide_t kept[AT_ONCE], read[AT_ONCE] = {};
    uint32_t at[AT_ONCE];
    WM_UNROLL
    for (uint32_t k = 0; k < AT_ONCE; k++) {
        at[k] = wide_at(p.takes, base + k * mine.step + wm_wide_line(), lane);
        kept[k] = is_of(p.takes, p.rank)
                      ? load_wide_part(view, own, at[k], p.takes.nbytes)
                      : wm_wide_t();
    }
    for (uint32_t from = 0; from < p.takes.count; from++) {
        if (from != p.rank
            && !read_wide<AT_ONCE>(view, from, base, lane, read))
            return false;
        WM_UNROLL
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            const bool is_own = from == p.rank; // by values: no address
            const wm_wide_t unit = {
                {is_own ? kept[k].part[0] : read[k].part[0],
                 is_own ? kept[k].part[1] : read[k].part[1]}};
            wm_widen(rule, unit, values);
            if (from > 0)
                rule.fold(p.op, acc[k], values, EACH);
            WM_UNROLL
            for (int i = 0; i < EACH && from == 0; i++)
                acc[k][i] = values[i];
        }
    }
    WM_UNROLL
    for (uint32_t k = 0; k < AT_ONCE; k++) {
        kept[k] = wm_narrow<wm_wide_t>(rule, acc[k]);
        if (!spreads || is_spread_to(p, p.rank))
            save_wide_part(view, p.dst + block_at(p.takes, p.rank), at[k],
                           p.takes.nbytes, kept[k]);
    }
    if (!spreads)
        return true;
    const wm_boxes_view next = {p, WM_BOXES_NEXT(view.number)};
    return spread_wide<AT_ONCE>(next, base, lane, kept);
}

WM_DEVICE void
give_all_wide(const wm_boxes_view &view)
{
    const wm_boxes_params_t &p = view.p;
    bool room = true;
    for (uint32_t lane = wm_first_wide_lane(); lane < 8;
         lane = wm_next_wide_lane(lane))
        for (uint32_t k = 1; k < p.size && room; k++)
            room = give_wide(view, wm_rank_around(p.rank + k, p.size), lane);
}

WM_DEVICE wm_boxes_view
wide_begin(const wm_boxes_params_t &p)
{
    if (wm_meeting_tells() && p.word != nullptr)
        wm_store_system(p.word, p.begun);
    return boxes_begin(p);
}

WM_KERNEL(wm_wide_move, wm_boxes_params_t)
{
    const wm_boxes_view view = wide_begin(p);
    if (wm_meeting_works()) {
        give_all_wide(view);
        for (uint32_t lane = wm_first_wide_lane(); lane < 8;
             lane = wm_next_wide_lane(lane))
            for (uint32_t k = 0; k < p.size; k++)
                move_wide(view, wm_rank_around(p.rank + p.size - k, p.size),
                          lane);
    }
    boxes_end(view);
}

template <bool spreads, typename rule_t>
WM_DEVICE void
reduce_all_wide(rule_t rule, const wm_boxes_view &view)
{
    const wm_boxes_side_t &takes = view.p.takes;
    const wm_wide_lines_t mine = wide_lines();
    const uint32_t lines = takes.count > 0 ? wide_lines_of(takes) : 0;
    bool goes_on = true;
    give_all_wide(view);
    for (uint32_t lane = wm_first_wide_lane(); lane < 8;
         lane = wm_next_wide_lane(lane))
        for (uint32_t base = mine.first; base < lines && goes_on;
             base += wide_at_once<rule_t> * mine.step)
            goes_on = reduce_wide<spreads>(rule, view, base, lane);
    if (spreads && !goes_on) // nor do others, who wait for it
        wm_give_up(view.p.word, view.p.done - 1);
}

WM_DEVICE void
take_all_wide(const wm_boxes_view &view)
{
    const wm_boxes_params_t &p = view.p;
    for (uint32_t lane = wm_first_wide_lane(); lane < 8;
         lane = wm_next_wide_lane(lane))
        for (uint32_t k = 1; k < p.size; k++)
            move_wide(view, wm_rank_around(p.rank + p.size - k, p.size), lane);
}

#define X(name, ...)                                                          \
    WM_KERNEL(wm_wide_##name, wm_boxes_params_t)                              \
    {                                                                         \
        const wm_boxes_view view = wide_begin(p);                             \
        if (wm_meeting_works())                                               \
            reduce_all_wide<false>(wm_rule_##name(), view);                   \
        boxes_end(view);                                                      \
    }
WM_REDUCE_KERNEL_ROWS(X)
#undef X

// Each rank reduces its block of all, and gives it to whom it is spread to in
// the exchange behind that.
#define X(name, ...)                                                          \
    WM_KERNEL(wm_wide_all_##name, wm_boxes_params_t)                          \
    {                                                                         \
        const wm_boxes_view view = wide_begin(p);                             \
        const wm_boxes_view next = {p, WM_BOXES_NEXT(view.number)};           \
        if (wm_meeting_works()) {                                             \
            reduce_all_wide<true>(wm_rule_##name(), view);                    \
            if (is_spread_to(p, p.rank))                                      \
                take_all_wide(next);                                          \
        }                                                                     \
        boxes_end(next);                                                      \
    }
WM_REDUCE_KERNEL_ROWS(X)
#undef X

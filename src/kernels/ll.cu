// SPDX-License-Identifier: BSD-3-Clause
#include "kernels/ll_view.h"
#include "kernels/rule.h"

#define LL_AT_ONCE 8u // loads that a thread has under way

WM_DEVICE uint32_t
lines_of_side(const wm_ll_side_t &side)
{
    return (side.nbytes + WM_LINE_PAYLOAD - 1) / WM_LINE_PAYLOAD;
}

WM_DEVICE uint64_t
load_line(const wm_ll_view &view, const char *from, uint32_t left)
{
    const uint32_t unit = view.p.unit;
    uint64_t value = 0;
    if (unit == 8)
        return *(const uint64_t *)from;
    for (uint32_t i = 0; i < WM_LINE_PAYLOAD && i < left; i += unit) {
        const uint64_t part = unit == 4   ? *(const uint32_t *)(from + i)
                              : unit == 2 ? *(const uint16_t *)(from + i)
                                          : *(const uint8_t *)(from + i);
        value |= part << 8 * i;
    }
    return value;
}

WM_DEVICE void
save_line(const wm_ll_view &view, char *into, uint32_t left, uint64_t value)
{
    const uint32_t unit = view.p.unit;
    if (unit == 8)
        *(uint64_t *)into = value;
    for (uint32_t i = 0; i < WM_LINE_PAYLOAD && i < left && unit < 8;
         i += unit) {
        const uint64_t part = value >> 8 * i;
        if (unit == 4)
            *(uint32_t *)(into + i) = (uint32_t)part;
        else if (unit == 2)
            *(uint16_t *)(into + i) = (uint16_t)part;
        else
            *(uint8_t *)(into + i) = (uint8_t)part;
    }
}

// Gives a line to a rank. Returns false if the rank takes no more, which is
// tested with a thread's first line for the rank.
WM_DEVICE bool
give_line(const wm_ll_view &view, uint32_t to, uint32_t line, bool first)
{
    const wm_ll_params_t &p = view.p;
    const uint32_t at = line * WM_LINE_PAYLOAD;
    if (!is_of(p.gives, to) || at >= p.gives.nbytes)
        return true;
    const uint64_t value = load_line(view, p.src + block_at(p.gives, to) + at,
                                     p.gives.nbytes - at);
    if (first && !await_room(view, to))
        return false;
    wm_store_line(buffer_of(view, p.rank, to) + (size_t)line * WM_LINE_BYTES,
                  value, view.number);
    return true;
}

// Reads the lines of `count` ranks from `first` on. All loads are issued
// before any value is used. Returns false if a line will never come.
template <uint32_t AT_ONCE, uint32_t EACH>
WM_DEVICE bool
ll_read(const wm_ll_view &view, uint32_t first, uint32_t count, uint32_t line,
        uint64_t (*values)[EACH])
{
    const wm_ll_params_t &p = view.p;
    const char *buffers[AT_ONCE];
    WM_UNROLL
    for (uint32_t k = 0; k < AT_ONCE; k++)
        buffers[k] = buffer_of(view, first + k < p.size ? first + k : p.rank,
                               p.rank)
                     + (size_t)line * WM_LINE_BYTES;
    uint32_t ended = 0, missing = 0;
    for (uint32_t looks = 1;; looks++) {
        wm_line_t read[AT_ONCE][EACH] = {};
        for (uint32_t k = 0; k < count && looks % WM_LOOKS == 0; k++)
            if (looks == 1 || (missing >> k & 1) != 0)
                ended |= (uint32_t)peer_has_ended(view, first + k, looks) << k;
        missing = 0;
        WM_UNROLL
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            WM_UNROLL
            for (uint32_t i = 0; i < EACH; i++)
                if (k < count && first + k != p.rank)
                    read[k][i] = wm_load_line(buffers[k] + i * WM_LINE_BYTES);
        }
        WM_UNROLL
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            WM_UNROLL
            for (uint32_t i = 0; i < EACH; i++) {
                if (k >= count || first + k == p.rank)
                    continue;
                values[k][i] = (uint64_t)read[k][i].high << 32
                               | read[k][i].low;
                missing |= (uint32_t)(read[k][i].flags[0] != view.number
                                      || read[k][i].flags[1] != view.number)
                           << k;
            }
        }
        if (missing == 0 || (missing & ended) != 0)
            return missing == 0;
        wm_pause();
    }
}

// Moves blocks. Each thread takes the lines that it gave, so that a block may
// be given and taken at one place.
WM_DEVICE void
ll_move(const wm_ll_view &view)
{
    const wm_ll_params_t &p = view.p;
    const uint32_t out = lines_of_side(p.gives);
    const uint32_t in = lines_of_side(p.takes);
    const uint32_t lines = out > in ? out : in;
    const uint32_t first = wm_peer_thread(), step = wm_peer_threads();
    bool room = true;
    for (uint32_t i = first; i < p.size * lines && room; i += step) {
        const uint32_t to = wm_rank_around(p.rank + i / lines, p.size);
        if (to != p.rank)
            room = give_line(view, to, i % lines, i % lines < step);
    }
    wm_block_sync();
    for (uint32_t i = first; i < p.size * lines; i += step) {
        const uint32_t from = wm_rank_around(p.rank + i / lines, p.size);
        const uint32_t line = i % lines, at = line * WM_LINE_PAYLOAD;
        uint64_t value[1][1] = {};
        bool come = at < p.takes.nbytes && is_of(p.takes, from);
        if (come && from == p.rank)
            value[0][0] = load_line(view, p.src + block_at(p.gives, from) + at,
                                    p.takes.nbytes - at);
        else if (come)
            come = ll_read<1, 1>(view, from, 1, line, value);
        if (come)
            save_line(view, p.dst + block_at(p.takes, from) + at,
                      p.takes.nbytes - at, value[0][0]);
    }
}

// Lines that one thread handles together; they hold one element or more.
template <typename rule_t>
constexpr uint32_t
    ll_each = sizeof(typename rule_t::element_t) > WM_LINE_PAYLOAD ? 2 : 1;

template <uint32_t EACH> struct wm_ll_unit {
    uint64_t lines[EACH];
};

// Reduces a line; loads those of AT_ONCE ranks at once.
template <uint32_t AT_ONCE, typename rule_t>
WM_DEVICE void
ll_reduce(rule_t rule, const wm_ll_view &view, uint32_t line)
{
    constexpr uint32_t EACH = ll_each<rule_t>;
    constexpr int COUNT = EACH * WM_LINE_PAYLOAD
                          / sizeof(typename rule_t::element_t);
    const wm_ll_params_t &p = view.p;
    const char *own = p.src + block_at(p.gives, p.rank);
    const uint32_t at = line * WM_LINE_PAYLOAD;
    typename rule_t::acc_t acc[COUNT] = {}, values[COUNT];
    uint64_t mine[EACH]; // loaded before the wait for other ranks
    WM_UNROLL
    for (uint32_t i = 0; i < EACH; i++) {
        const uint32_t from = at + i * WM_LINE_PAYLOAD;
        mine[i] = is_of(p.takes, p.rank)
                      ? load_line(view, own + from, p.takes.nbytes - from)
                      : 0;
    }
    for (uint32_t first = 0; first < p.takes.count; first += AT_ONCE) {
        const uint32_t left = p.takes.count - first;
        const uint32_t count = left < AT_ONCE ? left : AT_ONCE;
        uint64_t read[AT_ONCE][EACH] = {};
        if (!ll_read<AT_ONCE, EACH>(view, first, count, line, read))
            return;
        WM_UNROLL
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            const bool is_own = first + k == p.rank; // a value, no address
            wm_ll_unit<EACH> unit;
            if (k >= count)
                continue;
            WM_UNROLL
            for (uint32_t i = 0; i < EACH; i++)
                unit.lines[i] = is_own ? mine[i] : read[k][i];
            wm_widen(rule, unit, values);
            if (first + k > 0)
                rule.fold(p.op, acc, values, COUNT);
            WM_UNROLL
            for (int i = 0; i < COUNT && first + k == 0; i++)
                acc[i] = values[i];
        }
    }
    const wm_ll_unit<EACH> unit = wm_narrow<wm_ll_unit<EACH>>(rule, p.average,
                                                              acc);
    WM_UNROLL
    for (uint32_t i = 0; i < EACH; i++) {
        const uint32_t to = at + i * WM_LINE_PAYLOAD;
        save_line(view, p.dst + p.takes.at + to, p.takes.nbytes - to,
                  unit.lines[i]);
    }
}

// Gives and reduces. Each thread reduces the lines that it gave, all lines of
// an element.
template <typename rule_t>
WM_DEVICE void
ll_fold(rule_t rule, const wm_ll_view &view)
{
    constexpr uint32_t EACH = ll_each<rule_t>;
    const wm_ll_params_t &p = view.p;
    const uint32_t first = wm_peer_thread() * EACH;
    const uint32_t step = wm_peer_threads() * EACH;
    const uint32_t out = lines_of_side(p.gives);
    const uint32_t in = p.takes.count > 0 ? lines_of_side(p.takes) : 0;
    bool room = true;
    for (uint32_t at = first; at < out && room; at += step)
        for (uint32_t k = 1; k < p.size; k++)
            for (uint32_t i = 0; i < EACH && room; i++)
                room = give_line(view, wm_rank_around(p.rank + k, p.size),
                                 at + i, at == first);
    for (uint32_t at = first; at < in && p.takes.count <= 2; at += step)
        ll_reduce<1>(rule, view, at);
    for (uint32_t at = first; at < in && p.takes.count > 2; at += step)
        ll_reduce<LL_AT_ONCE>(rule, view, at);
}

WM_KERNEL(wm_ll_move, wm_ll_params_t)
{
    const wm_ll_view view = ll_begin(p);
    ll_move(view);
    ll_end(view);
}

#define X(name, ...)                                                          \
    WM_KERNEL(wm_ll_##name, wm_ll_params_t)                                   \
    {                                                                         \
        const wm_ll_view view = ll_begin(p);                                  \
        ll_fold(wm_rule_##name(), view);                                      \
        ll_end(view);                                                         \
    }
WM_REDUCE_KERNEL_ROWS(X)
#undef X

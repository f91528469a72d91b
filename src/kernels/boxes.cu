// SPDX-License-Identifier: BSD-3-Clause
#include "kernels/boxes.h"
#include "kernels/rule.h"

#define BOXES_AT_ONCE 8u // loads that a thread has under way
#define BOXES_LOOKS 256  // in vain, before it looks at the others' words

// What is exchanged, as all threads see it.
struct wm_boxes_view {
    const wm_boxes_params_t &p;
    wm_boxes_head_t *head;
    const wm_boxes_rank_t *ranks;
    uint32_t number;
};

WM_DEVICE wm_boxes_view
boxes_begin(const wm_boxes_params_t &p)
{
    wm_boxes_head_t *head = p.head;
    const wm_boxes_rank_t *ranks = p.size > WM_BOXES_FEW ? head->ranks : p.few;
    return {p, head, ranks, p.number != 0 ? p.number : head->count + 1};
}

WM_DEVICE bool
is_of(const wm_boxes_side_t &side, uint32_t rank)
{
    return rank - side.first < side.count;
}

WM_DEVICE uint64_t
block_at(const wm_boxes_side_t &side, uint32_t rank)
{
    return side.at + (uint64_t)rank * side.step;
}

WM_DEVICE uint32_t
lines_of_side(const wm_boxes_side_t &side)
{
    return (side.nbytes + WM_LINE_PAYLOAD - 1) / WM_LINE_PAYLOAD;
}

// The box that `from` writes in the memory of `to`.
WM_DEVICE char *
box_of(const wm_boxes_view &view, uint32_t from, uint32_t to)
{
    const uint32_t index = (view.number & 1) * view.p.size + from;
    return view.ranks[to].boxes + WM_BOXES_HEAD
           + (size_t)index * view.p.box_bytes;
}

// Whether a rank's lines either are there or will never be, now and then.
WM_DEVICE bool
has_gone(const wm_boxes_view &view, uint32_t rank, uint32_t looks)
{
    const wm_boxes_rank_t &its = view.ranks[rank];
    if (looks % BOXES_LOOKS != 0 || view.p.word == nullptr
        || (int32_t)(wm_load_system(its.word) - its.base - view.p.past) < 0)
        return false;
    wm_fence_system();
    return true;
}

// The box that this exchange writes was read in the last but one.
WM_DEVICE bool
has_room(const wm_boxes_view &view, uint32_t to)
{
    for (uint32_t looks = 1;; looks++) {
        const bool gone = has_gone(view, to, looks);
        const uint32_t done = wm_load_system(&view.head->done[to]);
        if ((int32_t)(done - (view.number - 2)) >= 0 || gone)
            return !gone;
        wm_pause();
    }
}

WM_DEVICE uint64_t
load_line(const wm_boxes_view &view, const char *from, uint32_t left)
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
save_line(const wm_boxes_view &view, char *into, uint32_t left, uint64_t value)
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

WM_DEVICE void
give_line(const wm_boxes_view &view, uint32_t to, uint32_t line)
{
    const wm_boxes_params_t &p = view.p;
    const uint32_t at = line * WM_LINE_PAYLOAD;
    if (!is_of(p.gives, to) || at >= p.gives.nbytes)
        return;
    const uint64_t value = load_line(view, p.src + block_at(p.gives, to) + at,
                                     p.gives.nbytes - at);
    if (has_room(view, to))
        wm_store_line(box_of(view, p.rank, to) + (size_t)line * WM_LINE_BYTES,
                      value, view.number);
}

// The lines of `count` ranks from `first` on, all asked for before any is
// used; false where one will not come. The last one stands for those beyond.
template <uint32_t AT_ONCE, uint32_t EACH>
WM_DEVICE bool
read_boxes(const wm_boxes_view &view, uint32_t first, uint32_t count,
           uint32_t line, uint64_t (*values)[EACH])
{
    const wm_boxes_params_t &p = view.p;
    uint32_t gone = 0;
    for (uint32_t looks = 1;; looks++) {
        wm_line_t read[AT_ONCE][EACH] = {};
        uint32_t missing = 0;
        for (uint32_t k = 0; k < count && looks % BOXES_LOOKS == 0; k++)
            gone |= (uint32_t)has_gone(view, first + k, looks) << k;
        WM_UNROLL
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            const uint32_t from = first + (k < count ? k : count - 1);
            const char *box = box_of(view, from, p.rank)
                              + (size_t)line * WM_LINE_BYTES;
            WM_UNROLL
            for (uint32_t i = 0; i < EACH; i++)
                if (from != p.rank)
                    read[k][i] = wm_load_line(box + i * WM_LINE_BYTES);
        }
        WM_UNROLL
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            const uint32_t from = first + (k < count ? k : count - 1);
            WM_UNROLL
            for (uint32_t i = 0; i < EACH; i++) {
                if (from == p.rank)
                    continue;
                values[k][i] = (uint64_t)read[k][i].high << 32
                               | read[k][i].low;
                missing |= (uint32_t)(read[k][i].flags[0] != view.number
                                      || read[k][i].flags[1] != view.number)
                           << k;
            }
        }
        if (missing == 0 || (missing & gone) != 0)
            return missing == 0;
        wm_pause();
    }
}

// Each thread takes the lines that it gave: so memory may be given and taken
// where these have one place.
WM_DEVICE void
move_boxes(const wm_boxes_view &view)
{
    const wm_boxes_params_t &p = view.p;
    const uint32_t out = lines_of_side(p.gives);
    const uint32_t in = lines_of_side(p.takes);
    const uint32_t lines = out > in ? out : in;
    const uint32_t first = wm_meeting_thread(), step = wm_meeting_threads();
    for (uint32_t i = first; i < p.size * lines; i += step) {
        const uint32_t to = (p.rank + i / lines) % p.size;
        if (to != p.rank)
            give_line(view, to, i % lines);
    }
    wm_block_meets();
    for (uint32_t i = first; i < p.size * lines; i += step) {
        const uint32_t from = (p.rank + i / lines) % p.size;
        const uint32_t line = i % lines, at = line * WM_LINE_PAYLOAD;
        uint64_t value[1][1] = {};
        bool come = at < p.takes.nbytes && is_of(p.takes, from);
        if (come && from == p.rank)
            value[0][0] = load_line(view, p.src + block_at(p.gives, from) + at,
                                    p.takes.nbytes - at);
        else if (come)
            come = read_boxes<1, 1>(view, from, 1, line, value);
        if (come)
            save_line(view, p.dst + block_at(p.takes, from) + at,
                      p.takes.nbytes - at, value[0][0]);
    }
}

// So many lines hold one element or more, and are one thread's business.
template <typename rule_t>
constexpr uint32_t
    boxes_each = sizeof(typename rule_t::element_t) > WM_LINE_PAYLOAD ? 2 : 1;

template <uint32_t EACH> struct wm_boxes_unit {
    uint64_t lines[EACH];
};

template <typename rule_t>
WM_DEVICE void
reduce_boxes(rule_t rule, const wm_boxes_view &view, uint32_t line)
{
    constexpr uint32_t EACH = boxes_each<rule_t>;
    constexpr int COUNT = EACH * WM_LINE_PAYLOAD
                          / sizeof(typename rule_t::element_t);
    typedef wm_boxes_unit<EACH> unit_t;
    const wm_boxes_params_t &p = view.p;
    const char *own = p.src + block_at(p.gives, p.rank);
    const uint32_t at = line * WM_LINE_PAYLOAD;
    typename rule_t::acc_t acc[COUNT] = {}, values[COUNT];
    for (uint32_t first = 0; first < p.takes.count; first += BOXES_AT_ONCE) {
        const uint32_t left = p.takes.count - first;
        const uint32_t count = left < BOXES_AT_ONCE ? left : BOXES_AT_ONCE;
        uint64_t read[BOXES_AT_ONCE][EACH] = {};
        if (!read_boxes<BOXES_AT_ONCE, EACH>(view, first, count, line, read))
            return;
        WM_UNROLL
        for (uint32_t k = 0; k < BOXES_AT_ONCE; k++) {
            unit_t unit;
            if (k >= count)
                continue;
            WM_UNROLL
            for (uint32_t i = 0; i < EACH; i++) {
                const uint32_t from = at + i * WM_LINE_PAYLOAD;
                unit.lines[i] = first + k != p.rank
                                    ? read[k][i]
                                    : load_line(view, own + from,
                                                p.takes.nbytes - from);
            }
            wm_widen(rule, unit, first + k == 0 ? acc : values);
            if (first + k > 0)
                rule.fold(p.op, acc, values, COUNT);
        }
    }
    const unit_t unit = wm_narrow<unit_t>(rule, acc);
    WM_UNROLL
    for (uint32_t i = 0; i < EACH; i++) {
        const uint32_t to = at + i * WM_LINE_PAYLOAD;
        save_line(view, p.dst + p.takes.at + to, p.takes.nbytes - to,
                  unit.lines[i]);
    }
}

// Likewise, all of an element's lines.
template <typename rule_t>
WM_DEVICE void
fold_boxes(rule_t rule, const wm_boxes_view &view)
{
    constexpr uint32_t EACH = boxes_each<rule_t>;
    const wm_boxes_params_t &p = view.p;
    const uint32_t first = wm_meeting_thread() * EACH;
    const uint32_t step = wm_meeting_threads() * EACH;
    const uint32_t out = lines_of_side(p.gives);
    const uint32_t in = p.takes.count > 0 ? lines_of_side(p.takes) : 0;
    for (uint32_t at = first; at < out; at += step)
        for (uint32_t k = 1; k < p.size; k++)
            for (uint32_t i = 0; i < EACH; i++)
                give_line(view, (p.rank + k) % p.size, at + i);
    for (uint32_t at = first; at < in; at += step)
        reduce_boxes(rule, view, at);
}

// All that was for this rank has been taken out.
WM_DEVICE void
boxes_end(const wm_boxes_view &view)
{
    const wm_boxes_params_t &p = view.p;
    if (!wm_grid_ended(&view.head->blocks))
        return;
    for (uint32_t k = 1; k < p.size; k++) {
        const uint32_t to = (p.rank + k) % p.size;
        wm_boxes_head_t *head = (wm_boxes_head_t *)view.ranks[to].boxes;
        wm_store_system(&head->done[p.rank], view.number);
    }
    if (p.number == 0)
        view.head->count = view.number;
    if (p.word != nullptr) {
        wm_fence_system();
        wm_store_system(p.word, p.done);
    }
}

WM_KERNEL(wm_boxes_move, wm_boxes_params_t)
{
    const wm_boxes_view view = boxes_begin(p);
    move_boxes(view);
    boxes_end(view);
}

#define X(name, ...)                                                          \
    WM_KERNEL(wm_boxes_##name, wm_boxes_params_t)                             \
    {                                                                         \
        const wm_boxes_view view = boxes_begin(p);                            \
        fold_boxes(wm_rule_##name(), view);                                   \
        boxes_end(view);                                                      \
    }
WM_REDUCE_KERNEL_ROWS(X)
#undef X

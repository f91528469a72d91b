// SPDX-License-Identifier: BSD-3-Clause
#include "kernels/eager_ll.h"
#include "kernels/group.h"

// Lines that a thread has under way, enough for one pass in most cases. A
// group has more threads, so each needs fewer.
#define FEW_LINES 2
template <unsigned int blocks>
constexpr size_t many_lines = blocks > 1 ? 4 : 8;

template <unsigned int blocks>
WM_DEVICE bool
few_suffice(size_t lines)
{
    return blocks > 1 && lines <= FEW_LINES * wm_group_threads<blocks>();
}

#define LOOKS 256 // failed polls before a look at the stop word

// Replaces lines past the end by the last line, so that no branch is between
// the loads.
WM_DEVICE size_t
clamped(size_t line, size_t lines)
{
    return line < lines ? line : lines - 1;
}

// Returns the offset of unit `at`.
WM_DEVICE int64_t
place(const wm_eager_ll_memory_t &memory, uint32_t at)
{
    if (memory.ndim == 0)
        return (int64_t)at * memory.unit;
    uint32_t outer = at / memory.run;
    int64_t offset = (int64_t)(at - outer * memory.run) * memory.unit;
    for (uint32_t i = memory.ndim - 1; i > 0; i--) {
        const uint32_t next = outer / memory.shape[i];
        offset += (outer - next * memory.shape[i]) * memory.strides[i];
        outer = next;
    }
    return offset + outer * memory.strides[0];
}

template <typename unit_t>
WM_DEVICE uint64_t
load_payload(const wm_eager_ll_memory_t &memory, size_t line)
{
    const uint32_t each = WM_LINE_PAYLOAD / sizeof(unit_t);
    const uint32_t first = (uint32_t)line * each;
    uint64_t value = 0;
    for (uint32_t i = 0; i < each && first + i < memory.count; i++)
        value |= (uint64_t)
                     * (const unit_t *)(memory.data + place(memory, first + i))
                 << (8 * sizeof(unit_t) * i % 64);
    return value;
}

template <typename unit_t>
WM_DEVICE void
store_payload(const wm_eager_ll_memory_t &memory, size_t line, uint64_t value)
{
    const uint32_t each = WM_LINE_PAYLOAD / sizeof(unit_t);
    const uint32_t first = (uint32_t)line * each;
    for (uint32_t i = 0; i < each && first + i < memory.count; i++)
        *(unit_t *)(memory.data + place(memory, first + i)) =
            (unit_t)(value >> (8 * sizeof(unit_t) * i % 64));
}

WM_DEVICE size_t
lines_of(const wm_eager_ll_memory_t &memory)
{
    const size_t nbytes = (size_t)memory.count * memory.unit;
    return (nbytes + WM_LINE_PAYLOAD - 1) / WM_LINE_PAYLOAD;
}

template <unsigned int blocks, typename unit_t, size_t LINES>
WM_DEVICE void
write_lines(const wm_eager_ll_post_t &message, size_t lines)
{
    const size_t step = wm_group_threads<blocks>();
    for (size_t i = wm_group_thread<blocks>(); i < lines; i += LINES * step) {
        uint64_t values[LINES];
        WM_UNROLL
        for (size_t k = 0; k < LINES; k++)
            values[k] = load_payload<unit_t>(message.src,
                                             clamped(i + k * step, lines));
        WM_UNROLL
        for (size_t k = 0; k < LINES; k++)
            if (i + k * step < lines)
                wm_store_line(message.lines + (i + k * step) * WM_LINE_BYTES,
                              values[k], message.flag);
    }
}

template <unsigned int blocks, typename unit_t>
WM_DEVICE void
write(const wm_eager_ll_post_t &message)
{
    const size_t lines = lines_of(message.src);
    if (few_suffice<blocks>(lines))
        write_lines<blocks, unit_t, FEW_LINES>(message, lines);
    else
        write_lines<blocks, unit_t, many_lines<blocks>>(message, lines);
}

template <unsigned int blocks>
WM_DEVICE void
post(const wm_eager_ll_post_t &message)
{
    bool any;
    (void)wm_group_begin<blocks>();
    switch (message.src.unit) {
    case 8:
        write<blocks, uint64_t>(message);
        break;
    case 4:
        write<blocks, uint32_t>(message);
        break;
    case 2:
        write<blocks, uint16_t>(message);
        break;
    default:
        write<blocks, uint8_t>(message);
    }
    if (wm_group_ended<blocks>(false, &any))
        wm_store_system(message.ready, message.ready_value);
}

WM_DEVICE bool
eager_ll_aborts(const wm_eager_ll_fetch_t &message, uint64_t deadline,
                uint32_t looks)
{
    if (message.stop != nullptr && looks % LOOKS == 0
        && wm_load_system(message.stop) != 0)
        return true;
    return deadline != 0 && wm_now_ns() >= deadline;
}

// Reads lines i, i + step, … until all have the flag. Returns false if this
// took too long. All loads are issued before any line is examined.
template <size_t LINES>
WM_DEVICE bool
read_lines(const wm_eager_ll_fetch_t &message, size_t i, size_t step,
           size_t lines, uint64_t deadline, wm_line_t *read)
{
    for (uint32_t looks = 1;; ++looks) {
        WM_UNROLL
        for (size_t k = 0; k < LINES; k++)
            read[k] = wm_load_line(
                message.lines + clamped(i + k * step, lines) * WM_LINE_BYTES);
        bool come = true;
        WM_UNROLL
        for (size_t k = 0; k < LINES; k++)
            come = come && read[k].flags[0] == message.flag
                   && read[k].flags[1] == message.flag;
        if (come || eager_ll_aborts(message, deadline, looks))
            return come;
    }
}

template <unsigned int blocks, typename unit_t, size_t LINES>
WM_DEVICE bool
take_lines(const wm_eager_ll_fetch_t &message, size_t lines, uint64_t deadline)
{
    const size_t step = wm_group_threads<blocks>();
    bool come = true;
    for (size_t i = wm_group_thread<blocks>(); i < lines && come;
         i += LINES * step) {
        wm_line_t read[LINES];
        come = read_lines<LINES>(message, i, step, lines, deadline, read);
        WM_UNROLL
        for (size_t k = 0; k < LINES; k++)
            if (come && i + k * step < lines)
                store_payload<unit_t>(message.dst, i + k * step,
                                      (uint64_t)read[k].high << 32
                                          | read[k].low);
    }
    return come;
}

// Returns false if this thread's lines have not come in time.
template <unsigned int blocks, typename unit_t>
WM_DEVICE bool
take_in_time(const wm_eager_ll_fetch_t &message, uint32_t patience_us)
{
    const size_t lines = lines_of(message.dst);
    const uint64_t deadline = patience_us == WM_EAGER_LL_FOR_EVER
                                  ? 0
                                  : wm_now_ns() + patience_us * (uint64_t)1000;
    if (wm_group_begin<blocks>())
        return false;
    return few_suffice<blocks>(lines)
               ? take_lines<blocks, unit_t, FEW_LINES>(message, lines,
                                                       deadline)
               : take_lines<blocks, unit_t, many_lines<blocks>>(message, lines,
                                                                deadline);
}

template <unsigned int blocks>
WM_DEVICE bool
take(const wm_eager_ll_fetch_t &message, uint32_t patience_us)
{
    switch (message.dst.unit) {
    case 8:
        return take_in_time<blocks, uint64_t>(message, patience_us);
    case 4:
        return take_in_time<blocks, uint32_t>(message, patience_us);
    case 2:
        return take_in_time<blocks, uint16_t>(message, patience_us);
    default:
        return take_in_time<blocks, uint8_t>(message, patience_us);
    }
}

template <unsigned int blocks>
WM_DEVICE void
fetch(const wm_eager_ll_fetch_t &message, uint32_t patience_us)
{
    bool late = !take<blocks>(message, patience_us);
    if (!wm_group_ended<blocks>(late, &late))
        return;
    if (message.status != nullptr)
        wm_store_system(message.status,
                        late ? WM_EAGER_LL_LATE : WM_EAGER_LL_TAKEN);
    if (!late)
        wm_store_system(message.taken, message.taken_value);
}

template <unsigned int blocks, typename params_t>
WM_DEVICE void
run(const params_t &p)
{
    const unsigned int at = wm_group<blocks>();
    if (at < p.posts)
        post<blocks>(p.post[at]);
    else
        fetch<blocks>(p.fetch[at - p.posts], p.patience_us);
}

WM_KERNEL(wm_mail, wm_eager_ll_params_t)
{
    run<1>(p);
}

WM_KERNEL(wm_mail_pair, wm_eager_ll_pair_params_t)
{
    run<1>(p);
}

#ifdef WM_HAS_GROUPS
WM_KERNEL_OF_GROUPS(wm_mail_wide, wm_eager_ll_pair_params_t, WM_EAGER_LL_WIDTH)
{
    run<WM_EAGER_LL_WIDTH>(p);
}
#endif

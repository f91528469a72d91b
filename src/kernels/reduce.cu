// SPDX-License-Identifier: BSD-3-Clause
#include "kernels/reduce.h"
#include "kernels/group.h"
#include "kernels/rule.h"

// Loads that a thread has under way: fewer for one-byte elements, which take a
// register for each byte.
template <typename rule_t>
constexpr int REDUCED_AT_ONCE = sizeof(typename rule_t::element_t) > 1 ? 8 : 4;

struct alignas(WM_REDUCE_VECTOR) wm_reduced_vector {
    uint64_t part[2];
};

template <typename element_t> struct wm_reduced_bytes {
    unsigned char each[sizeof(element_t)];
};

// Bytes of elements, from `first` up to `end`. Those from `before` on lie
// behind a gap of `gap` bytes.
struct wm_reduced_range {
    uint64_t first;
    uint64_t end;
    uint64_t before;
    uint64_t gap;
};

// One of several fused reductions, with the members of a single one.
struct wm_fused_view {
    uint64_t vectors, head, singles;
    uint32_t op, n, targets, aligned;
    wm_average_t average;
    const char *const *src;
    char *const *dst;
    uint64_t thread, threads;
};

WM_DEVICE uint64_t
thread_of(const wm_reduce_params_t &)
{
    return wm_thread();
}

WM_DEVICE uint64_t
threads_of(const wm_reduce_params_t &)
{
    return wm_threads();
}

WM_DEVICE uint64_t
thread_of(const wm_fused_view &view)
{
    return view.thread;
}

WM_DEVICE uint64_t
threads_of(const wm_fused_view &view)
{
    return view.threads;
}

WM_DEVICE uint64_t
place(const wm_reduced_range &range, uint64_t at)
{
    return at < range.before ? at : at + range.gap;
}

// Reduces the units of a thread, each from every source before the next.
// AT_ONCE loads are issued, across units, before the first value is used. Past
// the end the last unit is loaded again, so that no branch is between the
// loads. The code that uses a value exists once, for the first loaded value:
// an unrolled copy for each would not be worth its size.
template <typename unit_t, int AT_ONCE, typename rule_t, typename params_t>
WM_DEVICE void
reduce_units(rule_t rule, const params_t &p, uint64_t thread,
             const wm_reduced_range &range)
{
    constexpr int EACH = sizeof(unit_t) / sizeof(typename rule_t::element_t);
    const uint64_t step = threads_of(p) * sizeof(unit_t);
    const uint64_t last = range.end - sizeof(unit_t);
    typename rule_t::acc_t acc[EACH] = {}, values[EACH];
    uint64_t at = range.first + thread * sizeof(unit_t);
    uint64_t asked = at; // the next unit and source to load
    uint32_t asked_of = 0;
    uint32_t used = 0; // sources of the unit `at` that were used
    while (at < range.end) {
        unit_t loaded[AT_ONCE];
        WM_UNROLL
        for (int k = 0; k < AT_ONCE; k++) {
            const uint64_t clamped = asked < range.end ? asked : last;
            const char *src = p.src[asked_of] + place(range, clamped);
            loaded[k] = *(const unit_t *)src;
            if (++asked_of == p.n) {
                asked_of = 0;
                asked += step;
            }
        }
        WM_ROLLED
        for (int k = 0; k < AT_ONCE && at < range.end; k++) {
            wm_widen(rule, loaded[0], values);
            if (used > 0)
                rule.fold(p.op, acc, values, EACH);
            WM_UNROLL
            for (int i = 0; i < EACH && used == 0; i++)
                acc[i] = values[i];
            if (++used == p.n) {
                const unit_t result = wm_narrow<unit_t>(rule, p.average, acc);
                WM_ROLLED
                for (uint32_t to = 0; to < p.targets; to++)
                    *(unit_t *)(p.dst[to] + place(range, at)) = result;
                used = 0;
                at += step;
            }
            WM_UNROLL
            for (int next = 1; next < AT_ONCE; next++)
                loaded[next - 1] = loaded[next];
        }
    }
}

// Reduces the only unit of a thread, from every source, without a loop over
// units.
template <typename unit_t, typename rule_t>
WM_DEVICE void
reduce_unit(rule_t rule, const wm_reduce_params_t &p, uint64_t at)
{
    constexpr int EACH = sizeof(unit_t) / sizeof(typename rule_t::element_t);
    constexpr int AT_ONCE = REDUCED_AT_ONCE<rule_t>;
    typename rule_t::acc_t acc[EACH] = {}, values[EACH];
    for (uint32_t first = 0; first < p.n; first += AT_ONCE) {
        unit_t loaded[AT_ONCE];
        WM_UNROLL
        for (int k = 0; k < AT_ONCE; k++)
            if (first + k < p.n)
                loaded[k] = *(const unit_t *)(p.src[first + k] + at);
        WM_ROLLED
        for (int k = 0; k < AT_ONCE && first + k < p.n; k++) {
            wm_widen(rule, loaded[0], values);
            if (first + k > 0)
                rule.fold(p.op, acc, values, EACH);
            WM_UNROLL
            for (int i = 0; i < EACH && first + k == 0; i++)
                acc[i] = values[i];
            WM_UNROLL
            for (int next = 1; next < AT_ONCE; next++)
                loaded[next - 1] = loaded[next];
        }
    }
    const unit_t result = wm_narrow<unit_t>(rule, p.average, acc);
    WM_ROLLED
    for (uint32_t to = 0; to < p.targets; to++)
        *(unit_t *)(p.dst[to] + at) = result;
}

// Reduces vectors and single elements. The last threads, which vectors may not
// need, take the single elements.
template <typename rule_t, typename params_t>
WM_DEVICE void
reduce(rule_t rule, const params_t &p)
{
    typedef typename rule_t::element_t element_t;
    const uint64_t forward = thread_of(p);
    const uint64_t backward = threads_of(p) - 1 - forward;
    const uint64_t head = p.head * sizeof(element_t);
    const uint64_t nbytes = p.vectors * WM_REDUCE_VECTOR;
    const wm_reduced_range vectors = {head, head + nbytes, UINT64_MAX, 0};
    const wm_reduced_range singles = {0, p.singles * sizeof(element_t), head,
                                      nbytes};
    reduce_units<wm_reduced_vector, REDUCED_AT_ONCE<rule_t>>(rule, p, forward,
                                                             vectors);
    if (p.aligned)
        reduce_units<element_t, REDUCED_AT_ONCE<rule_t>>(rule, p, backward,
                                                         singles);
    else if (alignof(element_t) > 1)
        reduce_units<wm_reduced_bytes<element_t>, 1>(rule, p, backward,
                                                     singles);
}

// Reduces with one thread for each vector and each single element. Returns
// false if there are too few threads, or the elements are not aligned.
template <typename rule_t>
WM_DEVICE bool
reduce_few(rule_t rule, const wm_reduce_params_t &p)
{
    typedef typename rule_t::element_t element_t;
    const uint64_t thread = thread_of(p), single = thread - p.vectors;
    const uint64_t before = p.head * sizeof(element_t);
    const uint64_t nbytes = p.vectors * WM_REDUCE_VECTOR;
    if (!p.aligned || p.vectors + p.singles > threads_of(p))
        return false;
    if (thread < p.vectors)
        reduce_unit<wm_reduced_vector>(rule, p,
                                       before + thread * WM_REDUCE_VECTOR);
    else if (single < p.singles)
        reduce_unit<element_t>(rule, p,
                               single * sizeof(element_t)
                                   + (single < p.head ? 0 : nbytes));
    return true;
}

// Returns the work of a block.
WM_DEVICE wm_fused_view
fused_view(const wm_fused_params_t &p, uint32_t block)
{
    uint32_t i = 0;
    while (i + 1 < p.count && p.parts[i + 1].first <= block)
        i++;
    const wm_fused_member_t &part = p.parts[i];
    const uint32_t end = i + 1 < p.count ? p.parts[i + 1].first : p.blocks;
    const uint64_t each = wm_group_threads<1>();
    char *const *pointers = p.pointers + part.at;
    return {part.vectors,
            part.head,
            part.singles,
            p.op,
            p.n,
            p.targets,
            part.aligned,
            p.average,
            pointers,
            pointers + p.n,
            (block - part.first) * each + wm_group_thread<1>(),
            (end - part.first) * each};
}

// Kernels of half a multiprocessor: they have room beside a kernel that waits
// for another rank, which may in turn wait for them.
#define X(name, ...)                                                          \
    WM_KERNEL_OF_HALF(wm_reduce_##name, wm_reduce_params_t)                   \
    {                                                                         \
        if (!reduce_few(wm_rule_##name(), p))                                 \
            reduce(wm_rule_##name(), p);                                      \
        wm_signal_end(p.signal);                                              \
    }                                                                         \
    WM_KERNEL_OF_HALF(wm_fused_##name, wm_fused_params_t)                     \
    {                                                                         \
        for (uint32_t at = wm_block(); at < p.blocks; at += wm_blocks())      \
            reduce(wm_rule_##name(), fused_view(p, at));                      \
        wm_signal_end(p.signal);                                              \
    }
WM_REDUCE_KERNEL_ROWS(X)
#undef X

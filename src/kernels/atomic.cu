// SPDX-License-Identifier: BSD-3-Clause
#include "kernels/atomic.h"
#include "kernels/rule.h"

// The word that holds an element: hardware swaps no smaller one.
template <size_t size> struct wm_atomic_word {
    typedef uint32_t word_t;
};
template <> struct wm_atomic_word<8> {
    typedef uint64_t word_t;
};

// Returns the element that replaces `old`.
template <typename rule_t>
WM_DEVICE typename rule_t::element_t
updated(rule_t rule, uint32_t op, typename rule_t::element_t old,
        typename rule_t::element_t given)
{
    if (op == WM_REDUCE_REPLACE)
        return given;
    if (op == WM_REDUCE_NO_OP)
        return old;
    typename rule_t::acc_t acc = rule.widen(old), value = rule.widen(given);
    rule.fold(op, &acc, &value, 1);
    return rule.narrow(acc);
}

// Returns the address of an element of the target.
template <typename number_t>
WM_DEVICE char *
strided_target(const wm_atomic_params_t &p, number_t element)
{
    char *dst = p.dst;
    for (int i = p.ndim - 1; i >= 0; --i) {
        const number_t extent = (number_t)p.shape[i], outer = element / extent;
        dst += (int64_t)(element - outer * extent) * p.strides[i];
        element = outer;
    }
    return dst;
}

WM_DEVICE char *
target_of(const wm_atomic_params_t &p, uint64_t element, size_t each)
{
    return p.ndim == 0             ? p.dst + element * each
           : p.count <= UINT32_MAX ? strided_target(p, (uint32_t)element)
                                   : strided_target(p, element);
}

// Updates one element: repeats until no one else has changed its word.
template <typename rule_t>
WM_DEVICE void
atomic_update(rule_t rule, const wm_atomic_params_t &p, char *dst, uint64_t at)
{
    typedef typename rule_t::element_t element_t;
    typedef typename wm_atomic_word<sizeof(element_t)>::word_t word_t;
    constexpr word_t MASK = (word_t) ~(word_t)0
                            >> (8 * (sizeof(word_t) - sizeof(element_t)));
    const size_t within = (uintptr_t)dst % sizeof(word_t);
    const unsigned int shift = 8 * (unsigned int)within;
    word_t *word = (word_t *)(dst - within);
    word_t before, seen = *(volatile word_t *)word;
    word_t expected = 0, bits;
    element_t given, old;
    __builtin_memcpy(&given, p.src + at, sizeof(given));
    if (p.compare != nullptr)
        __builtin_memcpy(&expected, p.compare + at, sizeof(given));
    do {
        before = seen;
        bits = before >> shift & MASK;
        __builtin_memcpy(&old, &bits, sizeof(old));
        if (p.compare != nullptr && bits != expected)
            break;
        const element_t made = updated(rule, p.op, old, given);
        bits = 0;
        __builtin_memcpy(&bits, &made, sizeof(made));
        seen = wm_swap_system(word, before,
                              (before & ~(MASK << shift)) | bits << shift);
    } while (seen != before);
    if (p.fetched != nullptr)
        __builtin_memcpy(p.fetched + at, &old, sizeof(old));
}

#ifdef __CUDACC__
// Elements that hardware adds without a loop.
template <typename element_t> struct wm_added {
    static constexpr bool AT_ONCE = false;
};
#define X(element_t)                                                          \
    template <> struct wm_added<element_t> {                                  \
        static constexpr bool AT_ONCE = true;                                 \
    };
X(uint32_t)
X(uint64_t)
X(float)
X(double)
#undef X

template <typename element_t>
WM_DEVICE void
add_all(element_t *dst, const element_t *src, uint64_t count)
{
    for (uint64_t i = wm_thread(); i < count; i += wm_threads())
        wm_add_system(dst + i, src[i]);
}

WM_DEVICE void
add_all(float *dst, const float *src, uint64_t count)
{
    uint64_t fours = 0;
    if (((uintptr_t)dst | (uintptr_t)src) % sizeof(float4) == 0)
        fours = count / 4;
    for (uint64_t i = wm_thread(); i < fours; i += wm_threads())
        wm_add_four_system(dst + 4 * i, ((const float4 *)src)[i]);
    for (uint64_t i = 4 * fours + wm_thread(); i < count; i += wm_threads())
        wm_add_system(dst + i, src[i]);
}

template <typename element_t>
WM_DEVICE void
add_strided(const wm_atomic_params_t &p)
{
    for (uint64_t i = wm_thread(); i < p.count; i += wm_threads())
        wm_add_system((element_t *)target_of(p, i, sizeof(element_t)),
                      ((const element_t *)p.src)[i]);
}
#endif

// Adds the elements, if hardware does so without a loop. Returns false if not.
template <typename rule_t>
WM_DEVICE bool
atomic_is_added(const wm_atomic_params_t &p)
{
#ifdef __CUDACC__
    typedef typename rule_t::element_t element_t;
    if constexpr (wm_added<element_t>::AT_ONCE) {
        if (p.op != WM_REDUCE_SUM || p.compare != nullptr
            || p.fetched != nullptr || (uintptr_t)p.src % sizeof(element_t))
            return false;
        if (p.ndim == 0)
            add_all((element_t *)p.dst, (const element_t *)p.src, p.count);
        else
            add_strided<element_t>(p);
        return true;
    }
#endif
    (void)p;
    return false;
}

template <typename rule_t>
WM_DEVICE void
atomic_all(rule_t rule, const wm_atomic_params_t &p)
{
    constexpr size_t EACH = sizeof(typename rule_t::element_t);
    if (atomic_is_added<rule_t>(p))
        ;
    else if constexpr (EACH <= WM_ATOMIC_BYTES)
        for (uint64_t i = wm_thread(); i < p.count; i += wm_threads())
            atomic_update(rule, p, target_of(p, i, EACH), i * EACH);
    wm_signal_end(p.signal);
}

#define X(name, ...)                                                          \
    WM_KERNEL_OF_HALF(wm_atomic_##name, wm_atomic_params_t)                   \
    {                                                                         \
        atomic_all(wm_rule_##name(), p);                                      \
    }
WM_REDUCE_KERNEL_ROWS(X)
#undef X

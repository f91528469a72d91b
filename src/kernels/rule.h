// SPDX-License-Identifier: BSD-3-Clause
// The types of fold.h as rules, wm_rule_<name>, which are template arguments
// of kernels.
#ifndef WM_KERNELS_RULE_H
#define WM_KERNELS_RULE_H

#include "kernels/fold.h"
#include "kernels/kernel.h"

#define X(name, each_t, computed_t)                                           \
    struct wm_rule_##name {                                                   \
        typedef each_t element_t;                                             \
        typedef computed_t acc_t;                                             \
        WM_DEVICE acc_t                                                       \
        widen(element_t element)                                              \
        {                                                                     \
            return wm_widen_##name(element);                                  \
        }                                                                     \
        WM_DEVICE element_t                                                   \
        narrow(acc_t value)                                                   \
        {                                                                     \
            return wm_narrow_##name(value);                                   \
        }                                                                     \
        WM_DEVICE void                                                        \
        fold(uint32_t op, acc_t *acc, const acc_t *values, int n)             \
        {                                                                     \
            wm_fold_##name(op, acc, values, n);                               \
        }                                                                     \
        WM_DEVICE void                                                        \
        divide(const wm_average_t &average, acc_t *acc, int n)                \
        {                                                                     \
            wm_divide_##name(&average, acc, n);                               \
        }                                                                     \
    };
WM_REDUCE_KERNEL_ROWS(X)
#undef X

// A unit holds one element or more.
template <typename unit_t, typename rule_t>
WM_DEVICE void
wm_widen(rule_t rule, const unit_t &unit, typename rule_t::acc_t *values)
{
    constexpr int EACH = sizeof(unit_t) / sizeof(typename rule_t::element_t);
    typename rule_t::element_t elements[EACH];
    __builtin_memcpy(elements, &unit, sizeof(unit));
    WM_UNROLL
    for (int i = 0; i < EACH; i++)
        values[i] = rule.widen(elements[i]);
}

// Returns the result of a reduction; divides it first if it is an average.
template <typename unit_t, typename rule_t>
WM_DEVICE unit_t
wm_narrow(rule_t rule, const wm_average_t &average,
          typename rule_t::acc_t *values)
{
    constexpr int EACH = sizeof(unit_t) / sizeof(typename rule_t::element_t);
    typename rule_t::element_t elements[EACH];
    unit_t unit;
    rule.divide(average, values, EACH);
    WM_UNROLL
    for (int i = 0; i < EACH; i++)
        elements[i] = rule.narrow(values[i]);
    __builtin_memcpy(&unit, elements, sizeof(unit));
    return unit;
}

#endif

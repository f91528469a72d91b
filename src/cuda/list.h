// SPDX-License-Identifier: BSD-3-Clause
// Lists of structs that are linked by their members `next` and `prev`. `first`
// and `last` are NULL in an empty list.
#ifndef WM_CUDA_LIST_H
#define WM_CUDA_LIST_H

#include <stddef.h>

#define WM_LIST_APPEND(first, last, item)                                     \
    do {                                                                      \
        (item)->next = NULL;                                                  \
        (item)->prev = (last);                                                \
        *((last) != NULL ? &(last)->next : &(first)) = (item);                \
        (last) = (item);                                                      \
    } while (0)

#define WM_LIST_REMOVE(first, last, item)                                     \
    do {                                                                      \
        *((item)->prev != NULL ? &(item)->prev->next                          \
                               : &(first)) = (item)->next;                    \
        *((item)->next != NULL ? &(item)->next->prev                          \
                               : &(last)) = (item)->prev;                     \
        (item)->next = (item)->prev = NULL;                                   \
    } while (0)

#endif

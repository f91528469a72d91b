// SPDX-License-Identifier: BSD-3-Clause
// Checks of programs in C, and their tables of cases. A program has an `err`.
#ifndef WM_TESTS_CHECK_H
#define WM_TESTS_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                      \
    do {                                                                      \
        if (!(condition)) {                                                   \
            fprintf(stderr, "%s:%d: %s (last error: %s)\n", __FILE__,         \
                    __LINE__, #condition, err.text);                          \
            exit(1);                                                          \
        }                                                                     \
    } while (0)

// A row of a table: the name of a function, and the function.
#define CASE(name)                                                            \
    {                                                                         \
#name, name                                                           \
    }

#endif

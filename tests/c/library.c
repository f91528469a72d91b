// SPDX-License-Identifier: BSD-3-Clause
// Opens the library NAME by cuda/library.h, and prints the answer of its
// function and its path, or the error: library NAME FUNCTION FOLDERS [LOADED]
#include "cuda/library.h"

#include <dlfcn.h>
#include <stdio.h>

#include "check.h"

typedef struct {
    void *before;
    int (*answer)(void);
} table_t;

int
main(int count, char **words)
{
    wm_error_t err = {0};
    wm_library_t library = {words[1], "some/lib", "install it", RTLD_LOCAL};
    wm_library_function_t function = {words[2], offsetof(table_t, answer)};
    table_t table = {0};
    char *path = NULL;
    CHECK(count < 5 || dlopen(words[4], RTLD_NOW | RTLD_LOCAL) != NULL);
    wm_library_set_folders(words[3]);
    if (wm_library_open(&library, &function, 1, &table, &path, &err) < 0) {
        printf("%s\n", err.text);
        return 0;
    }
    printf("%d %s\n", table.answer(), path);
    free(path);
    return 0;
}

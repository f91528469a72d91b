// SPDX-License-Identifier: BSD-3-Clause
// Shared libraries that a program may have, such as NCCL's: opened at first
// use, never linked and never closed, as threads of theirs run in them. Any
// thread.
#ifndef WM_CUDA_LIBRARY_H
#define WM_CUDA_LIBRARY_H

#include <stddef.h>

#include "cuda/error.h"

typedef struct {
    const char *name; // the loader's, as "libnccl.so.2"
    // Its folder in a package of the registry, below a folder of sys.path, as
    // "nvidia/nccl/lib"; NULL: no package has it.
    const char *folder;
    const char *cure; // what to do where there is none: the end of an error
    int mode;         // RTLD_LOCAL or RTLD_GLOBAL
} wm_library_t;

// A function of a library: a field of a table of function pointers.
typedef struct {
    const char *name;
    size_t offset;
} wm_library_function_t;

// Sets the folders in which packages are looked for, separated by colons, as
// sys.path has them; relative ones are passed over. Called once, before any
// use.
void
wm_library_set_folders(const char *folders);

// Opens a library: the copy that this process has loaded already, as two in
// one process would not know of each other; else the one of the loader's path;
// else a package's. Fills `functions` of `table`. Writes *path, where the
// library was found, which the caller may free(); NULL: not wanted. Returns 0,
// or WM_ERR_STATE: there is no library, none loads, or it lacks a function.
WM_MUST_CHECK int
wm_library_open(const wm_library_t *library,
                const wm_library_function_t *functions, size_t count,
                void *table, char **path, wm_error_t *err);

// Returns the number of libraries that this process has loaded so far: while
// it stays, none has come, and the loader, who takes some 20 us to say so,
// need not be asked.
unsigned long long
wm_library_loads(void);

#endif

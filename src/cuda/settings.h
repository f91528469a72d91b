// SPDX-License-Identifier: BSD-3-Clause
// The environment variables that are read at run time: a row each, and their
// parsers. An empty value is an unset one, but for TUNED, which _points.py
// reads. docs/guide.md tells what they do.
#ifndef WM_CUDA_SETTINGS_H
#define WM_CUDA_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>

#include "cuda/error.h"

// X(name, what, standard, values): WARPMPI_<name> is `what`, acts as
// `standard` if it is unset ("": the setting is off), and may be set to
// `values`.
#define WM_SETTINGS(X)                                                        \
    X(CHECK, "a switch", "", "1")                                             \
    X(CUDA_DRIVER, "a library", "libcuda.so.1", "a path")                     \
    X(EAGER_LIMIT, "a number of bytes", "65536", "0 or more")                 \
    X(HANG_SECONDS, "a number of seconds", "10", "0 for no reports")          \
    X(HOST, "a name", "", "any text")                                         \
    X(HOST_MESSAGES, "a known value", "", "mpi")                              \
    X(LOG, "a known value", "",                                               \
      "cuda, which writes the calls of the driver to stderr")                 \
    X(TRANSPORT, "a transport", "", "ipc, host or mpi")                       \
    X(TUNED, "a file", "~/.cache/warpmpi/tuned.json", "a path")

typedef enum {
#define X(name, what, standard, values) WM_SETTING_##name,
    WM_SETTINGS(X)
#undef X
        WM_SETTINGS_KNOWN,
} wm_setting_t;

typedef struct {
    const char *name, *what, *standard, *values; // as above
} wm_setting_row_t;

extern const wm_setting_row_t wm_setting_rows[WM_SETTINGS_KNOWN];

// Returns the value, or NULL if it is unset.
const char *
wm_setting_text(wm_setting_t setting);

// Returns true if it is set, to something but 0.
bool
wm_setting_is_on(wm_setting_t setting);

// Read the value, or the standard. Returns 0, or WM_ERR_VALUE if it is none;
// *value is then the standard.
WM_MUST_CHECK int
wm_setting_bytes(wm_setting_t setting, size_t *value, wm_error_t *err);

WM_MUST_CHECK int
wm_setting_seconds(wm_setting_t setting, double *value, wm_error_t *err);

// Writes that the value is none of those that there are, and which there are.
// Returns WM_ERR_VALUE.
int
wm_setting_refuse(wm_setting_t setting, wm_error_t *err);

#endif

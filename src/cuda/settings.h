// SPDX-License-Identifier: BSD-3-Clause
// The environment variables that are read at run time: a row each, and their
// parsers. An empty value is an unset one, but for TUNED, which _points.py
// reads. docs/environment.md tells what they do.
#ifndef WM_CUDA_SETTINGS_H
#define WM_CUDA_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>

#include "cuda/error.h"

// X(type, what): the types of values, as errors call them.
#define WM_SETTING_TYPES(X)                                                   \
    X(SWITCH, "a switch")                                                     \
    X(BYTES, "a number of bytes")                                             \
    X(SECONDS, "a number of seconds")                                         \
    X(WORD, "a known value")                                                  \
    X(TRANSPORT, "a transport")                                               \
    X(TEXT, "any text")                                                       \
    X(PATH, "a path")

// X(ranks, what): if ranks may have different values. MUST: making a
// communicator fails. SHOULD: the doctor tells of them.
#define WM_SETTING_RANKS(X)                                                   \
    X(MUST, "must be alike")                                                  \
    X(SHOULD, "should be alike")                                              \
    X(OWN, "each its own")

// X(name, type, standard, values, ranks, help): WARPMPI_<name> acts as
// `standard` if it is unset ("": the setting is off), and may be set to
// `values`. The guide has these words.
#define WM_SETTINGS(X)                                                        \
    X(TRANSPORT, TRANSPORT, "", "ipc, host, mpi or ucx", SHOULD,              \
      "how GPU memory travels")                                               \
    X(EAGER_LIMIT, BYTES, "65536", "0 or more", SHOULD,                       \
      "bytes up to which a blocking Send of GPU memory, or a send on a "      \
      "stream, does not wait for its receiver")                               \
    X(HOST_MESSAGES, WORD, "", "mpi", MUST,                                   \
      "calls with host memory only are MPI's own")                            \
    X(REQUIRE, WORD, "", "gpu", MUST,                                         \
      "a call raises where it would stage GPU memory through the host")       \
    X(HOST, TEXT, "", "any text", OWN,                                        \
      "instead of the host's identity: ranks with different texts act as if " \
      "on different hosts, for tests")                                        \
    X(CUDA_DRIVER, PATH, "libcuda.so.1", "a path", SHOULD,                    \
      "the driver library")                                                   \
    X(HANG_SECONDS, SECONDS, "10", "0 for no reports", OWN,                   \
      "seconds after which a call that still waits says so")                  \
    X(CHECK, SWITCH, "", "1", MUST,                                           \
      "checks collectives, element types of messages, and what is left at "   \
      "the end")                                                              \
    X(ENGINES, WORD, "",                                                      \
      "names of hierarchy, copies, kernels, nccl and mpi, with commas "       \
      "between",                                                              \
      MUST,                                                                   \
      "the engines of collectives that may serve; mpi always may. Without "   \
      "mpi in the list the others also do calls of less than 64 KiB between " \
      "hosts")                                                                \
    X(TUNED, PATH, "~/.cache/warpmpi/tuned.json", "a path", OWN,              \
      "the measured thresholds of collectives; those of rank 0 count")        \
    X(LOG, WORD, "", "cuda, route, or cuda,route", OWN,                       \
      "writes to stderr: cuda, calls of the driver; route, the protocol of "  \
      "each message and the engine of each collective")

typedef enum {
#define X(type, what) WM_SETTING_TYPE_##type,
    WM_SETTING_TYPES(X)
#undef X
} wm_setting_type_t;

typedef enum {
#define X(ranks, what) WM_SETTING_RANKS_##ranks,
    WM_SETTING_RANKS(X)
#undef X
} wm_setting_ranks_t;

typedef enum {
#define X(name, ...) WM_SETTING_##name,
    WM_SETTINGS(X)
#undef X
        WM_SETTINGS_KNOWN,
} wm_setting_t;

typedef struct {
    const char *name;
    wm_setting_type_t type;
    const char *standard, *values;
    wm_setting_ranks_t ranks;
    const char *help; // as above
} wm_setting_row_t;

extern const wm_setting_row_t wm_setting_rows[WM_SETTINGS_KNOWN];
extern const char *const wm_setting_types[], *const wm_setting_ranks[];

// The values of the settings that must be alike, in the order of the rows, as
// ranks tell them to each other.
enum {
#define X(name, type, standard, values, ranks, help)                          \
    +(WM_SETTING_RANKS_##ranks == WM_SETTING_RANKS_MUST)
    WM_SETTINGS_ALIKE = 0 WM_SETTINGS(X)
#undef X
};

typedef struct {
    char values[WM_SETTINGS_ALIKE][64]; // "": unset
} wm_settings_alike_t;

void
wm_settings_tell(wm_settings_alike_t *mine);

// Returns 0, or WM_ERR_STATE if a setting that must be alike differs between
// two ranks.
WM_MUST_CHECK int
wm_settings_compare(const wm_settings_alike_t *mine, int rank,
                    const wm_settings_alike_t *theirs, int their_rank,
                    wm_error_t *err);

// Returns the value, or NULL if it is unset.
const char *
wm_setting_text(wm_setting_t setting);

// Takes a text that lives for ever in place of the environment's; "": unset.
void
wm_setting_replace(wm_setting_t setting, const char *text);

// Returns true if the switch is set, to something but 0. Read once.
bool
wm_setting_is_on(wm_setting_t setting);

// Read the value, or the standard. Returns 0, or WM_ERR_VALUE if it is none;
// *value is then the standard.
WM_MUST_CHECK int
wm_setting_bytes(wm_setting_t setting, size_t *value, wm_error_t *err);

WM_MUST_CHECK int
wm_setting_seconds(wm_setting_t setting, double *value, wm_error_t *err);

// Returns the lines that WARPMPI_LOG asks for, as bits; -1 if its value is
// none of those that there are.
enum {
    WM_LOG_CUDA = 1,  // calls of the driver
    WM_LOG_ROUTE = 2, // messages and collectives (comm/engine/route.h)
};
int
wm_setting_log(void);

// Writes that the value is none of those that there are, and which there are.
// Returns WM_ERR_VALUE.
int
wm_setting_refuse(wm_setting_t setting, wm_error_t *err);

#endif

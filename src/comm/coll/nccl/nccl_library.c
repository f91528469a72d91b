// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/nccl/nccl_library.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdatomic.h>

#include "cuda/library.h"
#include "cuda/lock.h"

#define MAGIC 0xcafebeefu
#define CURE                                                                  \
    "install NCCL 2.20 or newer (`pip install nvidia-nccl-cu12` or -cu13, "   \
    "or the system's package) on all hosts, of one version"

wm_nccl_functions_t wm_nccl;

static const wm_library_t nccl_library = {
    .name = "libnccl.so.2",
    .folder = "nvidia/nccl/lib",
    .cure = CURE,
    .mode = RTLD_LOCAL,
};

static const wm_library_function_t nccl_functions[] = {
#define X(name, result, arguments)                                            \
    {"nccl" #name, offsetof(wm_nccl_functions_t, name)},
    WM_NCCL_FUNCTIONS(X)
#undef X
};

enum { UNLOADED = 0, LOADED = 1, FAILED = -1 };

static pthread_mutex_t nccl_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int nccl_state;
static wm_error_t nccl_failure; // if the state is FAILED
static int nccl_version;
static char *nccl_path;

static int
nccl_library_load(wm_error_t *err)
{
    int code = wm_library_open(&nccl_library, nccl_functions,
                               sizeof nccl_functions / sizeof *nccl_functions,
                               &wm_nccl, &nccl_path, err);
    if (code == 0)
        code = WM_NCCL(err, GetVersion, &nccl_version);
    if (code < 0 || nccl_version >= WM_NCCL_OLDEST)
        return code;
    return wm_error_set(err, WM_ERR_STATE, 0, "%s is NCCL %d.%d: %s",
                        nccl_path, nccl_version / 10000,
                        nccl_version / 100 % 100, nccl_library.cure);
}

int
wm_nccl_load(wm_error_t *err)
{
    int now = atomic_load_explicit(&nccl_state, memory_order_acquire);
    if (now == LOADED)
        return 0;
    if (now == UNLOADED) {
        wm_lock(&nccl_lock);
        now = atomic_load(&nccl_state);
        if (now == UNLOADED) {
            now = nccl_library_load(&nccl_failure) == 0 ? LOADED : FAILED;
            atomic_store_explicit(&nccl_state, now, memory_order_release);
        }
        pthread_mutex_unlock(&nccl_lock);
    }
    return now == LOADED ? 0
                         : wm_error_set(err, nccl_failure.code, 0, "%s",
                                        nccl_failure.text);
}

int
wm_nccl_version(void)
{
    return atomic_load(&nccl_state) == LOADED ? nccl_version : 0;
}

static int
nccl_library_find(const char **version, const char **path, wm_error_t *err)
{
    static char text[32];
    int code = wm_nccl_load(err);
    if (code < 0)
        return code;
    snprintf(text, sizeof text, "%d.%d.%d", nccl_version / 10000,
             nccl_version / 100 % 100, nccl_version % 100);
    *version = text;
    *path = nccl_path;
    return 0;
}

const wm_coll_library_t wm_nccl_for_people = {
    .title = "NCCL",
    .cure = CURE,
    .find = nccl_library_find,
};

wm_nccl_config_t
wm_nccl_config(int blocking)
{
    return (wm_nccl_config_t){
        .size = sizeof(wm_nccl_config_t),
        .magic = MAGIC,
        .version = WM_NCCL_OLDEST,
        .blocking = blocking,
        .cga = INT_MIN,
        .min_ctas = INT_MIN,
        .max_ctas = INT_MIN,
        .share = INT_MIN,
    };
}

int
wm_nccl_check(wm_nccl_result_t result, const char *call, wm_error_t *err)
{
    if (result == WM_NCCL_SUCCESS || result == WM_NCCL_IN_PROGRESS)
        return 0;
    const char *more = wm_nccl.GetLastError(NULL);
    return wm_error_set(err, WM_ERR_STATE, result,
                        "%s failed: %s%s%s; NCCL_DEBUG=WARN tells more", call,
                        wm_nccl.GetErrorString(result),
                        more != NULL && *more != '\0' ? ": " : "",
                        more != NULL ? more : "");
}

// SPDX-License-Identifier: BSD-3-Clause
#define _GNU_SOURCE
#include "comm/link/ucx_library.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/driver.h"
#include "cuda/library.h"

#define OLDEST 17 // minor number of the oldest version of UCX 1 that we use
#define CURE                                                                  \
    "put UCX 1.17 or newer with CUDA, as the package libucx-cu12, into "      \
    "LD_LIBRARY_PATH"

wm_ucx_functions_t wm_ucx;

static const wm_library_t library = {
    .name = "libucp.so.0",
    .folder = "libucx/lib",
    .cure = CURE,
    .mode = RTLD_GLOBAL, // for the modules that UCX loads
};

static const wm_library_function_t functions[] = {
#define X(result, name, arguments) {#name, offsetof(wm_ucx_functions_t, name)},
    WM_UCX_FUNCTIONS(X)
#undef X
};

static wm_ucx_t opened;
static char version[40], *path; // of the library
static char told[600];          // wm_ucx_tell()
static wm_error_t failure;      // code 0: none so far

static bool
ucx_sees_adapters(void)
{
    DIR *all = opendir("/sys/class/infiniband");
    bool any = false;
    for (struct dirent *one; all != NULL && (one = readdir(all)) != NULL;)
        any |= one->d_name[0] != '.';
    if (all != NULL)
        closedir(all);
    return any;
}

bool
wm_ucx_is_likely(void)
{
    void *loaded = dlopen(library.name, RTLD_NOW | RTLD_NOLOAD);
    if (loaded != NULL)
        dlclose(loaded);
    return loaded != NULL || ucx_sees_adapters();
}

// Returns 0, or an error with the name of the call that failed.
static int
ucx_check(wm_ucs_status_t status, const char *call, wm_error_t *err)
{
    return status == WM_UCS_OK
               ? 0
               : wm_error_set(err, WM_ERR_VALUE, 0,
                              "%s of %s fails (%s): set UCX_LOG_LEVEL=info "
                              "to see why",
                              call, version, wm_ucx.ucs_status_string(status));
}

static int
ucx_load(wm_error_t *err)
{
    unsigned major = 0, minor = 0, release = 0;
    int code = wm_library_open(&library, functions,
                               sizeof functions / sizeof *functions, &wm_ucx,
                               &path, err);
    if (code < 0)
        return code;
    wm_ucx.ucp_get_version(&major, &minor, &release);
    snprintf(version, sizeof version, "UCX %u.%u.%u", major, minor, release);
    return major == 1 && minor >= OLDEST
               ? 0
               : wm_error_set(err, WM_ERR_VALUE, 0,
                              "%s is too old: %s; found: %s", version, CURE,
                              path);
}

static bool
ucx_is_rdma(const char *transport)
{
    static const char *const prefixes[] = {"rc_", "dc_", "ud_", "srd"};
    bool is = false;
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; ++i)
        is |= strncmp(transport, prefixes[i], strlen(prefixes[i])) == 0;
    return is;
}

// Reads the transports from UCX's own description of the context, whose lines
// "resource ..." end in transport/device; UCX has no other list of them.
static void
ucx_find_transports(wm_ucx_t *ucx)
{
    char *text = NULL, *line, *rest;
    size_t length = 0;
    FILE *file = open_memstream(&text, &length);
    if (file == NULL)
        return;
    wm_ucx.ucp_context_print_info(ucx->context, file);
    fclose(file);
    snprintf(told, sizeof told, "%s, %.200s, transports:", version, path);
    for (line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        char *last = strrchr(line, ' ');
        if (strstr(line, "resource ") == NULL || last == NULL)
            continue;
        ucx->rdma |= ucx_is_rdma(last + 1);
        strncat(told, last, sizeof told - strlen(told) - 1);
    }
    free(text);
}

// Makes the context. We register device memory ourselves, and give it up
// before it is freed. UCX's own cache of registrations would have to see all
// frees, but its hooks miss those of drivers' functions that were found
// through cuGetProcAddress, as ours are. `scheme`: of rendezvous; NULL: UCX's.
static int
ucx_init(wm_ucx_t *ucx, const char *scheme, wm_error_t *err)
{
    void *config = NULL;
    wm_ucp_params_t params = {
        .mask = WM_UCP_PARAM_FEATURES | WM_UCP_PARAM_MT_WORKERS_SHARED,
        .features = WM_UCP_FEATURE_TAG | WM_UCP_FEATURE_RMA
                    | WM_UCP_FEATURE_WAKEUP,
        .mt_workers_shared = 1, // any thread ends registrations
    };
    int code = ucx_check(wm_ucx.ucp_config_read(NULL, NULL, &config),
                         "ucp_config_read", err);
    if (code < 0)
        return code;
    (void)wm_ucx.ucp_config_modify(config, "RCACHE_ENABLE", "n");
    if (scheme != NULL)
        (void)wm_ucx.ucp_config_modify(config, "RNDV_SCHEME", scheme);
    code = ucx_check(
        wm_ucx.ucp_init_version(1, OLDEST, &params, config, &ucx->context),
        "ucp_init", err);
    wm_ucx.ucp_config_release(config);
    return code;
}

// Without RDMA UCX itself would copy device memory in pieces of 8 KiB, and 1
// MiB would take 2.2 ms over TCP. By pipelined puts it takes 0.24 to 0.34 ms.
static int
ucx_make_context(bool asked, wm_ucx_t *ucx, wm_error_t *err)
{
    wm_ucp_context_attr_t attr = {.mask = WM_UCP_ATTR_MEMORY_TYPES};
    int code = ucx_init(ucx, NULL, err);
    if (code < 0)
        return code;
    ucx_find_transports(ucx);
    if (asked && !ucx->rdma && getenv("UCX_RNDV_SCHEME") == NULL) {
        wm_ucx.ucp_cleanup(ucx->context);
        ucx->context = NULL;
        code = ucx_init(ucx, "put_ppln", err);
    }
    if (code == 0)
        code = ucx_check(wm_ucx.ucp_context_query(ucx->context, &attr),
                         "ucp_context_query", err);
    if (code < 0)
        return code;
    ucx->cuda = (attr.memory_types & 1u << WM_UCS_MEMORY_CUDA) != 0;
    return ucx->cuda || wm_driver_is_absent()
               ? 0
               : wm_error_set(err, WM_ERR_VALUE, 0,
                              "%s lacks CUDA: %s; found: %s", version, CURE,
                              path);
}

static int
ucx_make_worker(wm_ucx_t *ucx, wm_error_t *err)
{
    wm_ucp_worker_params_t params = {
        .mask = WM_UCP_WORKER_PARAM_THREAD_MODE,
        .thread_mode = WM_UCS_THREAD_SERIALIZED,
    };
    int code = ucx_check(
        wm_ucx.ucp_worker_create(ucx->context, &params, &ucx->worker),
        "ucp_worker_create", err);
    if (code == 0
        && wm_ucx.ucp_worker_get_efd(ucx->worker, &ucx->fd) != WM_UCS_OK)
        ucx->fd = -1;
    return code;
}

int
wm_ucx_open(bool asked, wm_ucx_t **ucx, wm_error_t *err)
{
    *ucx = &opened;
    if (opened.worker != NULL)
        return 0;
    if (failure.code == 0) {
        int code = ucx_load(&failure);
        if (code == 0)
            code = ucx_make_context(asked, &opened, &failure);
        if (code == 0)
            code = ucx_make_worker(&opened, &failure);
        if (code == 0)
            return 0;
        if (opened.context != NULL)
            wm_ucx.ucp_cleanup(opened.context);
        opened.context = NULL;
    }
    return wm_error_set(err, failure.code, 0, "%s", failure.text);
}

const char *
wm_ucx_tell(void)
{
    if (failure.code != 0)
        return failure.text;
    return opened.worker != NULL ? told : NULL;
}

void
wm_ucx_close(bool lost)
{
    if (opened.worker != NULL && !lost) {
        wm_ucx.ucp_worker_destroy(opened.worker);
        wm_ucx.ucp_cleanup(opened.context);
    }
    opened.worker = opened.context = NULL;
}

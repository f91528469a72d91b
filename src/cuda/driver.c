// SPDX-License-Identifier: BSD-3-Clause
#define _GNU_SOURCE
#include "cuda/driver.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda/library.h"
#include "cuda/lock.h"
#include "cuda/settings.h"

wm_driver_t wm_cu;

enum need { OPTIONAL, REQUIRED };

typedef struct {
    const char *name;
    int version;
    enum need need;
    size_t offset;
} symbol_t;

static const symbol_t symbols[] = {
#define X(name, version, need)                                                \
    {"cu" #name, version, need, offsetof(wm_driver_t, name)},
#include "cuda/driver_list.h"
#undef X
};

enum { UNLOADED = 0, LOADED = 1, FAILED = -1 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int state;
static _Atomic bool forked;
static _Atomic bool logging;
static wm_error_t failure; // the error, if the state is FAILED
static int driver_version;
static int device_count;

// The look-up function has two forms; the one of CUDA 12 also writes a status.
typedef struct {
    PFN_cuGetProcAddress_v12000 v2;
    PFN_cuGetProcAddress_v11030 v1;
} lookup_t;

// Returns true if the user chose the driver: errors about it are then
// reported.
static bool
driver_is_chosen(void)
{
    return wm_setting_text(WM_SETTING_CUDA_DRIVER) != NULL;
}

static const char *
driver_path(void)
{
    const char *chosen = wm_setting_text(WM_SETTING_CUDA_DRIVER);
    return chosen != NULL ? chosen : "libcuda.so.1";
}

static bool
wants_log(void)
{
    int log = wm_setting_log();
    wm_error_t err;
    if (log < 0) {
        (void)wm_setting_refuse(WM_SETTING_LOG, &err);
        fprintf(stderr, "warpmpi: %s; nothing is logged\n", err.text);
    }
    return log > 0 && (log & WM_LOG_CUDA) != 0;
}

static void *
look_up(const lookup_t *lookup, const char *name, int version)
{
    void *function = NULL;
    CUresult result;
    if (lookup->v2 != NULL) {
        result = lookup->v2(name, &function, version,
                            CU_GET_PROC_ADDRESS_DEFAULT, NULL);
    }
    else {
        result = lookup->v1(name, &function, version,
                            CU_GET_PROC_ADDRESS_DEFAULT);
    }
    return result == CUDA_SUCCESS ? function : NULL;
}

static int
fill_table(void *library, const char *path, wm_error_t *err)
{
    lookup_t lookup = {
        (PFN_cuGetProcAddress_v12000)dlsym(library, "cuGetProcAddress_v2"),
        (PFN_cuGetProcAddress_v11030)dlsym(library, "cuGetProcAddress"),
    };
    if (lookup.v2 == NULL && lookup.v1 == NULL) {
        return wm_error_set(err, WM_ERR_DRIVER, 0,
                            "%s has no cuGetProcAddress: a driver for CUDA "
                            "12 or newer is needed",
                            path);
    }
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        const symbol_t *symbol = &symbols[i];
        void *function = look_up(&lookup, symbol->name, symbol->version);
        if (function == NULL && symbol->need == REQUIRED) {
            return wm_error_set(err, WM_ERR_DRIVER, 0,
                                "%s lacks %s (as of CUDA %d.%d): a driver "
                                "for CUDA 12 or newer is needed",
                                path, symbol->name, symbol->version / 1000,
                                symbol->version % 1000 / 10);
        }
        // POSIX lets a data pointer hold a function's address.
        memcpy((char *)&wm_cu + symbol->offset, &function, sizeof(function));
    }
    return 0;
}

static void
on_fork_child(void)
{
    atomic_store(&forked, true);
}

// Opens the driver's library; returns NULL if there is none. Refuses other
// than regular files: at a pipe the loader would wait for ever.
static void *
driver_open(int mode, wm_error_t *err)
{
    const char *path = driver_path();
    struct statx facts;
    void *library = NULL;
    bool other = strchr(path, '/') != NULL
                 && statx(AT_FDCWD, path, 0, STATX_TYPE, &facts) == 0
                 && !S_ISREG(facts.stx_mode);
    if (!other)
        library = dlopen(path, mode);
    if (library == NULL) {
        (void)wm_error_set(err, WM_ERR_DRIVER, 0, "no CUDA driver: %s%s",
                           other ? path : dlerror(),
                           other ? " is not a regular file" : "");
    }
    return library;
}

static int
load(wm_error_t *err)
{
    const char *path = driver_path();
    // Never closed: contexts and threads of the driver live in it.
    void *library = driver_open(RTLD_NOW | RTLD_LOCAL, err);
    if (library == NULL)
        return WM_ERR_DRIVER;
    if (fill_table(library, path, err) < 0)
        return err->code;
    CUresult result = wm_cu.Init(0);
    if (result == CUDA_ERROR_NOT_INITIALIZED) {
        return wm_error_set(err, WM_ERR_DRIVER, result,
                            "cuInit(0) failed: CUDA was initialised in a "
                            "parent process before fork(); start processes "
                            "by spawn or mpirun");
    }
    if (WM_CU(err, DriverGetVersion, &driver_version) < 0)
        driver_version = 0;
    if (wm_cu_check(result, "cuInit(0)", err) < 0
        || WM_CU(err, DeviceGetCount, &device_count) < 0) {
        err->code = WM_ERR_DRIVER;
        return err->code;
    }
    // A child cannot use CUDA once its parent has; the handler makes calls
    // fail there.
    if (pthread_atfork(NULL, NULL, on_fork_child) != 0) {
        return wm_error_set(err, WM_ERR_DRIVER, 0,
                            "cannot register a fork handler");
    }
    return 0;
}

int
wm_driver_load(wm_error_t *err)
{
    int now = atomic_load_explicit(&state, memory_order_acquire);
    if (atomic_load_explicit(&forked, memory_order_relaxed)) {
        return wm_error_set(err, WM_ERR_STATE, 0,
                            "CUDA cannot be used in a forked child: use "
                            "multiprocessing's 'spawn' start method, or "
                            "start ranks by mpirun");
    }
    if (now == LOADED)
        return 0;
    if (now == UNLOADED) {
        wm_lock(&lock);
        now = atomic_load(&state);
        if (now == UNLOADED) {
            atomic_store(&logging, wants_log());
            now = load(&failure) == 0 ? LOADED : FAILED;
            if (now == FAILED && driver_is_chosen()) {
                fprintf(stderr, "warpmpi: WARPMPI_CUDA_DRIVER: %s\n",
                        failure.text);
            }
            atomic_store_explicit(&state, now, memory_order_release);
        }
        pthread_mutex_unlock(&lock);
    }
    if (now == LOADED)
        return 0;
    return wm_error_set(err, failure.code, failure.detail, "%s", failure.text);
}

// Returns true if a driver is loaded and has at least one device; never an
// error.
static bool
is_available(void)
{
    int now = atomic_load_explicit(&state, memory_order_acquire);
    return (now == LOADED || wm_driver_load(NULL) == 0) && device_count > 0;
}

int
wm_driver_version(void)
{
    return is_available() ? driver_version : 0;
}

int
wm_driver_device_count(void)
{
    return is_available() ? device_count : 0;
}

bool
wm_driver_forked(void)
{
    return atomic_load_explicit(&forked, memory_order_relaxed);
}

bool
wm_driver_in_process(void)
{
    static _Atomic unsigned long long absent_at;
    if (atomic_load_explicit(&state, memory_order_acquire) != UNLOADED)
        return atomic_load_explicit(&state, memory_order_relaxed) == LOADED;
    unsigned long long loads = wm_library_loads();
    if (loads == atomic_load(&absent_at))
        return false;
    void *library = driver_open(RTLD_NOW | RTLD_NOLOAD, NULL);
    if (library == NULL) {
        atomic_store(&absent_at, loads);
        return false;
    }
    dlclose(library);
    return wm_driver_load(NULL) == 0;
}

// Containers see the kernel's modules, too, whatever devices they are given.
bool
wm_driver_host_lacks(void)
{
    static const char *const signs[] = {
        "/sys/module/nvidia", "/sys/module/nvgpu", "/proc/driver/nvidia",
        "/dev/nvidiactl",     "/dev/dxg",
    };
    for (size_t i = 0; i < sizeof signs / sizeof *signs; ++i)
        if (access(signs[i], F_OK) == 0)
            return false;
    return access("/sys/module", R_OK) == 0;
}

bool
wm_driver_is_absent(void)
{
    return driver_is_chosen() ? access(driver_path(), F_OK) != 0
                              : wm_driver_host_lacks();
}

static const char *
error_name(CUresult result)
{
    const char *name = NULL;
    if (wm_cu.GetErrorName == NULL
        || wm_cu.GetErrorName(result, &name) != CUDA_SUCCESS || name == NULL)
        return NULL;
    return name;
}

const char *
wm_cu_error_name(int result)
{
    const char *name = error_name((CUresult)result);
    return name != NULL ? name : "CUDA_ERROR_UNKNOWN";
}

int
wm_cu_check(CUresult result, const char *call, wm_error_t *err)
{
    bool log = atomic_load_explicit(&logging, memory_order_relaxed);
    if (result == CUDA_SUCCESS && !log)
        return 0;
    const char *name = error_name(result);
    if (log) {
        fprintf(stderr, "warpmpi: %s -> %s\n", call,
                name != NULL ? name : "unknown result");
    }
    if (result == CUDA_SUCCESS)
        return 0;
    int code = result == CUDA_ERROR_OUT_OF_MEMORY ? WM_ERR_MEMORY
                                                  : WM_ERR_CUDA;
    if (name == NULL) {
        return wm_error_set(err, code, (int)result,
                            "%s failed with unknown CUDA result %d", call,
                            (int)result);
    }
    const char *text = NULL;
    if (wm_cu.GetErrorString(result, &text) != CUDA_SUCCESS || text == NULL)
        text = "no description";
    return wm_error_set(err, code, (int)result, "%s failed: %s (%s)", call,
                        name, text);
}

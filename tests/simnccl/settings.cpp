// SPDX-License-Identifier: BSD-3-Clause
// Settings, failures, and the driver.
#include "simnccl.h"

#include "faults.h"

#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>

namespace simnccl {

struct Counter {
    long calls = 0, fail_at = 0, block_at = 0;
    int code = 0;
};

static auto &mu = *new std::mutex;
static auto &counters = *new std::map<std::string, Counter>;
static auto &warning = *new std::string;

static const char *
plain(const char *name)
{
    return strncmp(name, "nccl", 4) == 0 ? name + 4 : name;
}

static void
arm(const char *name, long n, int code)
{
    Counter &counter = counters[plain(name)];
    counter.fail_at = n > 0 ? counter.calls + n : n;
    counter.code = code != 0 ? code : ncclInternalError;
}

static bool
arm_by_environment()
{
    if (sim::faults_are_here("SIMNCCL_FAIL_RANK"))
        sim::faults_read("SIMNCCL_FAIL", arm);
    return true;
}

Result
count_call(const char *name)
{
    std::lock_guard<std::mutex> guard(mu);
    static bool armed = arm_by_environment();
    (void)armed;
    Counter &counter = counters[plain(name)];
    counter.calls++;
    bool fails = counter.fail_at == counter.calls || counter.fail_at < 0;
    return fails ? (Result)sim::fault_happens(counter.code) : ncclSuccess;
}

bool
call_blocks(const char *name)
{
    std::lock_guard<std::mutex> guard(mu);
    const Counter &counter = counters[plain(name)];
    return counter.block_at != 0 && counter.block_at == counter.calls;
}

Result
warn(Result result, const char *format, ...)
{
    char text[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "simnccl: %s\n", text);
    std::lock_guard<std::mutex> guard(mu);
    warning = text;
    return result;
}

std::string
last_warning()
{
    std::lock_guard<std::mutex> guard(mu);
    return warning;
}

int
slow_ms()
{
    const char *text = getenv("SIMNCCL_SLOW");
    return text != nullptr ? atoi(text) : 0;
}

static Driver *
find_driver()
{
    const char *path = getenv("WARPMPI_CUDA_DRIVER");
    void *library = path ? dlopen(path, RTLD_NOW) : nullptr;
    static Driver found;
    struct {
        const char *name;
        void *function;
    } rows[] = {
        {"simcuda_enqueue", &found.enqueue},
        {"simcuda_demand", &found.demand},
        {"simcuda_settle", &found.settle},
        {"simcuda_wake", &found.wake},
        {"simcuda_line_end", &found.line_end},
        {"cuCtxGetDevice", &found.device},
        {"cuDeviceGetUuid_v2", &found.uuid},
        {"cuMemAlloc_v2", &found.allocate},
        {"cuMemFree_v2", &found.release},
    };
    for (auto &row : rows) {
        void *function = library ? dlsym(library, row.name) : nullptr;
        if (function == nullptr)
            return nullptr;
        memcpy(row.function, &function, sizeof function);
    }
    return &found;
}

const Driver *
driver()
{
    static Driver *found = find_driver();
    if (found == nullptr)
        warn(ncclSystemError, "WARPMPI_CUDA_DRIVER names no simulated driver "
                              "with streams for guests: make simcuda");
    return found;
}

} // namespace simnccl

using namespace simnccl;

NCCL_API void
simnccl_fail(const char *name, long n, int code)
{
    count_call("");
    std::lock_guard<std::mutex> guard(simnccl::mu);
    arm(name, n, code);
}

NCCL_API void
simnccl_block(const char *name, long n)
{
    std::lock_guard<std::mutex> guard(simnccl::mu);
    Counter &counter = counters[plain(name)];
    counter.block_at = counter.calls + n;
}

NCCL_API long
simnccl_calls(const char *name)
{
    std::lock_guard<std::mutex> guard(simnccl::mu);
    return counters[plain(name)].calls;
}

NCCL_API Result
ncclGetVersion(int *version)
{
    Result failed = count_call("GetVersion");
    if (failed || version == nullptr)
        return failed ? failed : ncclInvalidArgument;
    const char *text = getenv("SIMNCCL_VERSION");
    *version = text != nullptr ? atoi(text) : 22809;
    return ncclSuccess;
}

NCCL_API const char *
ncclGetErrorString(Result code)
{
    static const char *const texts[] = {
        "no error",
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "internal error - please report this issue to the NCCL developers",
        "invalid argument (run with NCCL_DEBUG=WARN for details)",
        "invalid usage (run with NCCL_DEBUG=WARN for details)",
        "remote process exited or there was a network error",
        "NCCL operation in progress",
    };
    return (unsigned)code < 8 ? texts[code] : "unknown result code";
}

NCCL_API const char *
ncclGetLastError(ncclComm_t)
{
    static thread_local std::string text;
    text = last_warning();
    return text.c_str();
}

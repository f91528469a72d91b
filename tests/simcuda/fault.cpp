// SPDX-License-Identifier: BSD-3-Clause
// Counts every driver call and makes chosen ones fail: SIMCUDA_FAIL,
// SIMCUDA_FAIL_ANY, SIMCUDA_FAIL_RANK, and simcuda_calls(), simcuda_fail().
// Has a lock of its own, so that it also works in a forked child.
// SIMCUDA_TOOL_US simulates a tool that reads Python's stack at each call.
#include "sim.h"

#include "faults.h"

#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

namespace sim {

struct Counter {
    long calls = 0;
    long fail_at = 0; // the call number that fails, 0: none, -1: all
    CUresult code = CUDA_SUCCESS;
};

static std::mutex &fault_mu = *new std::mutex;
static auto &counters = *new std::map<std::string, Counter>;
static Counter any;
static bool child;
static long fail_us; // duration of a failing call
static long tool_us; // duration of the tool at each call; 0: no tool

static std::string
plain(const char *name)
{
    std::string s = name;
    if (s.compare(0, 2, "cu") == 0)
        s.erase(0, 2);
    size_t n = s.size();
    if (n > 3 && s[n - 3] == '_' && s[n - 2] == 'v')
        s.erase(n - 3);
    return s;
}

static CUresult
default_code(const std::string &name)
{
    return name.find("Alloc") != std::string::npos ? CUDA_ERROR_OUT_OF_MEMORY
                                                   : CUDA_ERROR_UNKNOWN;
}

static void
arm(const char *name, long n, int code)
{
    bool all = name == nullptr || strcmp(name, "*") == 0;
    if (all && n == 0) // disarms all
        for (auto &item : counters)
            item.second.fail_at = 0;
    Counter &c = all ? any : counters[plain(name)];
    c.fail_at = n > 0 ? c.calls + n : n;
    c.code = code != 0 ? (CUresult)code
             : all     ? CUDA_ERROR_UNKNOWN
                       : default_code(plain(name));
}

template <typename function_t>
static function_t *
of_python(const char *name)
{
    return (function_t *)dlsym(RTLD_DEFAULT, name);
}

// Takes the GIL, as tools do that read Python's stack, and releases it
// meanwhile, as any Python code does (CUPTI's callbacks).
static void
take_gil()
{
    static auto *running = of_python<int()>("Py_IsInitialized");
    static auto *ending = of_python<int()>("Py_IsFinalizing") != nullptr
                              ? of_python<int()>("Py_IsFinalizing")
                              : of_python<int()>("_Py_IsFinalizing");
    static auto *ensure = of_python<int()>("PyGILState_Ensure");
    static auto *release = of_python<void(int)>("PyGILState_Release");
    static auto *let_go = of_python<void *()>("PyEval_SaveThread");
    static auto *take_back = of_python<void(void *)>("PyEval_RestoreThread");
    if (running != nullptr && ending != nullptr && running() && !ending()) {
        int state = ensure();
        void *held = let_go();
        usleep((useconds_t)tool_us / 2);
        take_back(held);
        release(state);
    }
}

void
fault_init()
{
    const char *tool = getenv("SIMCUDA_TOOL_US");
    tool_us = tool != nullptr ? atol(tool) : 0;
    pthread_atfork(nullptr, nullptr, [] {
        new (&fault_mu) std::mutex;
        child = child || initialised;
    });
    if (!faults_are_here("SIMCUDA_FAIL_RANK"))
        return;
    if (const char *text = getenv("SIMCUDA_FAIL_ANY"))
        arm(nullptr, atol(text), 0);
    faults_read("SIMCUDA_FAIL", arm);
}

bool
forked()
{
    return child;
}

CUresult
count_call(const char *name, bool after_init)
{
    CUresult code = CUDA_SUCCESS;
    long us;
    if (tool_us > 0 && !child) {
        usleep((useconds_t)tool_us / 2);
        take_gil();
    }
    {
        std::lock_guard<std::mutex> guard(fault_mu);
        std::string called = plain(name);
        Counter &c = counters[called];
        c.calls++;
        trace("cu%s", called.c_str());
        any.calls += after_init;
        if (c.calls == c.fail_at || c.fail_at < 0)
            code = (CUresult)fault_happens(c.code);
        else if (after_init && any.calls == any.fail_at)
            code = (CUresult)fault_happens(any.code);
        us = fail_us;
    }
    if (code != CUDA_SUCCESS && us > 0)
        usleep((useconds_t)us);
    return code;
}

} // namespace sim

SIM_EXPORT long
simcuda_calls(const char *name)
{
    std::lock_guard<std::mutex> guard(sim::fault_mu);
    if (name != nullptr) {
        auto it = sim::counters.find(sim::plain(name));
        return it == sim::counters.end() ? 0 : it->second.calls;
    }
    long calls = 0;
    for (auto &item : sim::counters)
        calls += item.second.calls;
    return calls;
}

SIM_EXPORT void
simcuda_fail(const char *name, long n, int code)
{
    std::lock_guard<std::mutex> guard(sim::fault_mu);
    sim::arm(name, n, code);
}

SIM_EXPORT void
simcuda_fail_slowly(long us)
{
    std::lock_guard<std::mutex> guard(sim::fault_mu);
    sim::fail_us = us;
}

// SPDX-License-Identifier: BSD-3-Clause
// Kernels: the library's own, compiled for the host, and a few built in. A
// kernel uses the addresses that its program knows, which have no access. When
// it faults on an address that its device may reach, the allocation is opened
// until no kernel runs; any other fault is an illegal address on the device.
#include "sim.h"

#include "kernels/kernel.h"
#include "kernels/eager_ll.h"

#include <csetjmp>
#include <csignal>
#include <cstring>
#include <sys/mman.h>

wm_host_kernel *wm_host_kernels;
thread_local size_t wm_host_thread, wm_host_threads, wm_host_block_threads;
thread_local bool wm_host_any;

namespace sim {

struct Function {
    Context *ctx;
    const wm_host_kernel *kernel;
};

struct Module {
    Context *ctx;
    std::vector<std::unique_ptr<Function>> functions;
};

struct Running {
    Context *ctx;
    sigjmp_buf out;
};

int kernels_running;
static auto &modules =
    *new std::unordered_map<CUmodule, std::unique_ptr<Module>>;
static auto &functions = *new std::unordered_map<CUfunction, Function *>;
static auto &opened = *new std::vector<RangePtr>;
static auto &most_blocks = *new std::map<std::string, long>; // by kernel
static thread_local Running *running; // the kernel on this thread
static struct sigaction old_actions[2];
// Blocks of kernels that give each block a task.
constexpr size_t BLOCKS_AT_LEAST = 16;
static_assert(BLOCKS_AT_LEAST >= WM_EAGER_LL_MESSAGES);
static_assert(BLOCKS_AT_LEAST >= 2 * WM_EAGER_LL_WIDTH);
static const int fault_signals[2] = {SIGSEGV, SIGBUS};

long
modules_live()
{
    return (long)modules.size();
}

static bool
open_range(const Context *ctx, uintptr_t address)
{
    Lock lock(mu);
    RangePtr range = range_find(address & ~(PAGE - 1));
    if (range == nullptr
        || (range->kind != Kind::DEVICE && range->kind != Kind::IMPORTED)
        || !copies_reach(ctx->device, range)
        || (!range->pooled && !reaches(ctx, range->ctx->device)))
        return false;
    mprotect((void *)range->base, range->room, PROT_READ | PROT_WRITE);
    if (!range->open) {
        range->open = true;
        opened.push_back(range);
    }
    return true;
}

static void
on_fault(int sig, siginfo_t *info, void *context)
{
    // The body of a kernel holds no lock, so it is safe to take ours here.
    if (running != nullptr) {
        if (!open_range(running->ctx, (uintptr_t)info->si_addr))
            siglongjmp(running->out, 1);
        return;
    }
    const struct sigaction &old = old_actions[sig == SIGBUS];
    if (old.sa_flags & SA_SIGINFO)
        old.sa_sigaction(sig, info, context);
    else if (old.sa_handler != SIG_DFL && old.sa_handler != SIG_IGN)
        old.sa_handler(sig);
    else
        sigaction(sig, &old, nullptr); // faults again, and ends
}

static void
begin_kernel()
{
    Lock lock(mu);
    if (kernels_running++ > 0)
        return;
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    for (int i = 0; i < 2; i++)
        sigaction(fault_signals[i], &action, &old_actions[i]);
}

static void
end_kernel()
{
    Lock lock(mu);
    if (--kernels_running > 0)
        return;
    for (int i = 0; i < 2; i++)
        sigaction(fault_signals[i], &old_actions[i], nullptr);
    for (const RangePtr &range : opened) {
        mprotect((void *)range->base, range->room, config.access);
        range->open = false;
    }
    opened.clear();
}

static CUresult
run_kernel(Context *ctx, const wm_host_kernel *kernel, size_t blocks,
           size_t block_threads, const void *params)
{
    Running here;
    here.ctx = ctx;
    volatile CUresult result = CUDA_SUCCESS;
    begin_kernel();
    if (sigsetjmp(here.out, 1) == 0) {
        running = &here;
        wm_host_threads = blocks * block_threads;
        wm_host_block_threads = block_threads;
        for (size_t i = 0; i < wm_host_threads; i++) {
            wm_host_thread = i;
            kernel->run(params);
        }
    }
    else {
        result = CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    running = nullptr;
    end_kernel();
    return result;
}

} // namespace sim

using namespace sim;

CUresult
cuModuleLoadData(CUmodule *handle, const void *image)
{
    Call call("ModuleLoadData");
    if (!call)
        return call.result;
    if (image == nullptr)
        return CUDA_ERROR_INVALID_VALUE;
    auto module = std::make_unique<Module>();
    module->ctx = call.ctx;
    *handle = (CUmodule)module.get();
    modules[*handle] = std::move(module);
    return CUDA_SUCCESS;
}

CUresult
cuModuleUnload(CUmodule handle)
{
    Call call("ModuleUnload");
    if (!call)
        return call.result;
    auto it = modules.find(handle);
    if (it == modules.end())
        return CUDA_ERROR_INVALID_HANDLE;
    for (auto &function : it->second->functions)
        functions.erase((CUfunction)function.get());
    modules.erase(it);
    return CUDA_SUCCESS;
}

CUresult
cuModuleGetFunction(CUfunction *handle, CUmodule module, const char *name)
{
    Call call("ModuleGetFunction");
    if (!call)
        return call.result;
    auto it = modules.find(module);
    if (it == modules.end())
        return CUDA_ERROR_INVALID_HANDLE;
    const wm_host_kernel *kernel = wm_host_kernels;
    while (kernel != nullptr && strcmp(kernel->name, name) != 0)
        kernel = kernel->next;
    if (kernel == nullptr)
        return CUDA_ERROR_NOT_FOUND;
    auto function = std::make_unique<Function>();
    *function = {it->second->ctx, kernel};
    *handle = (CUfunction)function.get();
    functions[*handle] = function.get();
    it->second->functions.push_back(std::move(function));
    return CUDA_SUCCESS;
}

CUresult
cuLaunchKernel(CUfunction handle, unsigned int gx, unsigned int gy,
               unsigned int gz, unsigned int bx, unsigned int by,
               unsigned int bz, unsigned int, CUstream stream_handle,
               void **params, void **)
{
    Call call("LaunchKernel");
    if (!call)
        return call.result;
    auto it = functions.find(handle);
    StreamPtr stream = stream_of(stream_handle, call.ctx);
    if (it == functions.end() || stream == nullptr
        || it->second->ctx != call.ctx || stream->ctx != call.ctx)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult admitted = capture_admits(stream);
    if (admitted != CUDA_SUCCESS)
        return admitted;
    trace("  %s", it->second->kernel->name);
    size_t block = (size_t)bx * by * bz;
    size_t blocks = (size_t)gx * gy * gz;
    if (blocks * block == 0 || block > 1024 || gy > 65535 || gz > 65535
        || params == nullptr)
        return CUDA_ERROR_INVALID_VALUE;
    long &most = most_blocks[it->second->kernel->name];
    most = std::max(most, (long)blocks);
    block = std::min(block, config.kernel_threads);
    blocks = std::min(
        blocks, std::max(BLOCKS_AT_LEAST, config.kernel_threads / block));
    const wm_host_kernel *kernel = it->second->kernel;
    // Rounded up to whole units of the strictest alignment.
    using Unit = std::max_align_t;
    auto copy = std::make_shared<std::vector<Unit>>(
        kernel->params_size / sizeof(Unit) + 1);
    memcpy((void *)copy->data(), params[0], kernel->params_size);
    Context *ctx = call.ctx;
    Op op;
    op.run = [=] {
        return run_kernel(ctx, kernel, blocks, block, copy->data());
    };
    enqueue(stream, std::move(op));
    return CUDA_SUCCESS;
}

SIM_EXPORT long
simcuda_most_blocks(const char *kernel)
{
    Lock lock(mu);
    return most_blocks[kernel];
}

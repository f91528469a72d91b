// SPDX-License-Identifier: BSD-3-Clause
// Halo exchange (halo.h). The first block tells the neighbours that their
// kernels may write our ghosts, as our stream has come here, and at the end
// waits for their data. Each other block reads a part of our edges, waits
// until the neighbour has told us the same, stores, and counts itself in the
// neighbour's memory. The first block also waits for the others, which do not
// wait for it.
#include "kernels/halo.h"

#include "kernels/peer_wait.h"

struct alignas(16) wm_halo_unit16 {
    uint64_t part[2];
};

#ifdef __CUDACC__
// Defines a kernel of up to 1024 threads a block, for which a multiprocessor
// has room for one or, of half as many threads, for two.
#define WM_KERNEL_OF_LINES(name, params_t)                                    \
    extern "C" __global__ void __launch_bounds__(1024, 1)                     \
        name(const params_t p)

WM_DEVICE void
store_far(uint64_t *word, uint64_t value)
{
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value)
                 : "memory");
}

// Counts a block that has ended; called by one thread.
WM_DEVICE void
count_block(uint32_t *blocks)
{
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(blocks)
                 : "memory");
}

// Waits until all other blocks have ended, which need this one no more.
WM_DEVICE void
await_blocks(uint32_t *blocks)
{
    while (*(volatile uint32_t *)blocks + 1 < gridDim.x)
        wm_pause();
    *(volatile uint32_t *)blocks = 0;
}

// Copies a task into shared memory, of which each place has one; called by all
// threads of the block, which wait for each other before they use the task.
template <int place>
WM_DEVICE const wm_halo_task_t &
fetch_task(const wm_halo_task_t *task)
{
    __shared__ wm_halo_task_t fetched;
    const uint32_t words = sizeof(fetched) / sizeof(uint32_t);
    if (threadIdx.x < words)
        ((uint32_t *)&fetched)[threadIdx.x] =
            ((const uint32_t *)task)[threadIdx.x];
    return fetched;
}

// The first task of a block, and the distance to its next one: the first block
// has none if there are others.
WM_DEVICE uint32_t
first_task()
{
    return gridDim.x == 1 ? 0 : blockIdx.x == 0 ? UINT32_MAX : blockIdx.x - 1;
}

WM_DEVICE uint32_t
task_step()
{
    return gridDim.x == 1 ? 1 : gridDim.x - 1;
}

// The same where the first block is as all others.
WM_DEVICE uint32_t
first_line_task()
{
    return blockIdx.x;
}

WM_DEVICE uint32_t
line_task_step()
{
    return gridDim.x;
}
#else
#define WM_KERNEL_OF_LINES(name, params_t) WM_KERNEL(name, params_t)

WM_DEVICE void
store_far(uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

WM_DEVICE void
count_block(uint32_t *)
{
}

WM_DEVICE void
await_blocks(uint32_t *)
{
}

template <int place>
WM_DEVICE const wm_halo_task_t &
fetch_task(const wm_halo_task_t *task)
{
    return *task;
}

WM_DEVICE uint32_t
first_task()
{
    return 0;
}

WM_DEVICE uint32_t
task_step()
{
    return 1;
}

WM_DEVICE uint32_t
first_line_task()
{
    return 0;
}

WM_DEVICE uint32_t
line_task_step()
{
    return 1;
}
#endif

// Loads a task where another one was.
template <int place>
WM_DEVICE const wm_halo_task_t &
load_task(const wm_halo_task_t *task)
{
    wm_block_sync(); // the last one is needed no more
    const wm_halo_task_t &loaded = fetch_task<place>(task);
    wm_block_sync();
    return loaded;
}

WM_DEVICE uint64_t *
word_of(char *memory, uint32_t line, uint32_t at)
{
    return (uint64_t *)(memory + (size_t)line * WM_HALO_LINE + at);
}

// Waits until a counter has reached the value. Returns false if a rank has
// died.
WM_DEVICE bool
await(const uint64_t *word, uint64_t value, const uint32_t *abort)
{
    return wm_await(
        [&] { return wm_has_reached(word, value); },
        [&](uint32_t looks) { return wm_is_stopped(abort, looks); });
}

WM_DEVICE uint32_t
divide(uint32_t n, const wm_divisor_t &by)
{
    const uint32_t high = (uint32_t)(((uint64_t)n * by.magic) >> 32);
    return (high + n) >> by.shift;
}

// Returns the offset of a unit.
WM_DEVICE int64_t
offset_of(const wm_halo_task_t &task, const int64_t *strides, uint32_t at)
{
    int64_t offset = 0;
    WM_UNROLL
    for (uint32_t i = 0; i < WM_HALO_NDIM - 1; i++)
        if (i + 1 < task.ndim) {
            const uint32_t outer = divide(at, task.shape[i]);
            offset += (at - outer * task.shape[i].divisor) * strides[i];
            at = outer;
            if (i + 2 == task.ndim)
                offset += at * strides[i + 1];
        }
    return task.ndim > 1 ? offset : at * strides[0];
}

// Waits until the task's neighbour lets us write; called by all threads of the
// block.
WM_DEVICE bool
may_write(const wm_halo_params_t &p, const wm_halo_task_t &task,
          uint64_t epoch)
{
    if (task.peer == WM_HALO_SELF || p.peer_count == 0)
        return true;
    bool may = true;
    if (wm_block_leads())
        may = await(word_of(p.memory, p.peers[task.peer].rank, WM_HALO_POST),
                    epoch, p.abort);
    return wm_block_all(may);
}

// Copies a task. The first units of each thread are on their way while the
// neighbour is waited for.
template <typename unit_t, uint32_t ahead>
WM_DEVICE void
run_task(const wm_halo_params_t &p, const wm_halo_task_t &task, uint64_t epoch)
{
    const uint32_t threads = wm_block_threads();
    bool waited = p.waits_first != 0;
    if (waited && !may_write(p, task, epoch))
        return;
    for (uint32_t begin = wm_block_thread();; begin += ahead * threads) {
        unit_t values[ahead];
        WM_UNROLL
        for (uint32_t k = 0; k < ahead; k++) {
            const uint32_t at = begin + k * threads;
            if (at < task.count)
                values[k] = *(
                    const unit_t *)(task.src
                                    + offset_of(task, task.src_strides, at));
        }
        if (!waited && !may_write(p, task, epoch))
            return;
        waited = true;
        WM_UNROLL
        for (uint32_t k = 0; k < ahead; k++) {
            const uint32_t at = begin + k * threads;
            if (at < task.count)
                *(unit_t *)(task.dst + offset_of(task, task.dst_strides, at)) =
                    values[k];
        }
        if (begin - wm_block_thread() + ahead * threads >= task.count)
            return;
    }
}

WM_DEVICE void
run_any_task(const wm_halo_params_t &p, const wm_halo_task_t &task,
             uint64_t epoch)
{
    if (task.unit == 16)
        run_task<wm_halo_unit16, 4>(p, task, epoch);
    else if (task.unit == 8)
        run_task<uint64_t, 4>(p, task, epoch);
    else if (task.unit == 4)
        run_task<uint32_t, 8>(p, task, epoch);
    else if (task.unit == 2)
        run_task<uint16_t, 8>(p, task, epoch);
    else
        run_task<uint8_t, 8>(p, task, epoch);
    if (p.peer_count == 0)
        return;
    wm_block_sync();
    if (wm_block_leads()) {
        wm_fence_system();
        if (task.peer != WM_HALO_SELF)
            wm_add_system(
                word_of(p.peers[task.peer].memory, p.rank, WM_HALO_DONE), 1);
    }
}

WM_DEVICE void
post(const wm_halo_params_t &p, uint64_t epoch)
{
    for (uint32_t i = wm_block_thread(); i < p.peer_count;
         i += wm_block_threads())
        store_far(word_of(p.peers[i].memory, p.rank, WM_HALO_POST), epoch);
}

// Waits for the neighbours' tasks, and for each neighbour to come to this
// exchange, unless tasks of ours have waited for its post. So this rank is
// never two exchanges ahead, and nobody writes here after the end.
WM_DEVICE void
await_all(const wm_halo_params_t &p, uint64_t epoch)
{
    uint64_t *awaited = word_of(p.memory, p.size + 1, 0);
    for (uint32_t i = wm_block_thread(); i < p.peer_count;
         i += wm_block_threads()) {
        const wm_halo_peer_t &peer = p.peers[i];
        const uint64_t wanted = awaited[peer.rank] + peer.arrivals;
        if (peer.arrivals > 0)
            (void)await(word_of(p.memory, peer.rank, WM_HALO_DONE), wanted,
                        p.abort);
        if ((p.unheard >> i & 1) != 0)
            (void)await(word_of(p.memory, peer.rank, WM_HALO_POST), epoch,
                        p.abort);
        awaited[peer.rank] = wanted;
    }
}

// Moves the epoch on, in the first block, whose last thread waits for the
// other blocks meanwhile.
WM_DEVICE void
finish(const wm_halo_params_t &p, uint64_t epoch)
{
    if (wm_block_publishes())
        await_blocks((uint32_t *)word_of(p.memory, p.size, WM_HALO_BLOCKS));
    wm_block_sync();
    if (!wm_block_leads())
        return;
    *(volatile uint64_t *)word_of(p.memory, p.size, WM_HALO_EPOCH) = epoch;
    if (p.ticket != 0) {
        wm_fence_device();
        store_far(word_of(p.memory, p.size, WM_HALO_TICKET), p.ticket);
    }
}

WM_KERNEL_OF_HALF(wm_halo, wm_halo_params_t)
{
    const bool first = wm_block() == 0;
    uint64_t epoch = 0; // of this exchange; in blocks that copy, the leader's
    if (!wm_peer_works())
        return;
    if (p.peer_count > 0 && (first || wm_block_leads()))
        epoch = *(const volatile uint64_t *)word_of(p.memory, p.size,
                                                    WM_HALO_EPOCH)
                + 1;
    if (first)
        post(p, epoch);
    for (uint32_t i = first_task(); i < p.task_count; i += task_step())
        run_any_task(p, load_task<0>(p.tasks + i), epoch);
    if (p.peer_count == 0)
        return;
    if (first) {
        await_all(p, epoch);
        finish(p, epoch);
    }
    else if (wm_block_leads())
        count_block((uint32_t *)word_of(p.memory, p.size, WM_HALO_BLOCKS));
}

// --- lines ----------------------------------------------------------------

// A short exchange takes about as long as its instructions take to come into
// the cache: the part that a block runs is kept small. Where each thread has
// one line, it has no loops over lines. The loads of several lines are under
// way at once where a line has few units.
template <typename unit_t>
WM_DEVICE constexpr uint32_t
lines_at_once()
{
    return sizeof(unit_t) >= 4 ? 4 : 1;
}

// Returns the lines of a task for this epoch.
WM_DEVICE char *
lines_of(const wm_halo_task_t &task, const char *lines, uint32_t flag,
         uint32_t each)
{
    return (char *)lines + (flag & 1) * task.half
           + (size_t)(task.first / each) * WM_HALO_LL_LINE;
}

// Finds the offsets of the units of a line; the last line may have fewer, and
// then repeats the last one.
template <uint32_t each>
WM_DEVICE void
find_offsets(const wm_halo_task_t &task, const int64_t *strides, uint32_t line,
             int64_t (&offsets)[each])
{
    uint32_t left[each]; // of the index, in the outer dimensions
    WM_UNROLL
    for (uint32_t k = 0; k < each; k++) {
        const uint32_t at = line * each + k;
        left[k] = task.first + (at < task.count ? at : task.count - 1);
        offsets[k] = 0;
    }
    WM_ROLLED
    for (uint32_t i = 0; i + 1 < task.ndim; i++) {
        const wm_divisor_t by = task.shape[i];
        const int64_t stride = strides[i];
        WM_UNROLL
        for (uint32_t k = 0; k < each; k++) {
            const uint32_t outer = divide(left[k], by);
            offsets[k] += (int64_t)(left[k] - outer * by.divisor) * stride;
            left[k] = outer;
        }
    }
    const int64_t stride = strides[task.ndim - 1];
    WM_UNROLL
    for (uint32_t k = 0; k < each; k++)
        offsets[k] += (int64_t)left[k] * stride;
}

template <typename unit_t>
WM_DEVICE uint64_t
load_units(const wm_halo_task_t &task, uint32_t line)
{
    const uint32_t each = sizeof(uint64_t) / sizeof(unit_t);
    int64_t offsets[each];
    unit_t units[each];
    uint64_t value;
    find_offsets<each>(task, task.src_strides, line, offsets);
    WM_UNROLL
    for (uint32_t k = 0; k < each; k++)
        units[k] = *(const unit_t *)(task.src + offsets[k]);
    __builtin_memcpy(&value, units, sizeof(value));
    return value;
}

template <typename unit_t, uint32_t each>
WM_DEVICE void
store_units(const wm_halo_task_t &task, const int64_t (&offsets)[each],
            uint32_t line, const wm_line_t &read)
{
    const uint64_t value = (uint64_t)read.high << 32 | read.low;
    unit_t units[each];
    __builtin_memcpy(units, &value, sizeof(value));
    WM_UNROLL
    for (uint32_t k = 0; k < each; k++)
        if (line * each + k < task.count)
            *(unit_t *)(task.dst + offsets[k]) = units[k];
}

template <typename unit_t>
WM_DEVICE void
send_lines(const wm_halo_task_t &task, uint32_t flag)
{
    const uint32_t each = sizeof(uint64_t) / sizeof(unit_t);
    const uint32_t at_once = lines_at_once<unit_t>();
    const uint32_t lines = (task.count + each - 1) / each;
    const uint32_t threads = wm_block_threads();
    char *out = lines_of(task, task.dst, flag, each);
    uint32_t begin = wm_block_thread();
    if (lines <= threads) {
        if (begin < lines)
            wm_store_line(out + (size_t)begin * WM_HALO_LL_LINE,
                          load_units<unit_t>(task, begin), flag);
        return;
    }
    WM_ROLLED
    for (; begin < lines; begin += at_once * threads) {
        uint64_t values[at_once];
        WM_UNROLL
        for (uint32_t k = 0; k < at_once; k++)
            if (begin + k * threads < lines)
                values[k] = load_units<unit_t>(task, begin + k * threads);
        WM_UNROLL
        for (uint32_t k = 0; k < at_once; k++)
            if (begin + k * threads < lines)
                wm_store_line(
                    out + (size_t)(begin + k * threads) * WM_HALO_LL_LINE,
                    values[k], flag);
    }
}

// Returns true if a line has come.
WM_DEVICE bool
take_line(const char *in, uint32_t line, uint32_t flag, wm_line_t *read)
{
    *read = wm_load_line(in + (size_t)line * WM_HALO_LL_LINE);
    return read->flags[0] == flag && read->flags[1] == flag;
}

// Waits for the only line of this thread, and stores its units.
template <typename unit_t>
WM_DEVICE void
receive_line(const wm_halo_task_t &task, const char *in, uint32_t line,
             uint32_t flag, const uint32_t *abort)
{
    const uint32_t each = sizeof(uint64_t) / sizeof(unit_t);
    int64_t offsets[each];
    wm_line_t read;
    find_offsets<each>(task, task.dst_strides, line, offsets);
    WM_ROLLED
    for (uint32_t looks = 1; !take_line(in, line, flag, &read); looks++) {
        if (wm_is_stopped(abort, looks))
            return;
        wm_pause();
    }
    store_units<unit_t, each>(task, offsets, line, read);
}

// Waits for some lines of this thread, and stores their units. Returns false
// if a rank has died.
template <typename unit_t>
WM_DEVICE bool
receive_some(const wm_halo_task_t &task, const char *in, uint32_t begin,
             uint32_t lines, uint32_t flag, const uint32_t *abort)
{
    const uint32_t each = sizeof(uint64_t) / sizeof(unit_t);
    const uint32_t at_once = lines_at_once<unit_t>();
    uint32_t left = 0; // a bit for each line
    WM_UNROLL
    for (uint32_t k = 0; k < at_once; k++)
        left |= (uint32_t)(begin + k * wm_block_threads() < lines) << k;
    WM_ROLLED
    for (uint32_t looks = 1; left != 0; looks++) {
        WM_UNROLL
        for (uint32_t k = 0; k < at_once; k++) {
            const uint32_t line = begin + k * wm_block_threads();
            int64_t offsets[each];
            wm_line_t read;
            if ((left >> k & 1) == 0 || !take_line(in, line, flag, &read))
                continue;
            find_offsets<each>(task, task.dst_strides, line, offsets);
            store_units<unit_t, each>(task, offsets, line, read);
            left &= ~(1u << k);
        }
        if (wm_is_stopped(abort, looks))
            return false;
        if (left != 0)
            wm_pause();
    }
    return true;
}

template <typename unit_t>
WM_DEVICE void
receive_lines(const wm_halo_task_t &task, uint32_t flag, const uint32_t *abort)
{
    const uint32_t each = sizeof(uint64_t) / sizeof(unit_t);
    const uint32_t at_once = lines_at_once<unit_t>();
    const uint32_t lines = (task.count + each - 1) / each;
    const uint32_t threads = wm_block_threads();
    const char *in = lines_of(task, task.src, flag, each);
    uint32_t begin = wm_block_thread();
    if (lines <= threads) {
        if (begin < lines)
            receive_line<unit_t>(task, in, begin, flag, abort);
        return;
    }
    WM_ROLLED
    for (; begin < lines; begin += at_once * threads)
        if (!receive_some<unit_t>(task, in, begin, lines, flag, abort))
            return;
}

WM_DEVICE void
send_task(const wm_halo_task_t &task, uint32_t flag)
{
    if (task.unit == 8)
        send_lines<uint64_t>(task, flag);
    else if (task.unit == 4)
        send_lines<uint32_t>(task, flag);
    else if (task.unit == 2)
        send_lines<uint16_t>(task, flag);
    else
        send_lines<uint8_t>(task, flag);
}

WM_DEVICE void
receive_task(const wm_halo_task_t &task, uint32_t flag, const uint32_t *abort)
{
    if (task.unit == 8)
        receive_lines<uint64_t>(task, flag, abort);
    else if (task.unit == 4)
        receive_lines<uint32_t>(task, flag, abort);
    else if (task.unit == 2)
        receive_lines<uint16_t>(task, flag, abort);
    else
        receive_lines<uint8_t>(task, flag, abort);
}

// Sends the tasks of this block, and then receives its others. Its first ones
// are loaded already.
WM_DEVICE void
run_lines(const wm_halo_params_t &p, const wm_halo_task_t &sent,
          const wm_halo_task_t &received, uint32_t flag)
{
    const uint32_t first = first_line_task(), step = line_task_step();
    if (first < p.sends)
        send_task(sent, flag);
    for (uint32_t i = first + step; i < p.sends; i += step)
        send_task(load_task<0>(p.tasks + i), flag);
    if (p.sends + first < p.task_count)
        receive_task(received, flag, p.abort);
    for (uint32_t i = p.sends + first + step; i < p.task_count; i += step)
        receive_task(load_task<1>(p.tasks + i), flag, p.abort);
}

// Where a ticket tells the end, a block is counted at its own end, else once
// it has read the epoch.
WM_KERNEL_OF_LINES(wm_halo_lines, wm_halo_params_t)
{
    if (!wm_peer_works())
        return;
    // All loads are under way before the first is waited for. A block without
    // a task of one kind loads another's.
    const uint32_t last = p.task_count - 1, at = p.sends + first_line_task();
    const wm_halo_task_t &sent = fetch_task<0>(
        p.tasks + (first_line_task() < last ? first_line_task() : last));
    const wm_halo_task_t &received = fetch_task<1>(p.tasks
                                                   + (at < last ? at : last));
    const uint64_t epoch = *(const volatile uint64_t *)word_of(
                               p.memory, p.size, WM_HALO_EPOCH)
                           + 1;
    wm_block_sync();
    uint32_t *blocks = (uint32_t *)word_of(p.memory, p.size, WM_HALO_BLOCKS);
    const bool counts = wm_block() > 0 && wm_block_leads();
    if (counts && p.ticket == 0 && epoch != 0)
        count_block(blocks);
    run_lines(p, sent, received, (uint32_t)epoch);
    if (wm_block() == 0)
        finish(p, epoch);
    else if (p.ticket != 0) {
        wm_block_sync();
        if (counts) {
            wm_fence_device();
            count_block(blocks);
        }
    }
}

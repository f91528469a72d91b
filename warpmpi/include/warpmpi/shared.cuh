// SPDX-License-Identifier: BSD-3-Clause
// Device functions for arrays of wm.shared_empty: signal a rank, wait for
// signals, and meet all ranks, from a kernel of your own. The argument is
// `a.handle` of the array, an address in memory that the kernel's GPU reaches.
// The folder is wm.include_dir(). nvcc and NVRTC (CuPy's RawKernel) compile
// the file; a host compiler compiles it for arrays in host memory.
//
//     #include <warpmpi/shared.cuh>
//     extern "C" __global__ void step(const wm_shared_t *a, int right) {
//         float *its = (float *)wm_shared_pointer(a, right);
//         its[threadIdx.x] = 1.0f; // stores into the peer's array
//         __syncthreads();
//         if (threadIdx.x == 0) {
//             wm_shared_signal(a, right, 0, 1); // behind the block's stores
//             wm_shared_wait(a, 0, 1); // one thread: each wait takes
//         }
//         __syncthreads();
//     }
//
// A wait spins. A kernel that waits for a kernel of another rank needs both to
// run at once: each rank has a GPU of its own, or MPS runs, and the kernels
// leave room for each other.
#ifndef WARPMPI_SHARED_CUH
#define WARPMPI_SHARED_CUH

#ifdef __CUDACC__
#define WM_SHARED_CALL static __device__ __forceinline__
#else
#define WM_SHARED_CALL static inline
#endif

typedef unsigned long long wm_shared_word_t;

// What a rank knows of the array, in its own memory. Each rank has a counter
// for each of its slots, and behind these one for each rank, for barriers. A
// counter is `writers` words, one after the other: 1, which all ranks add to,
// or, in host memory, which GPUs cannot add to at once, one for each rank. All
// streams, blocks and threads of that rank add to its word.
typedef struct {
    int rank, size;
    int slots;                         // the counters that signals have
    int writers;                       // 1 or `size`
    void *const *pointers;             // by rank: its array
    wm_shared_word_t *const *counters; // by rank: its counters
    wm_shared_word_t *taken; // by counter: what our waits took; writers > 1
    wm_shared_word_t *own;   // our counters, as counters[rank]
} wm_shared_t;

// Adds to a word of any GPU, after all writes that this thread has seen: its
// own and, after __syncthreads(), those of its block.
WM_SHARED_CALL void
wm_shared_add(wm_shared_word_t *word, wm_shared_word_t value)
{
#ifdef __CUDA_ARCH__
    asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(word),
                 "l"(value)
                 : "memory");
#elif !defined(__CUDACC__)
    __atomic_fetch_add(word, value, __ATOMIC_ACQ_REL);
#endif
}

// Adds to a word in no order with other writes, but behind a fence.
WM_SHARED_CALL void
wm_shared_add_relaxed(wm_shared_word_t *word, wm_shared_word_t value)
{
#ifdef __CUDA_ARCH__
    asm volatile("red.relaxed.sys.global.add.u64 [%0], %1;" ::"l"(word),
                 "l"(value)
                 : "memory");
#elif !defined(__CUDACC__)
    __atomic_fetch_add(word, value, __ATOMIC_ACQ_REL);
#endif
}

// Orders all writes that this thread has seen before its later additions.
WM_SHARED_CALL void
wm_shared_fence(void)
{
#ifdef __CUDA_ARCH__
    asm volatile("fence.acq_rel.sys;" ::: "memory");
#endif
}

// Reads a word. What its writers wrote before it can be read afterwards.
WM_SHARED_CALL wm_shared_word_t
wm_shared_load(const wm_shared_word_t *word)
{
    wm_shared_word_t value = 0;
#ifdef __CUDA_ARCH__
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];"
                 : "=l"(value)
                 : "l"(word)
                 : "memory");
#elif !defined(__CUDACC__)
    value = __atomic_load_n(word, __ATOMIC_ACQUIRE);
#endif
    return value;
}

// Reads 16 bytes that nobody writes any more: the compiler reads them once,
// however often they are used, and keeps them in registers.
WM_SHARED_CALL void
wm_shared_read(const void *at, wm_shared_word_t *low, wm_shared_word_t *high)
{
#ifdef __CUDA_ARCH__
    asm("ld.global.nc.v2.u64 {%0, %1}, [%2];"
        : "=l"(*low), "=l"(*high)
        : "l"(at));
#elif !defined(__CUDACC__)
    *low = ((const wm_shared_word_t *)at)[0];
    *high = ((const wm_shared_word_t *)at)[1];
#endif
}

// Returns what the functions below work on: all that `a` has.
WM_SHARED_CALL wm_shared_t
wm_shared_open(const wm_shared_t *a)
{
    wm_shared_t b;
    wm_shared_word_t words[6];
    wm_shared_read((const char *)a, &words[0], &words[1]);
    wm_shared_read((const char *)a + 16, &words[2], &words[3]);
    wm_shared_read((const char *)a + 32, &words[4], &words[5]);
    b.rank = (int)words[0];
    b.size = (int)(words[0] >> 32);
    b.slots = (int)words[1];
    b.writers = (int)(words[1] >> 32);
    b.pointers = (void *const *)words[2];
    b.counters = (wm_shared_word_t *const *)words[3];
    b.taken = (wm_shared_word_t *)words[4];
    b.own = (wm_shared_word_t *)words[5];
    return b;
}

// Returns the word of a rank's counter that we add to.
WM_SHARED_CALL wm_shared_word_t *
wm_shared_word(const wm_shared_t *a, int rank, int counter)
{
    wm_shared_word_t first = 0;
#ifdef __CUDA_ARCH__
    asm("ld.global.nc.u64 %0, [%1];" : "=l"(first) : "l"(a->counters + rank));
#elif !defined(__CUDACC__)
    first = (wm_shared_word_t)a->counters[rank];
#endif
    const int writer = a->writers > 1 ? a->rank : 0;
    return (wm_shared_word_t *)first + counter * a->writers + writer;
}

// Raises a counter of a rank.
WM_SHARED_CALL void
wm_shared_raise(const wm_shared_t *a, int rank, int counter,
                wm_shared_word_t value)
{
    wm_shared_add(wm_shared_word(a, rank, counter), value);
}

// Returns what a counter of ours has, whose words are at `word`.
WM_SHARED_CALL wm_shared_word_t
wm_shared_sum(const wm_shared_t *a, const wm_shared_word_t *word, int counter)
{
    wm_shared_word_t sum = wm_shared_load(word)
                           - wm_shared_load(a->taken + counter);
#ifdef __CUDA_ARCH__
#pragma unroll 1
#endif
    for (int i = 1; i < a->writers; ++i)
        sum += wm_shared_load(word + i);
    return sum;
}

// Returns what a counter of ours has.
WM_SHARED_CALL wm_shared_word_t
wm_shared_count(const wm_shared_t *a, int counter)
{
    const wm_shared_word_t *word = a->own + counter * a->writers;
    return a->writers == 1 ? wm_shared_load(word)
                           : wm_shared_sum(a, word, counter);
}

// Takes from a counter of ours. Only waits take, and one after the other;
// nobody waits for this.
WM_SHARED_CALL void
wm_shared_take(const wm_shared_t *a, int counter, wm_shared_word_t value)
{
    if (a->writers > 1)
        wm_shared_add_relaxed(a->taken + counter, value);
    else
        wm_shared_add_relaxed(a->own + counter, 0ull - value);
}

// Waits until a counter of ours has `value`.
WM_SHARED_CALL void
wm_shared_await(const wm_shared_t *a, int counter, wm_shared_word_t value)
{
    const wm_shared_word_t *word = a->own + counter * a->writers;
    if (a->writers == 1)
        while ((long long)(wm_shared_load(word) - value) < 0) {
        }
    else
        while ((long long)(wm_shared_sum(a, word, counter) - value) < 0) {
        }
}

// The calls for kernels. `a` is the handle of the array.

// Returns the array of a rank, in memory that this GPU reaches.
WM_SHARED_CALL void *
wm_shared_pointer(const wm_shared_t *a, int rank)
{
    wm_shared_word_t address = 0;
    const wm_shared_t b = wm_shared_open(a);
#ifdef __CUDA_ARCH__
    asm("ld.global.nc.u64 %0, [%1];" : "=l"(address) : "l"(b.pointers + rank));
#elif !defined(__CUDACC__)
    address = (wm_shared_word_t)b.pointers[rank];
#endif
    return (void *)address;
}

// Adds `value` to a slot of a rank, once the writes before it can be read
// there. One thread calls it. rank and slot are not checked.
WM_SHARED_CALL void
wm_shared_signal(const wm_shared_t *a, int rank, int slot,
                 wm_shared_word_t value)
{
    const wm_shared_t b = wm_shared_open(a);
    wm_shared_raise(&b, rank, slot, value);
}

// Returns the value of a slot of this rank: a test without a wait.
WM_SHARED_CALL wm_shared_word_t
wm_shared_peek(const wm_shared_t *a, int slot)
{
    const wm_shared_t b = wm_shared_open(a);
    return wm_shared_count(&b, slot);
}

// Waits until a slot of this rank has `value`, and takes it from there, so
// that the same kernel, or graph, can run again. One thread calls it; a
// __syncthreads() behind it lets the others of its block go on.
WM_SHARED_CALL void
wm_shared_wait(const wm_shared_t *a, int slot, wm_shared_word_t value)
{
    const wm_shared_t b = wm_shared_open(a);
    wm_shared_await(&b, slot, value);
    wm_shared_take(&b, slot, value);
}

// Waits until all ranks have called it. What a rank wrote before it, all ranks
// can read behind it. One thread calls it.
WM_SHARED_CALL void
wm_shared_barrier(const wm_shared_t *a)
{
    const wm_shared_t b = wm_shared_open(a);
    wm_shared_fence(); // one for all
#ifdef __CUDA_ARCH__
#pragma unroll 1
#endif
    for (int rank = 0; rank < b.size; ++rank)
        if (rank != b.rank)
            wm_shared_add_relaxed(wm_shared_word(&b, rank, b.slots + b.rank),
                                  1);
    for (int rank = 0; rank < b.size; ++rank)
        if (rank != b.rank) {
            wm_shared_await(&b, b.slots + rank, 1);
            wm_shared_take(&b, b.slots + rank, 1);
        }
}

#ifdef __CUDACC__
// The same for all threads of a block, which call it: also what the other
// threads of the block wrote can be read behind it. Waits for all ranks at
// once.
WM_SHARED_CALL void
wm_shared_barrier_block(const wm_shared_t *a)
{
    const wm_shared_t b = wm_shared_open(a);
    const int threads = (int)(blockDim.x * blockDim.y * blockDim.z);
    const int thread = (int)(threadIdx.x
                             + blockDim.x
                                   * (threadIdx.y + blockDim.y * threadIdx.z));
    __syncthreads();
    for (int rank = thread; rank < b.size; rank += threads)
        if (rank != b.rank)
            wm_shared_raise(&b, rank, b.slots + b.rank, 1);
    for (int rank = thread; rank < b.size; rank += threads)
        if (rank != b.rank) {
            wm_shared_await(&b, b.slots + rank, 1);
            wm_shared_take(&b, b.slots + rank, 1);
        }
    __syncthreads();
}
#endif

#endif

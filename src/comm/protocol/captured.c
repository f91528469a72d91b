// SPDX-License-Identifier: BSD-3-Clause
#include "comm/protocol/captured_end.h"

#include <stdlib.h>

#include "comm/engine/engine.h"
#include "comm/link/link.h"
#include "comm/node/segment_words.h"
#include "comm/node/sharers.h"

static uint32_t serial; // of the latest words

static uint64_t
at_most(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

// Takes words of our segment. If there are none, waits a while for ends that
// are just going: their hosts may not have met yet.
static int
take_words(wm_captured_t *end, wm_error_t *err)
{
    int64_t begun = wm_engine_now();
    for (unsigned turn = 1;; ++turn) {
        wm_engine_lock();
        end->index = wm_segment_words_take(WM_WORDS_OF_PORTS, err);
        wm_engine_unlock();
        if (end->index >= 0)
            return 0;
        if (!wm_captured_are_going(wm_engine_now() - begun))
            return end->index;
        wm_engine_turn(turn);
        wm_captured_collect();
    }
}

// Makes the words those of a new message. Engine lock held.
static int
begin_words(wm_captured_t *end, wm_error_t *err)
{
    end->own = &wm_node_self()->segment->port_words[end->index];
    end->own->late = (wm_port_late_t){0};
    serial += serial == UINT32_MAX ? 2 : 1;
    atomic_store(&end->own->serial, serial);
    atomic_store(&end->own->answered, 0);
    atomic_store(&end->own->closed, 0);
    atomic_store(&end->own->passed, 0);
    return wm_node_register(wm_node_self(), false, end->device, err);
}

// Makes the port, and behind it a receiver's mailbox: for short messages, and
// for long ones if no other process can map the memory.
static int
make_port(wm_captured_t *end, wm_error_t *err)
{
    uint64_t nbytes = end->buffer.nbytes, room = 0;
    if (end->receives) {
        uint64_t line_bytes = at_most(nbytes, WM_PORT_LL_BYTES);
        end->slots = CAPTURED_SLOTS;
        room = wm_port_slot_bytes(line_bytes);
        if (nbytes > WM_PORT_LL_BYTES && !end->buffer.memory.exportable
            && room < nbytes)
            room = (nbytes + 127) / 128 * 128;
        end->slot_bytes = room;
    }
    size_t size = WM_PORT_BYTES + (size_t)end->slots * room;
    int code = wm_port_prepare(end->device, err);
    if (code == 0)
        code = wm_block_alloc(end->device, size, &end->block, err);
    if (code < 0)
        return code;
    end->port = wm_block_pointer(end->block);
    return wm_memory_copy_now(end->device, end->port, NULL, size, err);
}

static int
check_memory(const wm_buffer_t *buffer, int device, wm_error_t *err)
{
    if (buffer->pattern != NULL)
        return wm_error_set(err, WM_ERR_VALUE, 0,
                            "buf: a message in a CUDA graph needs memory "
                            "without gaps: send a contiguous copy");
    if (buffer->nbytes > 0
        && (!wm_buffer_on_device(buffer) || buffer->memory.device != device))
        return wm_error_set(err, WM_ERR_VALUE, 0,
                            "buf: a message in a CUDA graph needs memory of "
                            "the stream's GPU, cuda:%d: move the array there",
                            device);
    return 0;
}

int
wm_captured_check_peer(const wm_comm_t *comm, int rank, wm_error_t *err)
{
    const wm_peer_t *peer = comm->peers[rank];
    if (peer->self || (wm_node_shares(peer) && wm_link_maps(peer)))
        return 0;
    return wm_error_set(err, WM_ERR_STATE, 0,
                        "a message in a CUDA graph needs GPUs that map each "
                        "other's memory, and rank %d cannot be reached so: "
                        "make this call outside of the capture",
                        rank);
}

static int
captured_make(wm_captured_t *end, wm_error_t *err)
{
    int code = check_memory(&end->buffer, end->device, err);
    if (code == 0 && end->rank >= 0)
        code = wm_captured_check_peer(end->comm, end->rank, err);
    if (code == 0)
        code = make_port(end, err);
    if (code == 0)
        code = take_words(end, err);
    if (code < 0)
        return code;
    wm_engine_lock();
    code = begin_words(end, err);
    if (code == 0)
        code = wm_captured_match(end, err);
    wm_engine_unlock();
    return code;
}

int
wm_captured_new(wm_comm_t *comm, wm_buffer_t *buffer,
                const wm_envelope_t *envelope, bool receives,
                wm_captured_t **made, wm_error_t *err)
{
    wm_captured_t *end = NULL;
    wm_captured_collect();
    int code = wm_comm_raise_kept(comm, err);
    if (code == 0)
        code = wm_comm_check(comm, receives ? "source" : "dest",
                             envelope->rank, envelope->tag, receives, err);
    if (code == 0 && (end = calloc(1, sizeof *end)) == NULL)
        code = wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    if (code < 0) {
        wm_captured_refuse(comm, envelope, receives, err->text);
        wm_buffer_release(buffer);
        return code;
    }
    // An end of nobody's may outlive the communicator.
    end->comm = envelope->rank == MPI_PROC_NULL ? NULL : comm;
    atomic_store(&end->holders, 1);
    end->buffer = *buffer;
    end->receives = receives;
    end->synchronous = !receives && envelope->synchronous;
    end->rank = envelope->rank;
    end->tag = envelope->tag;
    end->plain = envelope->blocking;
    end->as_given[0] = envelope->rank;
    end->as_given[1] = envelope->tag;
    end->device = envelope->stream_device;
    end->index = -1;
    end->header_request = MPI_REQUEST_NULL;
    code = envelope->rank == MPI_PROC_NULL ? 0 : captured_make(end, err);
    if (code < 0) {
        wm_captured_refuse(comm, envelope, receives, err->text);
        wm_captured_drop(end);
        return code;
    }
    wm_engine_lock();
    wm_captured_list(end);
    wm_engine_unlock();
    *made = end;
    return 0;
}

// Returns the halves of a message, WM_PORT_BEGINS and _ENDS, that are work for
// a kernel. A short message has room in its slot before it is received. A long
// one is written by the wait.
static uint32_t
halves_of(const wm_captured_t *end)
{
    bool is_short = end->buffer.nbytes <= WM_PORT_LL_BYTES;
    if (end->port == NULL) // MPI_PROC_NULL
        return 0;
    if (end->receives)
        return is_short ? WM_PORT_ENDS : WM_PORT_BEGINS | WM_PORT_ENDS;
    if (!is_short)
        return WM_PORT_ENDS;
    return WM_PORT_BEGINS | (end->synchronous ? WM_PORT_ENDS : 0);
}

// Fills the work of an end. Returns false if it has none.
static bool
fill_work(const wm_captured_t *end, uint32_t what, wm_port_work_t *work)
{
    what &= halves_of(end);
    if (what == 0)
        return false;
    if (!end->receives)
        what |= WM_PORT_SENDS | (end->synchronous ? WM_PORT_SYNCS : 0);
    else if (end->buffer.memory.exportable)
        what |= WM_PORT_MAPPED;
    *work = (wm_port_work_t){
        .port = end->port,
        .late = &end->own->late,
        .user = end->buffer.data,
        .what = what,
        .nbytes = end->buffer.nbytes,
    };
    return true;
}

// Notes that a message has begun, or is waited for.
static void
note_pending(wm_captured_t *end, uint32_t what, uint64_t capture,
             CUstream stream)
{
    wm_engine_lock();
    end->pending = what == WM_PORT_BEGINS ? capture : 0;
    end->pending_on = stream;
    wm_engine_unlock();
}

// Fails if a message did not begin in the capture.
static int
check_pending(wm_captured_t *const *ends, int count, uint64_t capture,
              wm_error_t *err)
{
    bool begun = capture != 0;
    for (int i = 0; i < count; ++i)
        begun = begun && ends[i]->pending == capture;
    if (begun)
        return 0;
    for (int i = 0; i < count; ++i)
        note_pending(ends[i], WM_PORT_ENDS, 0, NULL);
    return wm_error_set(err, WM_ERR_STATE, 0,
                        "the request was started in a capture into a CUDA "
                        "graph, and is waited for outside of it: call Wait or "
                        "Waitall before the capture ends");
}

// The kernels that a call enqueues on a stream, of at most `room` blocks each.
typedef struct {
    int device, room;
    CUstream stream;
    uint64_t capture;
    bool waits;
    int filled; // operations of the next kernel
    wm_port_work_t works[WM_PORT_OPS];
} captured_kernels_t;

static int
kernels_begin(captured_kernels_t *kernels, const wm_captured_t *end,
              uint32_t what, CUstream stream, wm_error_t *err)
{
    const wm_device_t *device;
    kernels->device = end->device;
    kernels->stream = stream;
    kernels->waits = (what & WM_PORT_ENDS) != 0;
    kernels->filled = 0;
    int code = wm_stream_capture(end->device, stream, &kernels->capture, err);
    if (code == 0)
        code = wm_device_get(end->device, &device, err);
    if (code < 0)
        return code;
    wm_engine_lock();
    kernels->room = wm_port_room(device,
                                 1 + wm_sharers_besides(device, NULL, 0));
    wm_engine_unlock();
    return 0;
}

// Returns true if the next kernel has room for `count` more operations and
// for the sends that it serves besides, without `end`, which is one of the
// former.
static bool
kernels_fit(const captured_kernels_t *kernels, const wm_captured_t *end,
            int count)
{
    wm_captured_t *pending[WM_PORT_OPS];
    int others = 0;
    if (kernels->waits) {
        wm_engine_lock();
        int found = wm_captured_find_pending(kernels->capture, kernels->stream,
                                             pending, WM_PORT_OPS);
        wm_engine_unlock();
        for (int i = 0; i < found; ++i)
            others += pending[i] != end;
    }
    return wm_port_fits(kernels->filled + count + others, others,
                        kernels->room);
}

static bool
is_long_send(const wm_port_work_t *work)
{
    return (work->what & WM_PORT_SENDS) != 0
           && work->nbytes > WM_PORT_LL_BYTES;
}

// Enqueues the next kernel, if there is work for it. While it waits, it also
// serves the sends before it that have not been waited for: what it waits for
// may come only after their receivers have gone on.
static int
kernels_launch(captured_kernels_t *kernels, wm_error_t *err)
{
    wm_captured_t *pending[WM_PORT_OPS];
    int count = kernels->filled, found = 0;
    if (count == 0)
        return 0;
    wm_engine_lock();
    if (kernels->waits)
        found = wm_captured_find_pending(kernels->capture, kernels->stream,
                                         pending, WM_PORT_OPS);
    for (int i = 0; i < found && count < WM_PORT_OPS; ++i)
        count += fill_work(pending[i], WM_PORT_ENDS, &kernels->works[count]);
    wm_engine_unlock();
    int required = kernels->filled;
    kernels->filled = 0;
    if (required + found > count && !is_long_send(&kernels->works[0]))
        return wm_error_set(err, WM_ERR_STATE, 0,
                            "more than %d messages of more than %d bytes are "
                            "being sent on a stream that is captured, and "
                            "would wait for this call: call Waitall for them "
                            "before",
                            WM_PORT_OPS - 1, WM_PORT_LL_BYTES);
    return wm_port_launch(kernels->device, kernels->works, count, required,
                          kernels->room, kernels->stream, err);
}

// Adds an end to the next kernel, which is enqueued first if it is full.
static int
kernels_add(captured_kernels_t *kernels, wm_captured_t *end, uint32_t what,
            wm_error_t *err)
{
    int code = wm_captured_keep(end, kernels->capture, kernels->stream, err);
    if (code == 0 && kernels->filled > 0 && (what & halves_of(end)) != 0
        && !kernels_fit(kernels, end, 1))
        code = kernels_launch(kernels, err);
    if (code < 0)
        return code;
    note_pending(end, what, kernels->capture, kernels->stream);
    kernels->filled += fill_work(end, what, &kernels->works[kernels->filled]);
    return 0;
}

static int
check_begun(wm_captured_t *end, wm_error_t *err)
{
    wm_engine_lock();
    int code = wm_captured_check_begun(end, err);
    wm_engine_unlock();
    return code;
}

#define TURNS 3

// Returns when an end comes, where the ends need several kernels: first those
// that other ranks may wait for. Receivers ask before a send waits for a slot;
// long sends are written before receives are waited for, and these are taken
// before synchronous sends wait until they are.
static int
turn_of(const wm_captured_t *end, bool waits)
{
    if (end->receives)
        return waits ? 1 : 0;
    return !waits ? 1 : end->buffer.nbytes > WM_PORT_LL_BYTES ? 0 : 2;
}

static int
kernels_enqueue(captured_kernels_t *kernels, wm_captured_t *const *ends,
                int count, uint32_t what, wm_error_t *err)
{
    int code = what == WM_PORT_ENDS
                   ? check_pending(ends, count, kernels->capture, err)
                   : 0;
    for (int i = 0; i < count && code == 0 && what != WM_PORT_ENDS; ++i)
        code = check_begun(ends[i], err);
    for (int i = 0; i < TURNS * count && code == 0; ++i)
        if (turn_of(ends[i % count], kernels->waits) == i / count)
            code = kernels_add(kernels, ends[i % count], what, err);
    return code < 0 ? code : kernels_launch(kernels, err);
}

static int
captured_enqueue(wm_captured_t *const *ends, int count, uint32_t what,
                 CUstream stream, wm_error_t *err)
{
    captured_kernels_t kernels;
    int code = kernels_begin(&kernels, ends[0], what, stream, err);
    return code < 0 ? code : kernels_enqueue(&kernels, ends, count, what, err);
}

int
wm_captured_start(wm_captured_t *const *ends, int count, CUstream stream,
                  wm_error_t *err)
{
    return captured_enqueue(ends, count, WM_PORT_BEGINS, stream, err);
}

int
wm_captured_wait(wm_captured_t *const *ends, int count, CUstream stream,
                 wm_error_t *err)
{
    return captured_enqueue(ends, count, WM_PORT_ENDS, stream, err);
}

int
wm_captured_pass(wm_captured_t *const *ends, int count, CUstream stream,
                 wm_error_t *err)
{
    const uint32_t both = WM_PORT_BEGINS | WM_PORT_ENDS;
    captured_kernels_t kernels;
    int code = kernels_begin(&kernels, ends[0], both, stream, err);
    if (code < 0)
        return code;
    if (count == 1 || kernels_fit(&kernels, NULL, count))
        return kernels_enqueue(&kernels, ends, count, both, err);
    // In several kernels, all must begin before one of them waits.
    code = wm_captured_start(ends, count, stream, err);
    return code < 0 ? code : wm_captured_wait(ends, count, stream, err);
}

// SPDX-License-Identifier: BSD-3-Clause
// The two ends of a message in CUDA graphs meet: once, by their hosts.
#include <stdlib.h>
#include <string.h>

#include "comm/engine/engine.h"
#include "comm/engine/modules.h"
#include "comm/message/element.h"
#include "comm/protocol/captured_end.h"

#define HEADER_MAGIC 0x6c616e65u

int
wm_captured_header_tag(const wm_comm_t *comm)
{
    return comm->tag_limit - 1;
}

void
wm_captured_fail(wm_captured_t *end, const wm_error_t *err)
{
    end->matched = true;
    __atomic_store_n(&end->own->late.stop, 1, __ATOMIC_RELEASE);
    wm_comm_keep_error(end->comm, end->receives, end->rank, end->tag, err);
}

// Returns the address here of a place of the other end, which is mapped.
static int
match_map(wm_captured_t *end, wm_peer_t *peer, const wm_rkey_t *place,
          uint64_t nbytes, int which, char **address, wm_error_t *err)
{
    if (!wm_rkey_holds(place, nbytes))
        return wm_comm_damaged(end->comm, end->rank, err);
    if (peer->self) {
        *address = (char *)(uintptr_t)place->address;
        return 0;
    }
    int code = wm_node_register(peer, false, end->device, err);
    if (code == 0)
        code = wm_mapping_reach(peer, place, end->device,
                                &end->mappings[which], address, err);
    return code;
}

static void
match_tell_kernels(wm_captured_t *end, const wm_port_place_t *place)
{
    wm_port_place_t *late = &end->own->late.place;
    *late = *place;
    __atomic_store_n(&late->matched, 1, __ATOMIC_RELEASE);
    end->matched = true;
}

// Fails if kernels of both ends cannot run at once.
static int
check_gpu(const wm_captured_t *end, bool alone, wm_error_t *err)
{
    if (!alone)
        return 0;
    return wm_error_set(err, WM_ERR_STATE, 0,
                        "rank %d runs on the GPU of this rank without MPS, "
                        "where the kernels of a message in a CUDA graph would "
                        "wait for each other's time slices: start MPS "
                        "(nvidia-cuda-mps-control -d) before the ranks, or "
                        "give each rank a GPU",
                        end->rank);
}

// --- the receiver --------------------------------------------------------

static int
check_fit(const wm_captured_t *end, const captured_header_t *header,
          wm_error_t *err)
{
    int sent = (int)header->element, element = end->buffer.element;
    if (header->nbytes > end->buffer.nbytes)
        return wm_error_set(
            err, WM_ERR_TRUNCATE, MPI_ERR_TRUNCATE,
            "message truncated: %llu bytes come from rank %d with tag %d in "
            "a CUDA graph, the receive buffer holds %zu: make the receive "
            "buffer larger",
            (unsigned long long)header->nbytes, end->rank, end->tag,
            end->buffer.nbytes);
    if (sent != 0 && element != 0 && sent != element)
        return wm_error_set(
            err, WM_ERR_TYPE, 0,
            "rank %d sends %llu of %s in a CUDA graph, the receive buffer has "
            "%llu of %s: give both the same element type",
            end->rank, wm_element_count(sent, header->nbytes),
            wm_element_name(sent),
            wm_element_count(element, end->buffer.nbytes),
            wm_element_name(element));
    return 0;
}

// Chooses the way, and fills what both ends learn.
static int
match_describe(wm_captured_t *end, const captured_header_t *header,
               wm_port_place_t *place, wm_port_answer_t *answer,
               wm_error_t *err)
{
    wm_pointer_t memory;
    wm_block_describe(end->block, &memory);
    bool is_short = header->nbytes <= WM_PORT_LL_BYTES;
    bool direct = !is_short && end->buffer.memory.exportable;
    place->slots = end->slots;
    place->slot_bytes = direct ? 0 : end->slot_bytes;
    place->nbytes = header->nbytes;
    place->memory = direct ? end->buffer.data
                           : (char *)end->port + WM_PORT_BYTES;
    answer->index = (uint32_t)end->index;
    answer->slots = place->slots;
    answer->slot_bytes = place->slot_bytes;
    int code = wm_rkey_export(end->port, &memory, &answer->port, err);
    if (code == 0 && direct)
        code = wm_rkey_export(end->buffer.data, &end->buffer.memory,
                              &answer->target, err);
    return code;
}

static bool
is_alone(const wm_captured_t *end, const wm_peer_t *peer,
         const captured_header_t *header)
{
    const wm_device_t *facts;
    return !peer->self && wm_device_describe(end->device, &facts, NULL) == 0
           && !(facts->mps && header->mps)
           && memcmp(&facts->uuid, &header->gpu, sizeof facts->uuid) == 0;
}

// Tells a sender how its message comes, or that it does not.
static void
match_answer(wm_captured_t *end, wm_peer_t *peer, wm_port_words_t *its,
             const wm_port_answer_t *answer)
{
    end->peer = peer;
    // A sender that is refused is left: its words may soon be another's.
    end->left = answer->slots == 0;
    end->its = end->left ? NULL : its;
    its->answer = *answer;
    atomic_store(&its->closed, end->left);
    if (end->left) // its host may be in no call of ours
        __atomic_store_n(&its->late.stop, 1, __ATOMIC_RELEASE);
    atomic_store(&its->answered, 1);
}

static int
match_accept(wm_captured_t *end, wm_peer_t *peer,
             const captured_header_t *header, wm_port_answer_t *answer,
             wm_error_t *err)
{
    wm_port_place_t place = {0};
    char *port = NULL;
    bool alone = is_alone(end, peer, header);
    answer->refused = alone ? WM_PORT_ALONE : WM_PORT_FITS_NOT;
    int code = check_gpu(end, alone, err);
    if (code == 0)
        code = check_fit(end, header, err);
    if (code == 0)
        code = match_map(end, peer, &header->port, WM_PORT_BYTES, 0, &port,
                         err);
    if (code == 0)
        code = match_describe(end, header, &place, answer, err);
    if (code < 0)
        return code;
    answer->refused = 0;
    place.tells = ((wm_port_t *)(void *)port)->heard;
    match_tell_kernels(end, &place);
    return 0;
}

// Meets a sender. An end that is closed still takes its sender from those of
// later messages.
static void
match_sender(wm_captured_t *end, int rank, const captured_header_t *header)
{
    wm_error_t err;
    wm_peer_t *peer = end->comm->peers[rank];
    wm_port_answer_t answer = {.refused = end->closed ? 0 : WM_PORT_FITS_NOT};
    end->rank = rank;
    end->tag = header->tag;
    end->matched = true;
    wm_captured_withdraw_refusal(end->comm, false, true, rank, header->tag);
    int code = wm_captured_check_peer(end->comm, rank, &err);
    bool reached = code == 0 && header->index < WM_PORTS;
    if (code == 0 && (!reached || header->magic != HEADER_MAGIC))
        code = wm_comm_damaged(end->comm, rank, &err);
    wm_port_words_t *its = reached ? &peer->segment->port_words[header->index]
                                   : NULL;
    uint32_t serial = header->serial;
    if (reached && !atomic_compare_exchange_strong(&its->serial, &serial, 0)) {
        __atomic_store_n(&end->own->late.stop, 1, __ATOMIC_RELEASE);
        return; // the sender has given up
    }
    if (code == 0 && !end->closed)
        code = match_accept(end, peer, header, &answer, &err);
    if (code < 0) {
        wm_captured_fail(end, &err);
        answer = (wm_port_answer_t){.refused = answer.refused};
    }
    if (reached)
        match_answer(end, peer, its, &answer);
}

static bool
matches(const wm_captured_t *end, int rank, int tag)
{
    return end->receives && !end->matched
           && (end->rank == rank || end->rank == MPI_ANY_SOURCE)
           && (end->tag == tag || end->tag == MPI_ANY_TAG);
}

// Looks for a sender that came before its receiver.
static void
match_unexpected(struct wm_captured_ends *ends, wm_captured_t *end)
{
    for (captured_unexpected_t **link = &ends->unexpected; *link != NULL;
         link = &(*link)->next) {
        captured_unexpected_t *sender = *link;
        if (!matches(end, sender->rank, sender->header.tag))
            continue;
        *link = sender->next;
        match_sender(end, sender->rank, &sender->header);
        free(sender);
        return;
    }
}

static void
take_header(wm_comm_t *comm, int rank, const captured_header_t *header)
{
    struct wm_captured_ends *ends = comm->captured;
    wm_captured_t *end = ends->first;
    wm_captured_withdraw_refusal(comm, true, false, rank, header->tag);
    while (end != NULL && !matches(end, rank, header->tag))
        end = end->next;
    if (end != NULL) {
        match_sender(end, rank, header);
        return;
    }
    captured_unexpected_t **link = &ends->unexpected,
                          *sender = calloc(1, sizeof **link);
    if (sender == NULL) {
        wm_error_t err;
        wm_error_set(&err, WM_ERR_MEMORY, 0, "out of host memory");
        wm_comm_keep_error(comm, true, rank, header->tag, &err);
        return;
    }
    while (*link != NULL)
        link = &(*link)->next;
    sender->rank = rank;
    sender->header = *header;
    sender->since = wm_engine_now();
    *link = sender;
}

static int
receive_headers(wm_comm_t *comm, wm_error_t *err)
{
    MPI_Status status;
    int flag = 1, code = 0;
    while (code == 0) {
        code = wm_mpi_check(MPI_Iprobe(MPI_ANY_SOURCE,
                                       wm_captured_header_tag(comm),
                                       comm->data, &flag, &status),
                            "MPI_Iprobe", err);
        if (code < 0 || !flag)
            return code;
        union {
            captured_header_t header;
            captured_refusal_t refusal;
        } got;
        code = wm_mpi_check(MPI_Recv(&got, sizeof got, MPI_BYTE,
                                     status.MPI_SOURCE,
                                     wm_captured_header_tag(comm), comm->data,
                                     MPI_STATUS_IGNORE),
                            "MPI_Recv", err);
        if (code == 0 && got.header.magic == CAPTURED_REFUSAL_MAGIC)
            wm_captured_hear_refusal(comm, status.MPI_SOURCE, &got.refusal);
        else if (code == 0)
            take_header(comm, status.MPI_SOURCE, &got.header);
    }
    return code;
}

// --- the sender ----------------------------------------------------------

static int
read_answer(wm_captured_t *end, wm_error_t *err)
{
    const wm_port_answer_t answer = end->own->answer;
    wm_peer_t *peer = end->comm->peers[end->rank];
    char *port = NULL, *target = NULL;
    if (answer.refused == WM_PORT_ALONE)
        return check_gpu(end, true, err);
    if (answer.refused != 0)
        return wm_error_set(err, WM_ERR_STATE, 0,
                            "rank %d cannot receive the message in a CUDA "
                            "graph: its error says why",
                            end->rank);
    uint64_t room = (uint64_t)answer.slots * answer.slot_bytes;
    bool direct = answer.slot_bytes == 0;
    if (answer.index >= WM_PORTS || answer.slots != CAPTURED_SLOTS)
        return wm_comm_damaged(end->comm, end->rank, err);
    int code = match_map(end, peer, &answer.port, WM_PORT_BYTES + room, 0,
                         &port, err);
    if (code == 0 && direct)
        code = match_map(end, peer, &answer.target, end->buffer.nbytes, 1,
                         &target, err);
    if (code < 0)
        return code;
    wm_port_t *its = (wm_port_t *)(void *)port;
    const wm_port_place_t place = {
        .slots = answer.slots,
        .slot_bytes = answer.slot_bytes,
        .nbytes = end->buffer.nbytes,
        .memory = direct ? target : port + WM_PORT_BYTES,
        .tells = its->heard,
        .asked = &its->asks,
    };
    end->peer = peer;
    end->its = &peer->segment->port_words[answer.index];
    match_tell_kernels(end, &place);
    wm_captured_withdraw_refusal(end->comm, true, true, end->rank, end->tag);
    return 0;
}

void
wm_captured_look_for_answer(wm_captured_t *end)
{
    wm_error_t err;
    if (end->receives || end->matched || !atomic_load(&end->own->answered))
        return;
    // A receiver that is closed already is no error before a replay.
    bool closed = end->closed
                  || (atomic_load(&end->own->closed) != 0
                      && end->own->answer.refused == 0);
    int code = closed ? WM_ERR_STATE : read_answer(end, &err);
    if (code == 0)
        return;
    // The receiver's kernels wait in vain.
    uint32_t index = end->own->answer.index;
    if (end->own->answer.slots != 0 && index < WM_PORTS) {
        end->peer = end->comm->peers[end->rank];
        end->its = &end->peer->segment->port_words[index];
        __atomic_store_n(&end->its->late.stop, 1, __ATOMIC_RELEASE);
    }
    end->matched = true;
    if (closed)
        __atomic_store_n(&end->own->late.stop, 1, __ATOMIC_RELEASE);
    else
        wm_captured_fail(end, &err);
}

void
wm_captured_withdraw(wm_captured_t *end)
{
    uint32_t serial = end->header.serial;
    if (end->header_sent && !end->matched)
        end->matched = atomic_compare_exchange_strong(&end->own->serial,
                                                      &serial, 0);
}

static int
send_header(wm_captured_t *end, wm_error_t *err)
{
    wm_pointer_t memory;
    const wm_device_t *facts;
    int code = wm_device_get(end->device, &facts, err);
    if (code < 0)
        return code;
    wm_block_describe(end->block, &memory);
    end->header = (captured_header_t){
        .magic = HEADER_MAGIC,
        .index = (uint32_t)end->index,
        .serial = atomic_load(&end->own->serial),
        .gpu = facts->uuid,
        .mps = facts->mps,
        .tag = end->tag,
        .element = end->buffer.element,
        .nbytes = end->buffer.nbytes,
    };
    code = wm_rkey_export(end->port, &memory, &end->header.port, err);
    if (code == 0)
        code = wm_mpi_check(MPI_Isend(&end->header, sizeof end->header,
                                      MPI_BYTE, end->rank,
                                      wm_captured_header_tag(end->comm),
                                      end->comm->data, &end->header_request),
                            "MPI_Isend", err);
    end->header_sent = code == 0;
    return code;
}

// --- both ----------------------------------------------------------------

static bool
matching_step(wm_op_t *op)
{
    wm_error_t err;
    struct wm_captured_ends *ends = op->comm->captured;
    bool left = false;
    int code = receive_headers(op->comm, &err);
    for (wm_captured_t *end = ends->first; end != NULL; end = end->next) {
        int flag = 1;
        if (end->header_request != MPI_REQUEST_NULL)
            MPI_Test(&end->header_request, &flag, MPI_STATUS_IGNORE);
        if (!end->matched && code < 0)
            wm_captured_fail(end, &err);
        else
            wm_captured_look_for_answer(end);
        left = left || (!end->matched && !end->closed) || !flag;
    }
    ends->matching = left;
    return !left;
}

// The operation that looks for the other ends, as long as one has not met.
static const wm_op_kind_t matching_kind = {
    .step = matching_step,
    .asks = wm_posted_asks,
};

static int
begin_matching(wm_comm_t *comm, wm_error_t *err)
{
    if (comm->captured->matching)
        return 0;
    wm_op_t *op = wm_op_new(&matching_kind, sizeof *op, comm);
    if (op == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    comm->captured->matching = true;
    wm_engine_add_lock_held(op);
    wm_op_release(op); // it ends by itself
    wm_engine_notify();
    return 0;
}

struct wm_captured_ends *
wm_captured_ends(wm_comm_t *comm)
{
    if (comm->captured == NULL) {
        comm->captured = calloc(1, sizeof *comm->captured);
        if (comm->captured != NULL)
            comm->captured->last = &comm->captured->first;
    }
    return comm->captured;
}

int
wm_captured_match(wm_captured_t *end, wm_error_t *err)
{
    wm_comm_t *comm = end->comm;
    if (wm_captured_ends(comm) == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    int code = begin_matching(comm, err);
    if (code == 0 && !end->receives)
        code = send_header(end, err); // last: MPI reads it from now on
    if (code < 0)
        return code;
    wm_captured_withdraw_refusal(comm, false, end->receives, end->rank,
                                 end->tag);
    *comm->captured->last = end;
    comm->captured->last = &end->next;
    if (end->receives)
        match_unexpected(comm->captured, end);
    return 0;
}

void
wm_captured_leave(wm_captured_t *end)
{
    if (end->comm == NULL || end->comm->captured == NULL)
        return;
    struct wm_captured_ends *ends = end->comm->captured;
    wm_captured_t **link = &ends->first;
    while (*link != NULL && *link != end)
        link = &(*link)->next;
    if (*link == NULL)
        return;
    *link = end->next;
    if (ends->last == &end->next)
        ends->last = link;
}

// Nothing refers to the communicator any more, but other threads walk the
// ends.
static void
captured_drop_all(wm_comm_t *comm)
{
    wm_engine_lock();
    struct wm_captured_ends *ends = comm->captured;
    comm->captured = NULL;
    while (ends != NULL && ends->unexpected != NULL) {
        captured_unexpected_t *next = ends->unexpected->next;
        free(ends->unexpected);
        ends->unexpected = next;
    }
    if (ends != NULL)
        wm_captured_drop_refusals(ends);
    for (wm_captured_t *end = ends != NULL ? ends->first : NULL; end != NULL;
         end = end->next)
        end->comm = NULL;
    free(ends);
    wm_engine_unlock();
    wm_captured_collect();
}

static void
captured_end_all(void)
{
    wm_captured_close_all(NULL);
}

const wm_module_t wm_captured_module = {
    .end = captured_end_all,
    .freed = wm_captured_close_all, // none of its graphs may run any more
    .drop = captured_drop_all,
    .serve = wm_captured_serve,
};

// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/movers/mover_run.h"

#include "comm/coll/call/coll_memory.h"
#include "cuda/lock.h"
#include "cuda/memory.h"

// Up to so many bytes a vector is gathered whole by an Allreduce: fewer steps,
// more bytes.
#define GATHERED_BYTES ((size_t)64 << 10)
// At most so many bytes of a vector are reduced in one round, so that the room
// is bounded.
#define ROUND_BYTES ((size_t)64 << 20)
// A chain of ranks passes on parts of so many bytes, one while the next comes.
#define CHAIN_BYTES ((size_t)1 << 20)
#define ALIGN ((size_t)256)
// Vectors of so many bytes are reduced in so many rounds at least, which
// overlap.
#define ROUNDS_BYTES ((size_t)16 << 20)
#define ROUNDS ((size_t)2)

typedef struct {
    size_t at, nbytes;
} part_t;

// --- Facts of a call ---

static size_t
ranks_of(const wm_mover_run_t *run)
{
    return (size_t)run->desc.comm->size;
}

static bool
run_gives(const wm_mover_run_t *run, int rank)
{
    return (uint32_t)rank >= run->gives.first
           && (uint32_t)rank < run->gives.first + run->gives.count;
}

static bool
run_takes(const wm_mover_run_t *run, int rank)
{
    return (uint32_t)rank >= run->takes.first
           && (uint32_t)rank < run->takes.first + run->takes.count;
}

static const wm_span_t *
out_of(const wm_mover_run_t *run, int rank)
{
    return &run->desc.out[run->desc.shape->scatters ? rank : 0];
}

static const wm_span_t *
into_of(const wm_mover_run_t *run, int rank)
{
    return &run->desc.into[run->desc.shape->gathers ? rank : 0];
}

// Returns true if the ranks reduce parts of the vector, so that no byte goes
// between hosts more often than it must. Two ranks give each other as many
// bytes if each reduces all, which is one step.
static bool
run_goes_in_parts(const wm_mover_run_t *run)
{
    const wm_coll_desc_t *desc = &run->desc;
    wm_coll_kind_t kind = desc->call->kind;
    size_t nbytes = desc->out[0].nbytes;
    return (kind == WM_COLL_ALLREDUCE || kind == WM_COLL_REDUCE)
           && nbytes > GATHERED_BYTES && ranks_of(run) > 2;
}

// Returns true if each rank gets the sum of those before it from the rank
// before it: then each vector leaves a rank once. Short ones leave for all
// ranks behind at once, and so do 16-bit floats, which a chain would round at
// each rank, and averages.
static bool
run_is_chained(const wm_mover_run_t *run)
{
    const wm_coll_desc_t *desc = &run->desc;
    return desc->shape->prefix && desc->out[0].nbytes > GATHERED_BYTES
           && desc->op != WM_REDUCE_AVG && desc->type != WM_REDUCE_FLOAT16
           && desc->type != WM_REDUCE_BFLOAT16;
}

// Returns the bytes of a vector's parts; the last ones may be shorter. All
// begin at whole elements.
static size_t
part_bytes(const wm_mover_run_t *run, size_t nbytes)
{
    size_t element = wm_reduce_size(run->desc.type), ranks = ranks_of(run);
    size_t unit = WM_REDUCE_VECTOR * element; // kernels like such addresses
    return (nbytes + ranks * unit - 1) / (ranks * unit) * unit;
}

static part_t
part_of(size_t each, int rank, size_t nbytes)
{
    size_t at = each * (size_t)rank;
    at = at < nbytes ? at : nbytes;
    return (part_t){at, nbytes - at < each ? nbytes - at : each};
}

// Returns `most` or less: whole elements, with all parts aligned alike.
static size_t
whole_elements(const wm_mover_run_t *run, size_t most)
{
    size_t unit = ALIGN * wm_reduce_size(run->desc.type);
    return most / unit * unit;
}

// Returns the bytes of each block that one round reduces.
static size_t
round_bytes(const wm_mover_run_t *run)
{
    size_t rows = run_goes_in_parts(run) ? 1 : ranks_of(run);
    return whole_elements(run, ROUND_BYTES / rows);
}

static size_t
aligned(size_t nbytes)
{
    return (nbytes + ALIGN - 1) / ALIGN * ALIGN;
}

static size_t
smaller(size_t one, size_t other)
{
    return one < other ? one : other;
}

// Returns in how many rounds a vector is reduced in parts, at least.
static size_t
parts_rounds(size_t nbytes)
{
    return nbytes >= ROUNDS_BYTES ? ROUNDS : 1;
}

// Returns the bytes of a round: the exchange of one goes beside that of the
// results of the one before.
static size_t
parts_round_bytes(const wm_mover_run_t *run, size_t nbytes)
{
    size_t unit = ALIGN * wm_reduce_size(run->desc.type);
    size_t most = round_bytes(run), rounds = parts_rounds(nbytes);
    size_t each = (nbytes + rounds * unit - 1) / (rounds * unit) * unit;
    return smaller(each, most);
}

static size_t
parts_room_bytes(const wm_mover_run_t *run, size_t nbytes)
{
    size_t most = parts_round_bytes(run, nbytes);
    return ranks_of(run) * part_bytes(run, smaller(nbytes, most))
           * (nbytes > most ? 2 : 1);
}

// Returns true if the result of a Reduce_scatter would lie over data that are
// still to be sent: then it is made in the room, and copied.
static bool
result_waits(const wm_mover_run_t *run)
{
    const wm_coll_desc_t *desc = &run->desc;
    return desc->shape->scatters && desc->source == desc->target;
}

// Returns true if the data to send are overwritten by those that come: then
// they are copied first.
static bool
source_is_copied(const wm_mover_run_t *run)
{
    const wm_coll_desc_t *desc = &run->desc;
    return desc->shape->overlaid && !desc->shape->reduces
           && desc->source != NULL && desc->source == desc->target;
}

// Returns the end of the blocks of the source.
static size_t
source_bytes(const wm_mover_run_t *run)
{
    size_t end = 0;
    for (int rank = 0; rank < run->desc.comm->size; ++rank) {
        const wm_span_t *span = &run->desc.out[rank];
        if (span->nbytes > 0 && span->at + span->nbytes > end)
            end = span->at + span->nbytes;
    }
    return end;
}

// Returns the bytes of our own memory that the call needs.
static size_t
room_bytes(const wm_mover_run_t *run)
{
    const wm_coll_desc_t *desc = &run->desc;
    size_t ranks = ranks_of(run), nbytes = desc->out[0].nbytes;
    if (desc->call->kind == WM_COLL_BARRIER)
        return ranks;
    if (!desc->shape->reduces)
        return source_is_copied(run) ? source_bytes(run) : 0;
    if (run_goes_in_parts(run))
        return parts_room_bytes(run, nbytes);
    if (desc->call->kind == WM_COLL_ALLREDUCE)
        return ranks * smaller(nbytes, round_bytes(run));
    if (run->takes.count == 0)
        return 0;
    if (run_is_chained(run))
        return 2 * CHAIN_BYTES;
    size_t mine = desc->into[0].nbytes;
    return ranks * aligned(smaller(mine, round_bytes(run)))
           + (result_waits(run) ? mine : 0);
}

static char *
room_of(const wm_mover_run_t *run)
{
    return run->room != NULL ? wm_block_pointer(run->room) : NULL;
}

// --- Steps ---

static int
run_send(wm_mover_run_t *run, const char *data, size_t nbytes, int rank,
         wm_error_t *err)
{
    if (nbytes == 0)
        return 0;
    run->sent += rank != run->desc.comm->rank ? nbytes : 0;
    return run->own->movers->send(run->own->handle, data, nbytes, rank,
                                  run->desc.stream, err);
}

static int
run_receive(const wm_mover_run_t *run, char *data, size_t nbytes, int rank,
            wm_error_t *err)
{
    return nbytes == 0
               ? 0
               : run->own->movers->receive(run->own->handle, data, nbytes,
                                           rank, run->desc.stream, err);
}

static int
run_begin_group(const wm_mover_run_t *run, wm_error_t *err)
{
    return run->own->movers->begin(err);
}

// Ends a group in any case.
static int
run_end_group(const wm_mover_run_t *run, int code, wm_error_t *err)
{
    int ended = run->own->movers->end(code == 0 ? err : NULL);
    return code < 0 ? code : ended;
}

static int
run_copy(const wm_mover_run_t *run, char *to, const char *from, size_t nbytes,
         wm_error_t *err)
{
    return nbytes == 0 || to == from
               ? 0
               : wm_memory_copy(run->desc.device, to, from, nbytes,
                                run->desc.stream, err);
}

// Reduces `nbytes` of the first `n` ranks: each rank's is in this room, `each`
// bytes behind the one before, but this rank's lies at `mine`, if that is not
// NULL.
static int
run_fold(const wm_mover_run_t *run, char *to, const char *mine, char *room,
         size_t each, int n, size_t nbytes, wm_error_t *err)
{
    const wm_coll_desc_t *desc = &run->desc;
    int own = mine != NULL ? desc->comm->rank : -1;
    const wm_reduce_many_t many = {
        .type = desc->type,
        .op = desc->op,
        .dst = to,
        .sums = room + (own < 0 ? 0 : (size_t)own * each),
        .sources = room,
        .each = each,
        .own = own,
        .its = mine,
        .n = n,
        .count = nbytes / wm_reduce_size(desc->type),
    };
    return nbytes == 0
               ? 0
               : wm_reduce_many(desc->device, &many, desc->stream, err);
}

static int
run_gather(wm_mover_run_t *run, const char *from, char *to, size_t nbytes,
           wm_error_t *err)
{
    run->sent += (ranks_of(run) - 1) * nbytes;
    return nbytes == 0
               ? 0
               : run->own->movers->gather(run->own->handle, from, to, nbytes,
                                          run->desc.stream, err);
}

static int
run_broadcast(wm_mover_run_t *run, wm_error_t *err)
{
    const wm_coll_desc_t *desc = &run->desc;
    bool sends = desc->source != NULL;
    char *data = sends ? desc->source : desc->target;
    size_t nbytes = sends ? desc->out[0].nbytes : desc->into[0].nbytes;
    if (nbytes == 0)
        return 0;
    run->sent += sends ? nbytes : 0;
    return run->own->movers->broadcast(run->own->handle, data, nbytes,
                                       desc->call->root, desc->stream, err);
}

// --- Calls that only move ---

// Returns true if this rank's own block goes elsewhere: not if the source was
// copied for it to stay.
static bool
run_moves_own(const wm_mover_run_t *run, const char *source)
{
    const wm_coll_desc_t *desc = &run->desc;
    int own = desc->comm->rank;
    return source == desc->source && run_gives(run, own) && run_takes(run, own)
           && source + out_of(run, own)->at
                  != desc->target + into_of(run, own)->at;
}

// The own block is in the group: a copy beside it would be one launch more.
static int
run_exchange_all(wm_mover_run_t *run, const char *source, wm_error_t *err)
{
    const wm_coll_desc_t *desc = &run->desc;
    int code = run_begin_group(run, err);
    if (code < 0)
        return code;
    for (int rank = 0; rank < desc->comm->size && code == 0; ++rank) {
        bool own = rank == desc->comm->rank;
        const wm_span_t *out = out_of(run, rank), *into = into_of(run, rank);
        if (own && !run_moves_own(run, source))
            continue;
        if (run_gives(run, rank))
            code = run_send(run, source + out->at, out->nbytes, rank, err);
        if (code == 0 && run_takes(run, rank))
            code = run_receive(run, desc->target + into->at,
                               own ? out->nbytes : into->nbytes, rank, err);
    }
    return run_end_group(run, code, err);
}

static int
run_move(wm_mover_run_t *run, wm_error_t *err)
{
    const wm_coll_desc_t *desc = &run->desc;
    char *source = desc->source;
    int code = 0;
    if (source_is_copied(run)) {
        source = room_of(run);
        code = run_copy(run, source, desc->source, source_bytes(run), err);
    }
    return code < 0 ? code : run_exchange_all(run, source, err);
}

// --- Reductions ---

// Gathers the vectors of all ranks, a round after the other.
static int
run_reduce_gathered(wm_mover_run_t *run, wm_error_t *err)
{
    const wm_coll_desc_t *desc = &run->desc;
    size_t all = desc->out[0].nbytes, most = round_bytes(run);
    char *room = room_of(run);
    int code = 0;
    for (size_t at = 0; at < all && code == 0; at += most) {
        size_t nbytes = smaller(all - at, most);
        code = run_gather(run, desc->source + at, room, nbytes, err);
        if (code == 0)
            code = run_fold(run, desc->target + at, NULL, room, nbytes,
                            desc->comm->size, nbytes, err);
    }
    return code;
}

// Exchanges a round of the blocks that ranks reduce, from `at` on: this rank's
// go into the room, one behind the other.
static int
round_exchange(wm_mover_run_t *run, size_t at, size_t room_each,
               wm_error_t *err)
{
    const wm_coll_desc_t *desc = &run->desc;
    size_t most = round_bytes(run);
    int code = run_begin_group(run, err);
    if (code < 0)
        return code;
    for (int rank = 0; rank < desc->comm->size && code == 0; ++rank) {
        const wm_span_t *out = out_of(run, rank);
        size_t mine = desc->into[0].nbytes;
        if (rank == desc->comm->rank)
            continue;
        if (run_gives(run, rank) && at < out->nbytes)
            code = run_send(run, desc->source + out->at + at,
                            smaller(out->nbytes - at, most), rank, err);
        if (code == 0 && run_takes(run, rank) && at < mine)
            code = run_receive(run, room_of(run) + (size_t)rank * room_each,
                               smaller(mine - at, most), rank, err);
    }
    return run_end_group(run, code, err);
}

// Reduces the blocks of a round, in the order of the ranks.
static int
round_fold(const wm_mover_run_t *run, char *result, size_t at,
           size_t room_each, wm_error_t *err)
{
    const wm_coll_desc_t *desc = &run->desc;
    size_t mine = desc->into[0].nbytes;
    int own = desc->comm->rank;
    return at >= mine
               ? 0
               : run_fold(run, result + at,
                          desc->source + out_of(run, own)->at + at,
                          room_of(run), room_each, (int)run->takes.count,
                          smaller(mine - at, round_bytes(run)), err);
}

// Each rank sends the others their blocks, or all of its vector.
static int
run_reduce_blocks(wm_mover_run_t *run, wm_error_t *err)
{
    const wm_coll_desc_t *desc = &run->desc;
    size_t most = round_bytes(run), longest = 0, mine = desc->into[0].nbytes;
    size_t room_each = aligned(smaller(mine, most));
    char *result = result_waits(run) ? room_of(run) + ranks_of(run) * room_each
                                     : desc->target;
    for (int rank = 0; rank < desc->comm->size; ++rank)
        if (run_gives(run, rank) && out_of(run, rank)->nbytes > longest)
            longest = out_of(run, rank)->nbytes;
    if (run->takes.count > 0 && mine > longest)
        longest = mine;
    int code = 0;
    for (size_t at = 0; at < longest && code == 0; at += most) {
        code = round_exchange(run, at, room_each, err);
        if (code == 0 && run->takes.count > 0)
            code = round_fold(run, result, at, room_each, err);
    }
    return code < 0 || !result_waits(run)
               ? code
               : run_copy(run, desc->target, result, mine, err);
}

// A round of a vector that is reduced in parts: `nbytes` from `at` on; 0:
// none.
typedef struct {
    size_t at, nbytes, each;
    part_t mine;
    char *room;   // of the parts that come
    char *result; // this rank's part
} round_t;

// Returns the round with this number.
static round_t
parts_round(const wm_mover_run_t *run, size_t number)
{
    const wm_coll_desc_t *desc = &run->desc;
    int own = desc->comm->rank;
    size_t all = desc->out[0].nbytes, most = parts_round_bytes(run, all);
    round_t round = {.at = number * most};
    if (round.at >= all)
        return round;
    round.nbytes = smaller(all - round.at, most);
    round.each = part_bytes(run, round.nbytes);
    round.mine = part_of(round.each, own, round.nbytes);
    round.room = room_of(run)
                 + number % 2 * ranks_of(run) * part_bytes(run, most);
    round.result = desc->target != NULL
                       ? desc->target + round.at + round.mine.at
                       : round.room + (size_t)own * round.each;
    return round;
}

// Gives another rank its part of a round, and gets what it has of ours.
static int
parts_scatter(wm_mover_run_t *run, const round_t *round, int rank,
              wm_error_t *err)
{
    part_t its = part_of(round->each, rank, round->nbytes);
    int code = run_send(run, run->desc.source + round->at + its.at, its.nbytes,
                        rank, err);
    return code < 0
               ? code
               : run_receive(run, round->room + (size_t)rank * round->each,
                             round->mine.nbytes, rank, err);
}

// Gives another rank this rank's reduced part, and gets the other's; of a
// Reduce the root alone gets them.
static int
parts_give(wm_mover_run_t *run, const round_t *round, int rank,
           wm_error_t *err)
{
    const wm_coll_desc_t *desc = &run->desc;
    part_t its = part_of(round->each, rank, round->nbytes);
    int root = desc->shape->rooted ? desc->call->root : -1, code = 0;
    if (root < 0 || root == rank)
        code = run_send(run, round->result, round->mine.nbytes, rank, err);
    if (code == 0 && (root < 0 || root == desc->comm->rank))
        code = run_receive(run, desc->target + round->at + its.at, its.nbytes,
                           rank, err);
    return code;
}

// Exchanges the parts of a round, and the reduced ones of the round before.
static int
parts_exchange(wm_mover_run_t *run, const round_t *next, const round_t *before,
               wm_error_t *err)
{
    const wm_coll_desc_t *desc = &run->desc;
    if (next->nbytes == 0 && !desc->shape->rooted
        && before->nbytes == before->each * ranks_of(run))
        return run_gather(run, before->result, desc->target + before->at,
                          before->each, err);
    int code = run_begin_group(run, err);
    if (code < 0)
        return code;
    for (int rank = 0; rank < desc->comm->size && code == 0; ++rank) {
        if (rank == desc->comm->rank)
            continue;
        if (next->nbytes > 0)
            code = parts_scatter(run, next, rank, err);
        if (code == 0 && before->nbytes > 0)
            code = parts_give(run, before, rank, err);
    }
    return run_end_group(run, code, err);
}

static int
parts_fold(const wm_mover_run_t *run, const round_t *round, wm_error_t *err)
{
    const wm_coll_desc_t *desc = &run->desc;
    return run_fold(run, round->result,
                    desc->source + round->at + round->mine.at, round->room,
                    round->each, desc->comm->size, round->mine.nbytes, err);
}

static int
run_reduce_parts(wm_mover_run_t *run, wm_error_t *err)
{
    round_t before = {.nbytes = 0}, next = parts_round(run, 0);
    int code = parts_exchange(run, &next, &before, err);
    for (size_t number = 1; next.nbytes > 0 && code == 0; ++number) {
        before = next;
        code = parts_fold(run, &before, err);
        next = parts_round(run, number);
        if (code == 0)
            code = parts_exchange(run, &next, &before, err);
    }
    return code;
}

// --- Chains ---

// A part of a chain's vector, from `at` on.
typedef struct {
    size_t at, nbytes;
    const char *out; // what this rank passes on
} link_t;

// Adds this rank's part to that which came, into memory that is passed on; and
// gives this rank its result.
static int
chain_fold(const wm_mover_run_t *run, link_t *link, wm_error_t *err)
{
    const wm_coll_desc_t *desc = &run->desc;
    const char *mine = desc->source + link->at;
    char *came = room_of(run), *result = desc->target + link->at;
    bool inclusive = desc->shape->inclusive;
    int own = desc->comm->rank;
    char *sum = inclusive ? result : came + CHAIN_BYTES;
    link->out = own == 0 ? mine : sum;
    if (own == 0)
        return inclusive ? run_copy(run, result, mine, link->nbytes, err) : 0;
    const void *sources[] = {came, mine};
    int code = inclusive || own + 1 < desc->comm->size ? wm_reduce_launch(
                   desc->device, desc->type, desc->op, sum, sources, 2,
                   link->nbytes / wm_reduce_size(desc->type), desc->stream,
                   err)
                                                       : 0;
    return code < 0 || inclusive
               ? code
               : run_copy(run, result, came, link->nbytes, err);
}

// Passes on a part (NULL: none), while the next one comes.
static int
chain_pass(wm_mover_run_t *run, const link_t *link, const link_t *next,
           wm_error_t *err)
{
    const wm_coll_desc_t *desc = &run->desc;
    int own = desc->comm->rank;
    int code = run_begin_group(run, err);
    if (code < 0)
        return code;
    if (link != NULL && own + 1 < desc->comm->size)
        code = run_send(run, link->out, link->nbytes, own + 1, err);
    if (code == 0 && own > 0)
        code = run_receive(run, room_of(run), next->nbytes, own - 1, err);
    return run_end_group(run, code, err);
}

static link_t
chain_link(const wm_mover_run_t *run, size_t at)
{
    size_t left = run->desc.out[0].nbytes - at;
    return (link_t){at, smaller(left, whole_elements(run, CHAIN_BYTES)), NULL};
}

static int
run_chain(wm_mover_run_t *run, wm_error_t *err)
{
    link_t link = chain_link(run, 0);
    int code = chain_pass(run, NULL, &link, err);
    while (link.nbytes > 0 && code == 0) {
        link_t next = chain_link(run, link.at + link.nbytes);
        code = chain_fold(run, &link, err);
        if (code == 0)
            code = chain_pass(run, &link, &next, err);
        link = next;
    }
    return code;
}

// --- The call ---

static int
run_steps(wm_mover_run_t *run, wm_error_t *err)
{
    const wm_coll_desc_t *desc = &run->desc;
    wm_coll_kind_t kind = desc->call->kind;
    char *room = room_of(run);
    if (kind == WM_COLL_BARRIER)
        return run_gather(run, room + desc->comm->rank, room, 1, err);
    if (kind == WM_COLL_BCAST)
        return run_broadcast(run, err);
    if (kind == WM_COLL_ALLGATHER)
        return run_gather(run, desc->source + desc->out[0].at, desc->target,
                          desc->out[0].nbytes, err);
    if (!desc->shape->reduces)
        return run_move(run, err);
    if (run_goes_in_parts(run))
        return run_reduce_parts(run, err);
    if (run_is_chained(run))
        return run_chain(run, err);
    return kind == WM_COLL_ALLREDUCE ? run_reduce_gathered(run, err)
                                     : run_reduce_blocks(run, err);
}

int
wm_mover_run_fill(wm_mover_run_t *run, wm_mover_comm_t *own,
                  const wm_coll_t *call, CUstream stream, wm_error_t *err)
{
    run->own = own;
    run->room = NULL;
    run->sent = 0;
    run->gives = run->takes = (wm_ll_side_t){.first = 0};
    run->desc = (wm_coll_desc_t){
        .call = call,
        .comm = own->comm,
        .device = own->device,
        .stream = stream,
    };
    int code = wm_coll_desc_fill(&run->desc, err);
    if (code == 0)
        wm_coll_desc_sides(&run->desc, &run->gives, &run->takes);
    return code;
}

void
wm_mover_run_drop(wm_mover_run_t *run)
{
    wm_coll_desc_drop(&run->desc);
}

int
wm_mover_run_take(wm_mover_run_t *run, wm_error_t *err)
{
    size_t nbytes = room_bytes(run);
    return nbytes == 0 ? 0
                       : wm_coll_block_take(run->desc.comm, run->desc.device,
                                            nbytes, &run->room, err);
}

int
wm_mover_run_enqueue(wm_mover_run_t *run, wm_error_t *err)
{
    wm_mover_comm_t *own = run->own;
    wm_scope_t scope;
    int code = wm_device_enter(own->device, &scope, err);
    if (code < 0)
        return code;
    wm_lock(&own->lock);
    code = wm_mover_comm_failure(own, err);
    if (code == 0)
        code = run_steps(run, err);
    pthread_mutex_unlock(&own->lock);
    if (code < 0 && atomic_load(&own->broken)) // which the call met
        code = wm_mover_comm_failure(own, err);
    wm_device_leave(&scope);
    if (code < 0)
        return code;
    if (own->movers->count != NULL)
        own->movers->count(run->sent);
    return 0;
}

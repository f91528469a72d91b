// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/direct/participant.h"

#include "comm/coll/direct/preflight.h"
#include "comm/coll/call/reducible.h"

// Returns the bytes of the blocks of some ranks, as published, or SIZE_MAX on
// overflow.
size_t
wm_participant_blocks_until(const wm_participant_t *participant, int first,
                            int end)
{
    size_t nbytes = 0;
    for (int rank = first; rank < end; ++rank) {
        const wm_published_t *published = wm_preflight_data(
            participant->direct.barrier, rank);
        if (__builtin_add_overflow(nbytes, published->block, &nbytes))
            return SIZE_MAX;
    }
    return nbytes;
}

// Checks a Reduce_scatter: the blocks of all ranks add up to the vector of
// each rank.
static int
compare_blocks(const wm_participant_t *participant, wm_error_t *err)
{
    const wm_comm_t *comm = participant->comm;
    const wm_published_t *first = wm_preflight_data(
        participant->direct.barrier, 0);
    for (int rank = 0; rank < comm->size; ++rank) {
        const wm_published_t *published = wm_preflight_data(
            participant->direct.barrier, rank);
        wm_ranks_t group = wm_comm_group(comm, rank);
        size_t total = wm_participant_blocks_until(participant, group.first,
                                                   group.first + group.count);
        if (published->spans[0].nbytes != total
            || first->spans[0].nbytes != total)
            return wm_error_set(
                err, WM_ERR_MPI, MPI_ERR_TRUNCATE,
                "%s gives %zu bytes to reduce, and the recvcounts add up to "
                "%zu bytes: give the same recvcounts on all ranks, with the "
                "sum of the elements to reduce",
                wm_comm_name(comm, rank).text, published->spans[0].nbytes,
                total);
    }
    return 0;
}

// Compares the roots. The greatest published root is taken: between groups,
// ranks that share the root's group publish -1.
static int
compare_roots(wm_participant_t *participant, wm_error_t *err)
{
    const wm_comm_t *comm = participant->comm;
    const wm_published_t *first = wm_preflight_data(
        participant->direct.barrier, 0);
    participant->root = first->root;
    for (int rank = 1; rank < comm->size; ++rank) {
        const wm_published_t *published = wm_preflight_data(
            participant->direct.barrier, rank);
        if (comm->split == 0 && published->root != first->root)
            return wm_error_set(err, WM_ERR_MPI, MPI_ERR_ROOT,
                                "rank 0 gives the root %d, rank %d the root "
                                "%d: all must give the same",
                                first->root, rank, published->root);
        participant->root = published->root > participant->root
                                ? published->root
                                : participant->root;
    }
    int own = wm_comm_group(comm, participant->root).first;
    bool known = (participant->root >= 0
                  || !wm_coll_shape(participant->call->kind)->rooted)
                 && participant->root < comm->size;
    for (int rank = 0; rank < comm->size && known && comm->split > 0; ++rank) {
        const wm_published_t *published = wm_preflight_data(
            participant->direct.barrier, rank);
        bool gives = rank == participant->root
                     || wm_comm_group(comm, rank).first != own;
        known = published->root == (gives ? participant->root : -1);
    }
    return known
               ? 0
               : wm_error_set(
                   err, WM_ERR_MPI, MPI_ERR_ROOT,
                   "the ranks give different roots: give MPI.ROOT on the "
                   "root, MPI.PROC_NULL on the other ranks of its group, and "
                   "the rank of the root on all ranks of the other group");
}

// Returns the rank whose arguments `rank` must match. In an exchange between
// groups each group has its own.
static int
model_of(const wm_participant_t *participant, int rank)
{
    const wm_shape_t *shape = wm_coll_shape(participant->call->kind);
    return participant->comm->split > 0 && shape->rooted ? participant->root
           : shape->reduces                              ? 0
                            : wm_comm_group(participant->comm, rank).first;
}

// Returns true if ranks compare the bytes of one block, not of all blocks.
// Between groups, reductions compare all blocks.
static bool
is_of_each(const wm_participant_t *participant)
{
    const wm_shape_t *shape = wm_coll_shape(participant->call->kind);
    return (shape->scatters || shape->gathers)
           && (participant->comm->split == 0 || !shape->reduces);
}

size_t
wm_participant_bytes_of(const wm_participant_t *participant, int rank)
{
    const wm_shape_t *shape = wm_coll_shape(participant->call->kind);
    const wm_published_t *published = wm_preflight_data(
        participant->direct.barrier, rank);
    bool all = shape->scatters && !is_of_each(participant);
    return published->block
           * (all ? (size_t)wm_comm_group(participant->comm, rank).count : 1);
}

// Raises the difference between two ranks. A function of its own, as making
// the names takes longer than all comparisons.
static int
raise_difference(const wm_participant_t *participant, int rank, int model,
                 wm_error_t *err)
{
    const wm_published_t *first = wm_preflight_data(
        participant->direct.barrier, model);
    const wm_published_t *published = wm_preflight_data(
        participant->direct.barrier, rank);
    wm_rank_name_t name = wm_comm_name(participant->comm, rank);
    wm_rank_name_t other = wm_comm_name(participant->comm, model);
    if (published->op != first->op)
        return wm_error_set(err, WM_ERR_MPI, MPI_ERR_OP,
                            "%s gives another op than %s: all must give the "
                            "same",
                            name.text, other.text);
    if (published->type != first->type)
        return wm_error_set(err, WM_ERR_TYPE, 0,
                            "%s gives another element type than %s (%s, not "
                            "%s): all must give the same",
                            name.text, other.text,
                            wm_reducible_type_name(published->type),
                            wm_reducible_type_name(first->type));
    return wm_error_set(err, WM_ERR_MPI, MPI_ERR_TRUNCATE,
                        "%s gives %zu bytes%s, %s gives %zu: all must give "
                        "the same",
                        other.text,
                        wm_participant_bytes_of(participant, model),
                        is_of_each(participant) ? " for each rank" : "",
                        name.text, wm_participant_bytes_of(participant, rank));
}

int
wm_participant_compare(wm_participant_t *participant, wm_error_t *err)
{
    const wm_coll_t *call = participant->call;
    const wm_comm_t *comm = participant->comm;
    bool alike = !wm_coll_shape(call->kind)->varies
                 && !wm_coll_shape(call->kind)->uneven;
    int code = compare_roots(participant, err);
    if (code < 0)
        return code;
    for (int rank = 0; rank < comm->size; ++rank) {
        int model = model_of(participant, rank);
        const wm_published_t *first = wm_preflight_data(
            participant->direct.barrier, model);
        const wm_published_t *published = wm_preflight_data(
            participant->direct.barrier, rank);
        if (wm_coll_shape(call->kind)->rooted && published->root < 0)
            continue; // it takes no part
        if (published->op != first->op || published->type != first->type
            || (alike
                && wm_participant_bytes_of(participant, rank)
                       != wm_participant_bytes_of(participant, model)))
            return raise_difference(participant, rank, model, err);
    }
    return wm_coll_shape(call->kind)->uneven ? compare_blocks(participant, err)
                                             : 0;
}

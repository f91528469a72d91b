// SPDX-License-Identifier: BSD-3-Clause
#include "comm/comm/failure.h"

#include <stdlib.h>

#include "comm/engine/engine.h"
#include "comm/engine/optional_mpi.h"
#include "comm/link/link.h"
#include "comm/node/stream_words.h"

#define AGAIN_US 20000

static int
cannot_revoke(wm_error_t *err)
{
    return wm_error_set(
        err, WM_ERR_MPI, MPI_ERR_UNSUPPORTED_OPERATION,
        "this MPI cannot revoke communicators: use an MPI that can (ULFM)");
}

// Collectives on streams raise after this, and wait for nobody.
static void
failure_end_streams(const wm_comm_t *comm)
{
    if (comm->symm != NULL || comm->graph_symm != NULL)
        (void)wm_stream_words_poison(comm->barrier, comm->size);
}

#if defined(MPIX_ERR_PROC_FAILED) && defined(MPIX_ERR_REVOKED)

static _Atomic bool untold; // MPI does not report failures

// Marks the ranks of a group that have died, by rank in `all`.
static void
failure_mark(wm_comm_t *comm, MPI_Group failed, MPI_Group all)
{
    int count = 0;
    MPI_Group_size(failed, &count);
    int *ranks = count > 0 ? malloc(2 * (size_t)count * sizeof *ranks) : NULL;
    if (ranks == NULL)
        return;
    for (int i = 0; i < count; ++i)
        ranks[i] = i;
    if (MPI_Group_translate_ranks(failed, count, ranks, all, ranks + count)
        == MPI_SUCCESS)
        for (int i = count; i < 2 * count; ++i)
            if (ranks[i] >= 0 && ranks[i] < comm->size
                && !comm->peers[ranks[i]]->dead) {
                comm->peers[ranks[i]]->dead = true;
                wm_link_peer_died(comm->peers[ranks[i]]);
                wm_engine_peer_died(comm->peers[ranks[i]]);
            }
    free(ranks);
}

static void
failure_ask(wm_comm_t *comm)
{
    MPI_Group failed, all;
    int unused, class = MPI_SUCCESS, inter = 0;
    if (MPIX_Comm_get_failed == NULL) {
        atomic_store(&untold, true);
        return;
    }
    int code = MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm->match, &unused,
                          MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS)
        MPI_Error_class(code, &class);
    comm->revoked |= class == MPIX_ERR_REVOKED;
    if (comm->revoked) // such a call makes no progress, by which MPI learns
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &unused,
                   MPI_STATUS_IGNORE);
    if (MPIX_Comm_get_failed(comm->match, &failed) != MPI_SUCCESS) {
        atomic_store(&untold, class != MPIX_ERR_REVOKED);
        return;
    }
    MPI_Comm_test_inter(comm->match, &inter);
    code = inter ? MPI_Comm_remote_group(comm->match, &all)
                 : MPI_Comm_group(comm->match, &all);
    if (code == MPI_SUCCESS) {
        failure_mark(comm, failed, all);
        MPI_Group_free(&all);
    }
    MPI_Group_free(&failed);
}

void
wm_failure_release(wm_comm_t *comm)
{
    comm->looked = wm_engine_now();
    failure_ask(comm);
}

int
wm_failure_look(wm_comm_t *comm, int rank, wm_error_t *err)
{
    if (wm_engine_now() - comm->looked > AGAIN_US)
        wm_failure_release(comm);
    if (comm->revoked)
        rank = comm->size;
    else if (!comm->peers[rank]->dead)
        return 0;
    return wm_failure_set(comm, rank, err);
}

int
wm_failure_set(const wm_comm_t *comm, int rank, wm_error_t *err)
{
    return rank == comm->size
               ? wm_error_set(err, WM_ERR_MPI, MPIX_ERR_REVOKED,
                              "the communicator was revoked")
               : wm_error_set(err, WM_ERR_MPI, MPIX_ERR_PROC_FAILED,
                              "%s has died", wm_comm_name(comm, rank).text);
}

bool
wm_failure_is_told(void)
{
    return MPIX_Comm_get_failed != NULL && !atomic_load(&untold);
}

int
wm_failure_of_any(int code)
{
    int class = MPI_SUCCESS;
    MPI_Error_class(code, &class);
    return class == MPIX_ERR_PROC_FAILED_PENDING ? MPIX_ERR_PROC_FAILED : code;
}

bool
wm_failure_go_on(wm_comm_t *comm)
{
    wm_failure_release(comm);
    return MPIX_Comm_failure_ack != NULL && !comm->revoked
           && MPIX_Comm_failure_ack(comm->match) == MPI_SUCCESS;
}

bool
wm_failure_is_cause(const wm_error_t *err)
{
    int class = MPI_SUCCESS;
    if (err->code == WM_ERR_MPI)
        MPI_Error_class(err->detail, &class);
    return class == MPIX_ERR_PROC_FAILED
           || class == MPIX_ERR_PROC_FAILED_PENDING
           || class == MPIX_ERR_REVOKED;
}

static int
revoke(MPI_Comm comm, wm_error_t *err)
{
    if (MPIX_Comm_revoke == NULL)
        return cannot_revoke(err);
    return wm_mpi_check(MPIX_Comm_revoke(comm), "MPIX_Comm_revoke", err);
}

int
wm_failure_revoke(wm_comm_t *comm, wm_error_t *err)
{
    int code = revoke(comm->match, err);
    int other = revoke(comm->data, code == 0 ? err : NULL);
    if (comm->colls.ordered != NULL)
        (void)!revoke(*comm->colls.ordered, NULL);
    comm->looked = 0;
    failure_end_streams(comm);
    return code < 0 ? code : other;
}

#else

int
wm_failure_look(wm_comm_t *comm, int rank, wm_error_t *err)
{
    (void)comm, (void)rank, (void)err;
    return 0;
}

int
wm_failure_set(const wm_comm_t *comm, int rank, wm_error_t *err)
{
    (void)comm;
    return wm_error_set(err, WM_ERR_MPI, MPI_ERR_OTHER, "rank %d has died",
                        rank);
}

bool
wm_failure_is_told(void)
{
    return false;
}

void
wm_failure_release(wm_comm_t *comm)
{
    (void)comm;
}

int
wm_failure_of_any(int code)
{
    return code;
}

bool
wm_failure_go_on(wm_comm_t *comm)
{
    (void)comm;
    return false;
}

bool
wm_failure_is_cause(const wm_error_t *err)
{
    (void)err;
    return false;
}

int
wm_failure_revoke(wm_comm_t *comm, wm_error_t *err)
{
    failure_end_streams(comm);
    return cannot_revoke(err);
}

#endif

int
wm_failure_look_at_all(wm_comm_t *comm, wm_error_t *err)
{
    int code = wm_failure_look(comm, 0, err);
    for (int rank = 1; rank < comm->size && code == 0; ++rank)
        if (comm->peers[rank]->dead)
            code = wm_failure_look(comm, rank, err);
    return code;
}

// SPDX-License-Identifier: BSD-3-Clause
// The engine of each class of collectives between hosts, where ranks have no
// exchange area. A class is a collective with a range of lengths; for a
// reduction also its type and operation. All ranks know it alike, as MPI wants
// these facts to be alike; so each rank must read its arguments, which may be
// in any memory and of any datatype. MPI does short calls, and nobody is
// asked. The first blocking call of a class asks all ranks which engines serve
// them; later calls obey the answer, also ranks that no engine would serve
// (moved_coll.h). If lengths vary by rank, a rank whose arguments only mpi4py
// reads has no engine. Blocking calls of such a kind ask as long as an engine
// does some of them; else MPI does more and more calls after one question, at
// most WM_COLL_CLASS_REPEATS. All ranks count them. A nonblocking call of a
// new class begins the question and does not wait for the answer. The class is
// settled, so that all ranks know its engine, once a blocking call has waited.
// One thread at a time.
#ifndef WM_COMM_COLL_RUN_COLL_CLASS_H
#define WM_COMM_COLL_RUN_COLL_CLASS_H

#include "comm/coll/run/coll_engines.h"

// MPI does calls of fewer bytes, unless they may not be staged (require.h) or
// WARPMPI_ENGINES does not name MPI. A power of two. Measured between hosts of
// one H200, by TCP: calls of 64 KiB take 55 to 85 us with MPI, and 55 to 130
// with NCCL.
#define WM_COLL_CLASS_BYTES 65536

#define WM_COLL_CLASS_REPEATS 64

// Returns true if a call may have a class: then this rank must have read its
// arguments. If it has not, `call` has its kind and operation.
bool
wm_coll_class_has_length(wm_comm_t *comm, const wm_coll_t *call);

// Calls without a class: on one host, and calls that MPI does, as all ranks
// know; of too few bytes for the engines between hosts, which MPI does, too.
#define WM_COLL_CLASS_NONE UINT64_C(0)
#define WM_COLL_CLASS_SHORT UINT64_C(1)

// Returns the class of a call, which all ranks know alike.
uint64_t
wm_coll_class_key(const wm_participant_t *participant);

typedef struct wm_coll_class wm_coll_class_t;

// Sets *engines to the bit of the engine of the class of `op`; 0: MPI. Returns
// false if the class is not settled.
bool
wm_coll_class_find(const wm_coll_op_t *op, unsigned *engines);

// Returns true if MPI does the next blocking call of a kind whose lengths no
// rank knows, as it did the one before, and counts the call: all ranks alike.
// `on_device`: it has GPU memory on this rank, which the next question tells.
bool
wm_coll_class_repeat(wm_comm_t *comm, wm_coll_kind_t kind, bool on_device);

// The class of all calls of a communicator, as that of a persistent call.
#define WM_COLL_CLASS_EVERY UINT64_MAX

// Keeps the first of these engines for a class. All ranks alike.
WM_MUST_CHECK int
wm_coll_class_keep(wm_comm_t *comm, uint64_t key, unsigned engines,
                   wm_error_t *err);

// Returns true if all calls of a communicator have one engine.
bool
wm_coll_class_is_every(const wm_comm_t *comm);

// Asks all ranks, opens the engine and keeps the answer; collective.
WM_MUST_CHECK int
wm_coll_class_ask(const wm_coll_op_t *op, unsigned *engines, wm_error_t *err);

// Asks all ranks likewise, for a call that may not wait, unless a call before
// has asked. Questions are begun in the order of the calls, on `match`.
WM_MUST_CHECK int
wm_coll_class_begin(const wm_coll_op_t *op, wm_coll_class_t **class,
                    wm_error_t *err);

// Returns 1 and the bits of the engines that serve all ranks, open or not; 0
// before the answer has come; or an error. Engine lock held.
WM_MUST_CHECK int
wm_coll_class_look(wm_coll_class_t *class, unsigned *engines, wm_error_t *err);

// Frees the answers of a communicator.
void
wm_coll_class_drop(wm_comm_t *comm);

#endif

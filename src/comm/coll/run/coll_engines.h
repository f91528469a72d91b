// SPDX-License-Identifier: BSD-3-Clause
// The engines of collectives: their list, in order of preference, and the
// choice of one for a call. The last one, MPI, can do every call. Each other
// one has a bit: ranks exchange the bits of those that serve them, and the
// first one that serves all does the call. Locks as in coll_engine.h.
#ifndef WM_COMM_COLL_RUN_COLL_ENGINES_H
#define WM_COMM_COLL_RUN_COLL_ENGINES_H

#include "comm/coll/direct/coll_op.h"
#include "comm/coll/direct/preflight.h"

// Returns an engine by its number, MPI's being the last; NULL: there is none.
const wm_coll_engine_t *
wm_coll_engines_at(int number);

// Returns the number of calls that it has started in this process, also on
// streams.
int64_t
wm_coll_engines_started(int number);

// Counts a call that an engine starts, or has given to a stream.
void
wm_coll_engines_count(const wm_coll_engine_t *engine);

// Returns why an engine serves no call of a communicator; NULL: it may. The
// text is borrowed, until the engine is opened again.
const char *
wm_coll_engines_why_not(wm_comm_t *comm, int number);

// Returns true if an engine does some calls of this kind, also if it serves
// none of the communicator.
bool
wm_coll_engines_may_do(const wm_comm_t *comm, wm_coll_kind_t kind, int number);

// Returns true if calls of few bytes are not left to MPI: they may not be
// staged, or WARPMPI_ENGINES does not name MPI.
bool
wm_coll_engines_take_short(const wm_comm_t *comm);

// Returns the bits of the engines besides MPI that may serve a communicator,
// which all its ranks know alike; for an intercommunicator, its `whole`.
unsigned
wm_coll_engines_span(wm_comm_t *comm);

// Returns the bits of the engines besides MPI that do some calls of this kind;
// and of those that do so on streams, also if they could not be opened. All
// ranks alike.
unsigned
wm_coll_engines_do(wm_comm_t *comm, wm_coll_kind_t kind);

unsigned
wm_coll_engines_on_stream(wm_comm_t *comm, wm_coll_kind_t kind);

// Opens for calls of these kinds (bits), of GPU memory, the first engine that
// does them on streams, and, unless `streams`, the first that does so at all;
// collective. While one cannot be opened on some rank, the next one takes its
// place.
WM_MUST_CHECK int
wm_coll_engines_open_each(wm_comm_t *comm, uint32_t kinds, bool streams,
                          int device, wm_error_t *err);

// Returns those of these kinds of which open engines do no call on streams.
// All ranks alike.
uint32_t
wm_coll_engines_lack_streams(wm_comm_t *comm, uint32_t kinds);

// Opens those that are not open; collective. A capture opens none: it uses
// those that are open or capture unopened, and all ranks raise if there are
// none. *among: the bits of those that calls use then. `call` is NULL if this
// rank's arguments are wrong and `err` is written: if there are engines to
// open, all ranks raise and none is opened. Raises also if none could be
// opened; the next call tries again.
WM_MUST_CHECK int
wm_coll_engines_open_on_stream(wm_comm_t *comm, wm_coll_kind_t kind,
                               const wm_coll_t *call,
                               const wm_coll_stream_t *on, unsigned *among,
                               wm_error_t *err);

// Returns true if several engines may do calls on streams.
bool
wm_coll_engines_several_on_stream(wm_comm_t *comm);

// Returns the first of these engines that does a call; NULL: none.
const wm_coll_engine_t *
wm_coll_engines_first_on_stream(const wm_comm_t *comm, unsigned among,
                                const wm_coll_t *call);

// Returns the bit of the first engine of these bits.
unsigned
wm_coll_engines_first(unsigned engines);

// Returns true if the first engine of these bits is open, or if there is none.
bool
wm_coll_engines_first_is_open(const wm_comm_t *comm, unsigned engines);

// Opens the first engine of these bits, with the GPU of the call (-1: none);
// collective. While this fails on some
// rank, clears its bit and opens the next one.
WM_MUST_CHECK int
wm_coll_engines_open(wm_comm_t *comm, wm_coll_kind_t kind, int device,
                     unsigned *engines, wm_error_t *err);

// Returns what an engine's open() has set; NULL: it is not open.
void *
wm_coll_engines_state(const wm_comm_t *comm, const wm_coll_engine_t *engine);

// See wm_coll_engine_t.abort.
void
wm_coll_engines_abort(wm_comm_t *comm, const wm_coll_engine_t *engine);

// See wm_coll_engine_t.revoke: of all engines that are open.
void
wm_coll_engines_revoke(wm_comm_t *comm, const wm_error_t *why);

// Initializes an operation and asks the engines which of them serve this rank.
void
wm_coll_op_init(wm_coll_op_t *op, wm_comm_t *comm, wm_barrier_t *barrier,
                const wm_coll_t *call, wm_coll_form_t form);

// Returns the bits of the engines that serve this rank, open or not.
unsigned
wm_coll_op_serving(const wm_coll_op_t *op);

// Returns the bits of the open engines that do the call in some memory. All
// ranks know them alike, though none was asked.
unsigned
wm_coll_op_usable(const wm_coll_op_t *op);

// Likewise for a call of these facts.
unsigned
wm_coll_engines_opened(wm_comm_t *comm, const wm_coll_facts_t *facts);

// Returns true if the first engine of these bits takes all memory.
bool
wm_coll_engines_first_takes_all(unsigned engines);

// Returns true if the engine of MPI can begin the call later.
bool
wm_coll_op_may_queue(const wm_coll_op_t *op);

// Begins to make this rank's data ready for the engines that serve it.
WM_MUST_CHECK int
wm_coll_op_prepare(wm_coll_op_t *op, wm_error_t *err);

// Returns 1 when the data may be published, 0 if not yet, or an error.
WM_MUST_CHECK int
wm_coll_op_is_ready(wm_coll_op_t *op, wm_error_t *err);

// Returns what this rank tells the others in the preflight of the call. `code`
// is its error so far, or 0.
wm_preflight_t
wm_coll_op_preflight(const wm_coll_op_t *op, int code);

// Chooses the engine: the first one of these bits, which serve all ranks;
// none: MPI. On one host, compares the arguments of the ranks, unless MPI does
// so.
WM_MUST_CHECK int
wm_coll_op_choose(wm_coll_op_t *op, unsigned engines, wm_error_t *err);

// Chooses the engine of this bit, which all ranks know, or MPI without one,
// and begins to make this rank's data ready, or to move the data if the engine
// cannot take them. Waits for the work of the program that uses such data, if
// they are in host memory.
WM_MUST_CHECK int
wm_coll_op_begin_chosen(wm_coll_op_t *op, unsigned bit, wm_error_t *err);

// Chooses MPI, maybe after another engine has left the call to it.
void
wm_coll_op_choose_mpi(wm_coll_op_t *op);

// Returns true if MPI was chosen.
bool
wm_coll_op_is_mpis(const wm_coll_op_t *op);

// Starts the call.
WM_MUST_CHECK wm_coll_result_t
wm_coll_op_start(wm_coll_op_t *op, wm_error_t *err);

// Steps a call that was started.
WM_MUST_CHECK wm_coll_result_t
wm_coll_op_step(wm_coll_op_t *op, bool *waits, wm_error_t *err);

// Ends the part of an engine that has started the call, if there is one.
void
wm_coll_op_leave(wm_coll_op_t *op);

// Frees all that the operation has taken.
void
wm_coll_op_drop(wm_coll_op_t *op);

#endif

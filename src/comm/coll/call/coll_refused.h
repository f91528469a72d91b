// SPDX-License-Identifier: BSD-3-Clause
// Calls that MPI was to do and has refused on this rank (coll.h,
// wm_coll_refused). Any thread that makes the communicator's collectives.
#ifndef WM_COMM_COLL_CALL_COLL_REFUSED_H
#define WM_COMM_COLL_CALL_COLL_REFUSED_H

#include "comm/coll/call/coll_engine.h"

// Notes that MPI has refused a call on this rank, which all ranks had left to
// it: the call has not happened. On one host its number stays published, so
// this rank's next call of this form has it. MPI does that call; the others
// are not asked.
static inline void
wm_coll_refuse(wm_comm_t *comm, wm_coll_form_t form)
{
    if (wm_comm_is_one_host(comm) || form != WM_COLL_FORM_NONBLOCKING)
        comm->colls.refused |= 1u << form;
}

// Returns true once after wm_coll_refuse().
static inline bool
wm_coll_was_refused(wm_comm_t *comm, wm_coll_form_t form)
{
    bool refused = (comm->colls.refused & 1u << form) != 0;
    comm->colls.refused &= ~(1u << form);
    return refused;
}

#endif

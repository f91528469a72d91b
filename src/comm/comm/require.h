// SPDX-License-Identifier: BSD-3-Clause
// WARPMPI_REQUIRE=gpu and wm.require(): calls with GPU memory raise where the
// memory would be staged through the host. The setting is the same on all
// ranks of a communicator: ranks compare the environment's when they make one,
// and a change is collective. Any thread.
#ifndef WM_COMM_COMM_REQUIRE_H
#define WM_COMM_COMM_REQUIRE_H

#include "comm/comm/comm.h"

// Returns true if all communicators of this process have the setting.
bool
wm_require_is_everywhere(void);

// Returns true if a communicator has it.
bool
wm_require_is_on(const wm_comm_t *comm);

// Sets it for a communicator; NULL: for all.
void
wm_require_set(wm_comm_t *comm, bool on);

// Writes why memory would be staged, and what to do. Returns WM_ERR_STAGING.
int
wm_require_refuse(const char *why, const char *cure, wm_error_t *err);

// Returns what an error tells the other end of a message: of WM_ERR_STAGING
// the reason and the cure alone.
const char *
wm_require_told(const wm_error_t *err);

// Writes the error that the other end, a "sender" or "receiver", has told.
int
wm_require_hear(const char *end, int rank, const char *told, wm_error_t *err);

#endif

// SPDX-License-Identifier: BSD-3-Clause
// The lock of a window's rank, for the requests of other ranks: those that
// wait take it in the order in which they came. Engine lock held.
#ifndef WM_COMM_RMA_TARGET_LOCK_H
#define WM_COMM_RMA_TARGET_LOCK_H

#include "comm/rma/target.h"

// A request that waits. Zeroed: it does not.
typedef struct wm_target_ticket {
    struct wm_target_ticket *next;
    bool exclusive, waits;
    uint32_t number; // of the caller's words
} wm_target_ticket_t;

typedef struct {
    wm_target_lock_t words; // the caller's; NULL functions: there are none
    int shared;             // without them: ranks that hold the lock
    bool exclusive;         // one holds it alone
    bool updates;           // one request has the right to update
    wm_target_ticket_t *first, *last;
} wm_target_locking_t;

// Takes the lock. Returns false if it is not free yet: call again. The ticket
// is in the lock's list until then.
bool
wm_target_lock_take(wm_target_locking_t *locking, wm_target_ticket_t *ticket);

// Leaves the lock, as it was taken.
void
wm_target_lock_leave(wm_target_locking_t *locking, bool exclusive);

// Takes the right to update elements alone. Returns false if another has it:
// call again.
bool
wm_target_lock_take_update(wm_target_locking_t *locking);
void
wm_target_lock_leave_update(wm_target_locking_t *locking);

#endif

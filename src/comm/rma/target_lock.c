// SPDX-License-Identifier: BSD-3-Clause
#include "comm/rma/target_lock.h"

// Takes the lock if nobody holds it in another way.
static bool
target_lock_try(wm_target_locking_t *locking, const wm_target_ticket_t *ticket)
{
    const wm_target_lock_t *words = &locking->words;
    if (words->take != NULL)
        return words->take(words->context, ticket->number, ticket->exclusive);
    if (locking->exclusive || (ticket->exclusive && locking->shared > 0))
        return false;
    locking->exclusive = ticket->exclusive;
    locking->shared += !ticket->exclusive;
    return true;
}

static void
target_lock_queue(wm_target_locking_t *locking, wm_target_ticket_t *ticket)
{
    const wm_target_lock_t *words = &locking->words;
    ticket->waits = true;
    ticket->next = NULL;
    if (words->ask != NULL)
        ticket->number = words->ask(words->context);
    if (locking->first == NULL)
        locking->first = ticket;
    else
        locking->last->next = ticket;
    locking->last = ticket;
}

bool
wm_target_lock_take(wm_target_locking_t *locking, wm_target_ticket_t *ticket)
{
    if (!ticket->waits)
        target_lock_queue(locking, ticket);
    if (locking->first != ticket || !target_lock_try(locking, ticket))
        return false;
    locking->first = ticket->next;
    ticket->waits = false;
    return true;
}

void
wm_target_lock_leave(wm_target_locking_t *locking, bool exclusive)
{
    if (locking->words.leave != NULL)
        locking->words.leave(locking->words.context, exclusive);
    else if (exclusive)
        locking->exclusive = false;
    else
        --locking->shared;
}

bool
wm_target_lock_take_update(wm_target_locking_t *locking)
{
    const wm_target_lock_t *words = &locking->words;
    if (locking->updates
        || (words->take_update != NULL && !words->take_update(words->context)))
        return false;
    return locking->updates = true;
}

void
wm_target_lock_leave_update(wm_target_locking_t *locking)
{
    locking->updates = false;
    if (locking->words.leave_update != NULL)
        locking->words.leave_update(locking->words.context);
}

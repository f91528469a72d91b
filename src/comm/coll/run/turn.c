// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/run/turn.h"

#include "comm/engine/engine.h"

uint32_t
wm_turns_skip(wm_turns_t *turns)
{
    return ++turns->asked;
}

bool
wm_turn_is_first(const wm_turn_t *turn)
{
    return atomic_load(&turn->turns->first) == turn;
}

bool
wm_turn_has_bank(const wm_turn_t *turn)
{
    return turn->number - atomic_load(&turn->turns->first)->number
           < WM_BARRIER_ASIDE;
}

// Adds operations that have a bank to the engine. The engine would look at the
// others in vain, again and again.
static void
let_in(wm_turns_t *turns)
{
    wm_turn_t *turn;
    while ((turn = turns->outside) != NULL && wm_turn_has_bank(turn)) {
        turns->outside = turn->next;
        wm_engine_add_lock_held(turn->op);
        wm_op_release(turn->op); // the engine has its own reference
    }
}

void
wm_turn_queue(wm_turns_t *turns, wm_turn_t *turn)
{
    turn->turns = turns;
    turn->number = ++turns->asked;
    turn->passed = false;
    turn->next = NULL;
    if (turns->last != NULL)
        turns->last->next = turn;
    else
        atomic_store(&turns->first, turn);
    turns->last = turn;
}

void
wm_turn_enlist(wm_turns_t *turns, wm_turn_t *turn)
{
    wm_turn_queue(turns, turn);
    if (turns->outside == NULL)
        turns->outside = turn;
    wm_op_retain(turn->op);
    let_in(turns);
}

void
wm_turn_pass(wm_turn_t *turn)
{
    wm_turns_t *turns = turn->turns;
    wm_turn_t *before = turns->first;
    if (turn->passed)
        return;
    turn->passed = true;
    if (before == turn) {
        before = NULL;
        atomic_store(&turns->first, turn->next);
    }
    else {
        while (before->next != turn)
            before = before->next;
        before->next = turn->next;
    }
    if (turns->last == turn)
        turns->last = before;
    let_in(turns);
}

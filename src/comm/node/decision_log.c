// SPDX-License-Identifier: BSD-3-Clause
#include "comm/node/decision_log.h"

#include "comm/node/barrier_ranks.h"

// An entry of the decision log: the call, the number of ranks that have voted,
// the number that have read the decision, and a veto.
#define ENTRY_CALL(entry) ((uint32_t)((entry) >> 32))
#define VOTED ((uint64_t)1)
#define READ ((uint64_t)1 << 8)
#define VETOED ((uint64_t)1 << 16)
#define ENTRY_COUNT(entry, of) ((int)((entry) / (of)) & 0xff)

static _Atomic uint64_t *
log_entry(const wm_barrier_t *barrier, uint32_t call)
{
    return &barrier->of[0].area->decision_log[call % WM_DECISION_LOG];
}

bool
wm_decision_vote(const wm_barrier_t *barrier, uint32_t call, bool capable)
{
    _Atomic uint64_t *entry = log_entry(barrier, call);
    uint64_t now = atomic_load(entry), next;
    do {
        // An entry that all have read is taken by the call one log later
        // only, which may not have come yet.
        if (ENTRY_CALL(now) != call
            && (now == 0 ? call > WM_DECISION_LOG
                         : ENTRY_CALL(now) != call - WM_DECISION_LOG
                               || ENTRY_COUNT(now, READ) < barrier->size))
            return false;
        next = ENTRY_CALL(now) == call ? now : (uint64_t)call << 32;
        next += capable ? VOTED : VOTED + READ;
        next |= capable ? 0 : VETOED;
    } while (!atomic_compare_exchange_weak(entry, &now, next));
    return true;
}

wm_decision_t
wm_decision_read(const wm_barrier_t *barrier, uint32_t call)
{
    _Atomic uint64_t *entry = log_entry(barrier, call);
    uint64_t now = atomic_load(entry);
    if ((now & VETOED) == 0 && ENTRY_COUNT(now, VOTED) < barrier->size)
        return WM_DECISION_OPEN;
    atomic_fetch_add(entry, READ);
    return (now & VETOED) != 0 ? WM_DECISION_MPI : WM_DECISION_GPUS;
}

void
wm_decision_withdraw(const wm_barrier_t *barrier, uint32_t call)
{
    _Atomic uint64_t *entry = log_entry(barrier, call);
    uint64_t now = atomic_load(entry);
    while (ENTRY_CALL(now) == call && (now & VETOED) == 0
           && ENTRY_COUNT(now, VOTED) < barrier->size
           && !atomic_compare_exchange_weak(entry, &now, now | VETOED))
        ;
}

// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/agreement.h"

#include "comm/coll/half.h"
#include "comm/engine/engine.h"

static const char *const call_names[] = {"another",
#define X(NAME, name) [WM_CALL_##NAME] = name,
                                         WM_CALLS(X)
#undef X
};

// What the ranks tell each other before anything is begun, and at the end
// where a rank stages, since one whose copy fails still takes part.
enum {
    FAILED, // 1 + a rank that did
    STAGES,
    BUSY, // messages are under way, which MPI's blocking calls do not advance
    COUNT,
    MINUS_COUNT,
    KIND, // the call, and below that its detail
    MINUS_KIND,
    OP,
    MINUS_OP,
    NOTICES, // to be heeded
    CAPABLE, // of staying on the GPUs
    INCAPABLE,
    RIDES_NOT, // what is said does not hold all that is sent
    SLABS_NOT, // it cannot go by slabs
};

_Static_assert(SLABS_NOT + 1 == WM_AGREE_VALUES, "there is room for each");
_Static_assert(sizeof(wm_said_t) <= WM_AGREE_BYTES, "likewise");

// An element's number takes fewer bits, and a rank.
#define DETAIL_BITS 56
#define DETAIL_OF(kind) ((kind) & (((int64_t)1 << DETAIL_BITS) - 1))
#define CALL_NAME_OF(kind)                                                    \
    wm_call_name((wm_call_kind_t)((kind) >> DETAIL_BITS))

const char *
wm_call_name(wm_call_kind_t kind)
{
    bool known = (unsigned)kind < WM_CALL_KINDS;
    return call_names[known ? kind : WM_CALL_UNKNOWN];
}

static int
compare(const wm_agreement_t *mine, const int64_t *most, wm_error_t *err)
{
    int64_t one = -most[MINUS_KIND], other = most[KIND];
    if (one >> DETAIL_BITS != other >> DETAIL_BITS)
        return wm_error_set(err, WM_ERR_TYPE, 0,
                            "the ranks are in different collectives, %s and "
                            "%s among them, this one in %s: all must make the "
                            "same calls in the same order",
                            CALL_NAME_OF(one), CALL_NAME_OF(other),
                            call_names[mine->call]);
    if (one != other && mine->call == WM_CALL_BCAST)
        return wm_error_set(err, WM_ERR_MPI, MPI_ERR_ROOT,
                            "the ranks give different roots, %lld and %lld "
                            "among them, this one %lld: all must give the "
                            "same",
                            (long long)DETAIL_OF(one),
                            (long long)DETAIL_OF(other),
                            (long long)mine->detail);
    if (one != other)
        return wm_error_set(err, WM_ERR_TYPE, 0,
                            "the ranks give different element types, %s and "
                            "%s among them, this one %s: all must give the "
                            "same",
                            wm_half_name(DETAIL_OF(one)),
                            wm_half_name(DETAIL_OF(other)),
                            wm_half_name(mine->detail));
    if (most[OP] != -most[MINUS_OP])
        return wm_error_set(err, WM_ERR_MPI, MPI_ERR_OP,
                            "the ranks give different ops: all must give the "
                            "same");
    if (most[COUNT] != -most[MINUS_COUNT])
        return wm_error_set(
            err, WM_ERR_MPI, MPI_ERR_TRUNCATE,
            "the ranks give from %lld to %lld %s, this one "
            "%zu: all must give the same",
            (long long)-most[MINUS_COUNT], (long long)most[COUNT],
            mine->call == WM_CALL_BCAST ? "bytes" : "elements", mine->count);
    return 0;
}

static void
fill(const wm_comm_t *comm, const wm_agreement_t *agreement, int64_t *most)
{
    int64_t count = (int64_t)agreement->count;
    int64_t kind = ((int64_t)agreement->call << DETAIL_BITS)
                   | agreement->detail;
    const wm_native_t *native = agreement->native;
    bool capable = native != NULL && native->capable;
    most[FAILED] = agreement->code < 0 ? comm->rank + 1 : 0;
    most[STAGES] = agreement->stages;
    most[BUSY] = wm_engine_active() > 0;
    most[COUNT] = count;
    most[MINUS_COUNT] = -count;
    most[KIND] = kind;
    most[MINUS_KIND] = -kind;
    most[OP] = agreement->op;
    most[MINUS_OP] = -agreement->op;
    most[NOTICES] = agreement->notices;
    most[CAPABLE] = capable;
    most[INCAPABLE] = !capable;
    most[RIDES_NOT] = !agreement->rides_all;
    most[SLABS_NOT] = !agreement->slabs;
}

// What is said is borrowed.
static const void *
said_of(const wm_agreement_t *agreement, size_t *nbytes)
{
    const wm_native_t *native = agreement->native;
    bool says = native != NULL
                && (native->capable || agreement->rides_all
                    || agreement->slabs);
    *nbytes = says ? agreement->nbytes : 0;
    return says ? &native->said : NULL;
}

static int
conclude(const wm_comm_t *comm, wm_agreement_t *agreement, const int64_t *most,
         int told, wm_error_t *err)
{
    int code = agreement->code;
    agreement->stages = most[STAGES] != 0;
    agreement->busy = most[BUSY] != 0;
    agreement->notices = most[NOTICES] != 0;
    agreement->mixed = most[CAPABLE] != 0 && most[INCAPABLE] != 0;
    agreement->stays = most[INCAPABLE] == 0;
    agreement->rides_all = most[RIDES_NOT] == 0;
    agreement->slabs = most[SLABS_NOT] == 0;
    if (code < 0 || told < 0)
        return code < 0 ? code : told;
    if (most[FAILED] != 0)
        return wm_error_set(err, WM_ERR_CUDA, 0,
                            "%s failed in this collective: its error tells "
                            "why",
                            wm_comm_name(comm, (int)most[FAILED] - 1).text);
    code = compare(agreement, most, err);
    agreement->begun = code == 0;
    return code;
}

void
wm_agreement_say(const wm_comm_t *comm, wm_gates_t *gates,
                 const wm_agreement_t *agreement)
{
    wm_agree_t agreed; // of which no more is looked at than is filled
    size_t nbytes;
    agreed.nbytes = 0;
    const void *said = said_of(agreement, &nbytes);
    fill(comm, agreement, agreed.values);
    wm_agree_say(gates, &agreed, said, nbytes);
}

int
wm_agreement_hear(const wm_comm_t *comm, const wm_gates_t *gates,
                  wm_agreement_t *agreement, wm_error_t *err)
{
    wm_agree_t agreed;
    agreed.nbytes = 0;
    fill(comm, agreement, agreed.values);
    int code = wm_agree_hear(comm, gates, &agreed, err);
    return conclude(comm, agreement, agreed.values, code, err);
}

int
wm_agreement_make(wm_comm_t *comm, wm_agreement_t *agreement, wm_error_t *err)
{
    wm_agree_t without, *agreed = agreement->rides;
    wm_error_t later;
    size_t nbytes;
    const void *said = said_of(agreement, &nbytes);
    without.nbytes = 0;
    if (agreed == NULL)
        agreed = &without;
    fill(comm, agreement, agreed->values);
    int told = wm_agree_saying(comm, agreed, said, nbytes,
                               agreement->code < 0 ? &later : err);
    return conclude(comm, agreement, agreed->values, told, err);
}

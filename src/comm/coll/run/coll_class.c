// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/run/coll_class.h"

#include <stdlib.h>

#include "comm/coll/call/reducible.h"

typedef struct wm_coll_class {
    struct wm_coll_class *next;
    uint64_t key;
    unsigned engines; // the bit of its engine; 0: MPI
} class_t;

// Returns true if lengths vary by rank, so that each call asks.
static bool
asks_each_time(wm_coll_kind_t kind)
{
    return wm_coll_shape(kind)->varies;
}

bool
wm_coll_class_has_length(wm_comm_t *comm, const wm_coll_t *call)
{
    const wm_shape_t *shape = wm_coll_shape(call->kind);
    bool known = (!shape->reduces || wm_reducible_op(call->op) < WM_REDUCE_OPS)
                 && (!shape->uneven || comm->size <= WM_BARRIER_RANKS);
    return comm->split == 0 && known && !asks_each_time(call->kind)
           && wm_coll_engines_do(comm, call->kind) != 0;
}

// Returns the bytes of a call, which all ranks know alike.
static size_t
bytes_of(const wm_participant_t *participant)
{
    const wm_coll_t *call = participant->call;
    return wm_coll_shape(call->kind)->uneven
               ? (call->send != NULL ? call->send : call->receive)->nbytes
               : wm_participant_block(participant);
}

// Returns the class of a call; 0: MPI does it, as all ranks know.
static uint64_t
key_of(const wm_coll_op_t *op)
{
    const wm_participant_t *participant = &op->participant;
    const wm_coll_t *call = participant->call;
    uint64_t log = 0;
    if (!participant->reducible || !call->read
        || !wm_coll_class_has_length(participant->comm, call)
        || (wm_coll_shape(call->kind)->uneven && call->receives == NULL))
        return 0;
    size_t nbytes = bytes_of(participant);
    if (nbytes < WM_COLL_CLASS_BYTES)
        return 0;
    while (nbytes >> log > 1)
        ++log;
    return 1 + (uint64_t)call->kind + ((uint64_t)participant->type << 16)
           + ((uint64_t)participant->op << 32) + (log << 48);
}

bool
wm_coll_class_find(const wm_coll_op_t *op, unsigned *engines)
{
    const wm_participant_t *participant = &op->participant;
    wm_comm_t *comm = participant->comm;
    const class_t *class = comm->colls.classes;
    if (wm_coll_class_is_every(comm)) {
        *engines = class->engines;
        return true;
    }
    *engines = 0;
    if (asks_each_time(participant->call->kind))
        return op->form != WM_COLL_FORM_BLOCKING || comm->split > 0
               || wm_coll_engines_do(comm, participant->call->kind) == 0;
    uint64_t key = key_of(op);
    while (key != 0 && class != NULL && class->key != key)
        class = class->next;
    if (key != 0 && class != NULL)
        *engines = class->engines;
    return key == 0 || class != NULL;
}

bool
wm_coll_class_is_every(const wm_comm_t *comm)
{
    const class_t *class = comm->colls.classes;
    return class != NULL && class->key == WM_COLL_CLASS_EVERY;
}

int
wm_coll_class_keep(wm_comm_t *comm, uint64_t key, unsigned engines,
                   wm_error_t *err)
{
    class_t *class = malloc(sizeof *class);
    if (class == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    *class = (class_t){
        .next = comm->colls.classes,
        .key = key,
        .engines = wm_coll_engines_first(engines),
    };
    comm->colls.classes = class;
    return 0;
}

int
wm_coll_class_ask(const wm_coll_op_t *op, unsigned *engines, wm_error_t *err)
{
    wm_comm_t *comm = op->participant.comm;
    const wm_coll_t *call = op->participant.call;
    bool keeps = !asks_each_time(call->kind);
    wm_error_t why;
    if (comm->colls.opened == 0)
        comm->colls.device = wm_coll_device(call);
    int code = keeps ? wm_coll_class_keep(comm, key_of(op), 0, &why) : 0;
    class_t *class = comm->colls.classes;
    wm_preflight_t preflight = {
        .call = call->kind,
        .code = code,
        .all = op->engines,
    };
    if (code < 0)
        *err = why;
    int asked = wm_preflight_run(comm, &preflight, err);
    if (asked == 0)
        asked = wm_coll_engines_open(comm, call->kind, comm->colls.device,
                                     &preflight.all, err);
    if (asked < 0) {
        if (keeps && code == 0) { // the next call asks again
            comm->colls.classes = class->next;
            free(class);
        }
        return asked;
    }
    *engines = wm_coll_engines_first(preflight.all);
    if (keeps)
        class->engines = *engines;
    return 0;
}

void
wm_coll_class_drop(wm_comm_t *comm)
{
    for (class_t *class; (class = comm->colls.classes) != NULL;) {
        comm->colls.classes = class->next;
        free(class);
    }
}

// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/run/coll_class.h"

#include <stdlib.h>

typedef struct wm_coll_class {
    struct wm_coll_class *next;
    uint64_t key;
    unsigned engines; // the bit of its engine; 0: MPI
} class_t;

// Returns the bytes of a call that all ranks know alike; 0: they do not.
static size_t
bytes_of(const wm_participant_t *participant)
{
    const wm_coll_t *call = participant->call;
    const wm_shape_t *shape = wm_coll_shape(call->kind);
    if (shape->varies)
        return 0;
    return shape->uneven
               ? (call->send != NULL ? call->send : call->receive)->nbytes
               : wm_participant_block(participant);
}

// Returns the class of a call; 0: MPI does it, as all ranks know.
static uint64_t
key_of(const wm_coll_op_t *op)
{
    const wm_participant_t *participant = &op->participant;
    size_t nbytes = bytes_of(participant);
    uint64_t log = 0;
    bool varies = wm_coll_shape(participant->call->kind)->varies;
    if (!participant->reducible || (!varies && nbytes < WM_COLL_CLASS_BYTES))
        return 0;
    while (nbytes >> log > 1)
        ++log;
    return 1 + (uint64_t)participant->call->kind
           + ((uint64_t)participant->type << 16)
           + ((uint64_t)participant->op << 32) + (log << 48);
}

bool
wm_coll_class_find(const wm_coll_op_t *op, unsigned *engines)
{
    uint64_t key = key_of(op);
    const class_t *class = op->participant.comm->colls.classes;
    while (key != 0 && class != NULL && class->key != key)
        class = class->next;
    *engines = key != 0 && class != NULL ? class->engines : 0;
    return key == 0 || class != NULL;
}

int
wm_coll_class_ask(const wm_coll_op_t *op, unsigned *engines, wm_error_t *err)
{
    wm_comm_t *comm = op->participant.comm;
    wm_coll_kind_t kind = op->participant.call->kind;
    class_t *class = malloc(sizeof *class);
    wm_error_t why;
    int code = class != NULL ? 0
                             : wm_error_set(&why, WM_ERR_MEMORY, 0,
                                            "out of host memory");
    wm_preflight_t preflight = {
        .call = kind,
        .code = code,
        .all = op->engines,
    };
    if (code < 0)
        *err = why;
    code = wm_preflight_run(comm, &preflight, err);
    if (code == 0)
        code = wm_coll_engines_open(comm, kind, &preflight.all, err);
    if (code < 0) {
        free(class);
        return code;
    }
    *engines = wm_coll_engines_first(preflight.all);
    *class = (class_t){
        .next = comm->colls.classes,
        .key = key_of(op),
        .engines = *engines,
    };
    comm->colls.classes = class;
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

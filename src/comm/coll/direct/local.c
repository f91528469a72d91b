// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/direct/local.h"

#include "array/access.h"
#include "comm/coll/call/reducible.h"

// Returns true if both are on one GPU and do not overlap; they may be the same
// memory.
static bool
local_is_taken(const wm_buffer_t *read, const wm_buffer_t *into)
{
    return wm_buffer_on_device(read) && wm_buffer_on_device(into)
           && into->memory.device >= 0
           && read->memory.device == into->memory.device
           && read->nbytes == into->nbytes
           && (read->data == into->data
               || read->data + read->nbytes <= into->data
               || into->data + into->nbytes <= read->data);
}

int
wm_local_reduce(const wm_buffer_t *read, const wm_buffer_t *into,
                MPI_Datatype type, size_t size, MPI_Op op, wm_error_t *err)
{
    wm_reduce_type_t kind;
    wm_reduce_op_t by;
    wm_access_t from, to;
    if (!local_is_taken(read, into)
        || !wm_reducible(type, size, op, &kind, &by))
        return 1;
    int device = into->memory.device;
    const void *sources[] = {read->data, into->data};
    wm_access_begin(&from, &read->producer, false, device);
    wm_access_begin(&to, &into->producer, true, device);
    int code = wm_producer_refuse_capture(&read->producer, err);
    if (code == 0)
        code = wm_producer_refuse_capture(&into->producer, err);
    if (code == 0)
        code = wm_access_open(&to, err);
    if (code == 0)
        code = wm_access_before(&from, device, to.stream, err);
    if (code == 0)
        code = wm_reduce_launch(device, kind, by, into->data, sources, 2,
                                into->nbytes / size, to.stream, err);
    // Also after an error: nothing stays in flight.
    int ended = wm_access_synchronize(&to, code < 0 ? NULL : err);
    wm_access_close(&from);
    wm_access_close(&to);
    return code < 0 ? code : ended;
}

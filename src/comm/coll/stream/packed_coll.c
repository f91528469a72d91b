// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/stream/packed_coll.h"

#include "comm/coll/call/coll_memory.h"
#include "comm/message/pattern.h"

// Packs each rank's block, at `given` in a pattern, into `copies`, or unpacks
// it.
static int
packed_coll_move(const wm_coll_desc_t *desc, const wm_pattern_t *pattern,
                 const wm_span_t *given, char *memory, const wm_span_t *copies,
                 bool packs, wm_error_t *err)
{
    int code = 0;
    for (int rank = 0; rank < desc->comm->size && code == 0; ++rank)
        code = wm_pattern_copy_part(
            pattern, given[rank].at, memory + copies[rank].at,
            copies[rank].nbytes, packs, desc->device, desc->stream, err);
    return code;
}

int
wm_packed_coll_open(wm_coll_desc_t *desc, wm_block_t **copy, wm_error_t *err)
{
    const wm_coll_t *call = desc->call;
    bool in_place = call->send == NULL;
    size_t before = in_place ? 0 : desc->packs_nbytes;
    *copy = NULL;
    if (desc->packs == NULL && desc->unpacks == NULL)
        return 0;
    int code = wm_coll_block_take(desc->comm, desc->device,
                                  before + desc->unpacks_nbytes, copy, err);
    if (code < 0)
        return code;
    char *memory = wm_block_pointer(*copy);
    if (desc->unpacks != NULL)
        desc->target = memory + before;
    if (desc->packs == NULL)
        return 0;
    desc->source = memory;
    return packed_coll_move(desc, desc->packs,
                            in_place ? call->receives : call->sends, memory,
                            desc->out, true, err);
}

int
wm_packed_coll_unpack(const wm_coll_desc_t *desc, wm_error_t *err)
{
    return desc->unpacks == NULL
               ? 0
               : packed_coll_move(desc, desc->unpacks, desc->call->receives,
                                  desc->target, desc->into, false, err);
}

// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/packed.h"

#include "comm/message/pattern.h"

// Each rank's blocks, which the user has at `given`, out of a pattern to
// `copies`, or back.
static int
move(const wm_laid_t *laid, const wm_pattern_t *pattern,
     const wm_span_t *given, char *memory, const wm_span_t *copies, bool packs,
     wm_error_t *err)
{
    int code = 0;
    for (int rank = 0; rank < laid->comm->size && code == 0; ++rank)
        code = wm_pattern_copy_part(
            pattern, given[rank].at, memory + copies[rank].at,
            copies[rank].nbytes, packs, laid->device, laid->stream, err);
    return code;
}

int
wm_packed_open(wm_laid_t *laid, wm_block_t **copy, wm_error_t *err)
{
    const wm_coll_t *call = laid->call;
    bool in_place = call->send == NULL;
    size_t before = in_place ? 0 : laid->packs_nbytes;
    *copy = NULL;
    if (laid->packs == NULL && laid->unpacks == NULL)
        return 0;
    int code = wm_block_alloc(laid->device, before + laid->unpacks_nbytes,
                              copy, err);
    if (code < 0)
        return code;
    char *memory = wm_block_pointer(*copy);
    if (laid->unpacks != NULL)
        laid->target = memory + before;
    if (laid->packs == NULL)
        return 0;
    laid->source = memory;
    return move(laid, laid->packs, in_place ? call->receives : call->sends,
                memory, laid->out, true, err);
}

int
wm_packed_unpack(const wm_laid_t *laid, wm_error_t *err)
{
    return laid->unpacks == NULL
               ? 0
               : move(laid, laid->unpacks, laid->call->receives, laid->target,
                      laid->into, false, err);
}

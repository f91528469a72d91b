// SPDX-License-Identifier: BSD-3-Clause
#include "comm/transfer/epochs.h"

#include <stdlib.h>

#include "comm/node/segment_words.h"
#include "cuda/word.h"

#define CLEARED 0
#define TOLD 1
#define MOST_OPS 2 // of a call and a neighbour

static wm_epochs_t *list;
static _Atomic int on_streams; // of these

static int
take_words(wm_error_t *err)
{
    int index = wm_segment_words_take(WM_WORDS_OF_EPOCHS, err);
    if (index < 0)
        return index;
    wm_epoch_words_t *own = &wm_node_self()->segment->epoch_words[index];
    atomic_store(&own->post, CLEARED);
    atomic_store(&own->completion, CLEARED);
    return index;
}

int
wm_epochs_new(wm_peer_t *const *peers, int count, wm_epochs_t **made,
              wm_error_t *err)
{
    size_t each = sizeof(wm_epochs_neighbor_t);
    wm_epochs_t *epochs = calloc(1, sizeof *epochs + (size_t)count * each);
    if (epochs == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    for (; epochs->count < count; ++epochs->count) {
        wm_epochs_neighbor_t *one = &epochs->neighbors[epochs->count];
        one->index = take_words(err);
        if (one->index < 0) {
            wm_epochs_free(epochs);
            return WM_ERR_MEMORY;
        }
        one->peer = peers[epochs->count];
        one->own = &wm_node_self()->segment->epoch_words[one->index];
        one->accesses_us = one->is_accessed = true;
    }
    epochs->next = list;
    list = epochs;
    *made = epochs;
    return 0;
}

int
wm_epochs_connect(wm_epochs_t *epochs, int neighbor, int index, int device,
                  wm_error_t *err)
{
    wm_epochs_neighbor_t *one = &epochs->neighbors[neighbor];
    if (index < 0 || index >= WM_EPOCH_WORDS)
        return wm_error_set(err, WM_ERR_STATE, 0,
                            "a neighbour has given words that are none");
    int code = device < 0
                   ? 0
                   : wm_node_register(wm_node_self(), false, device, err);
    if (code == 0 && device >= 0)
        code = wm_node_register(one->peer, false, device, err);
    if (code == 0)
        one->its = &one->peer->segment->epoch_words[index];
    if (code == 0 && device >= 0 && !epochs->on_streams) {
        epochs->on_streams = true;
        atomic_fetch_add(&on_streams, 1);
    }
    return code;
}

void
wm_epochs_free(wm_epochs_t *epochs)
{
    wm_epochs_t **link = &list;
    if (epochs == NULL)
        return;
    while (*link != NULL && *link != epochs)
        link = &(*link)->next;
    if (*link != NULL)
        *link = epochs->next;
    atomic_fetch_sub(&on_streams, epochs->on_streams);
    for (int i = 0; i < epochs->count; ++i)
        wm_segment_words_give(WM_WORDS_OF_EPOCHS, epochs->neighbors[i].index);
    free(epochs);
}

// Returns the word that a call sets or awaits; NULL: the neighbour takes no
// part in the call.
static _Atomic uint32_t *
word_of(const wm_epochs_neighbor_t *one, unsigned call)
{
    switch (call) {
    case WM_EPOCHS_POST:
        return one->accesses_us ? &one->its->post : NULL;
    case WM_EPOCHS_START:
        return one->is_accessed ? &one->own->post : NULL;
    case WM_EPOCHS_COMPLETE:
        return one->is_accessed ? &one->its->completion : NULL;
    default:
        return one->accesses_us ? &one->own->completion : NULL;
    }
}

static bool
call_waits(unsigned call)
{
    return call == WM_EPOCHS_START || call == WM_EPOCHS_WAIT;
}

// Sets the word of a call for all neighbours.
static void
set_all(const wm_epochs_t *epochs, unsigned call, uint32_t value)
{
    for (int i = 0; i < epochs->count; ++i) {
        _Atomic uint32_t *word = word_of(&epochs->neighbors[i], call);
        if (word != NULL)
            atomic_store_explicit(word, value, memory_order_release);
    }
}

static bool
have_all_told(const wm_epochs_t *epochs, unsigned call)
{
    bool told = true;
    for (int i = 0; i < epochs->count && told; ++i) {
        _Atomic uint32_t *word = word_of(&epochs->neighbors[i], call);
        told = word == NULL || wm_word_reached(word, TOLD);
    }
    return told;
}

bool
wm_epochs_try(wm_epochs_t *epochs, unsigned calls)
{
    bool told = true;
    for (unsigned call = 1; call <= WM_EPOCHS_WAIT; call *= 2)
        if ((calls & call) != 0 && !call_waits(call))
            set_all(epochs, call, TOLD);
        else if ((calls & call) != 0 && !have_all_told(epochs, call))
            told = false;
    for (unsigned call = 1; call <= WM_EPOCHS_WAIT && told; call *= 2)
        if ((calls & call) != 0 && call_waits(call))
            set_all(epochs, call, CLEARED);
    return told;
}

// Adds the operations of a call and a neighbour; returns how many.
static int
add_ops(const wm_epochs_neighbor_t *one, unsigned call, wm_word_op_t *ops)
{
    _Atomic uint32_t *word = word_of(one, call);
    if (word == NULL)
        return 0;
    ops[0] = (wm_word_op_t){
        .waits = call_waits(call),
        .word = word,
        .value = TOLD,
    };
    ops[1] = (wm_word_op_t){.word = word, .value = CLEARED};
    return call_waits(call) ? 2 : 1;
}

int
wm_epochs_enqueue(const wm_epochs_t *epochs, unsigned calls, int device,
                  CUstream stream, wm_error_t *err)
{
    wm_word_op_t ops[WM_WORD_OPS];
    int count = 0, code = 0;
    for (unsigned call = 1; call <= WM_EPOCHS_WAIT; call *= 2)
        for (int i = 0; (calls & call) != 0 && i < epochs->count; ++i) {
            count += add_ops(&epochs->neighbors[i], call, ops + count);
            if (count <= WM_WORD_OPS - MOST_OPS)
                continue;
            code = code < 0 ? code
                            : wm_word_batch(device, stream, ops, count, err);
            count = 0;
        }
    return code < 0 || count == 0
               ? code
               : wm_word_batch(device, stream, ops, count, err);
}

bool
wm_epochs_any_on_streams(void)
{
    return atomic_load(&on_streams) > 0;
}

// Sets our words for a neighbour. Returns true if one was clear.
static bool
set_own(const wm_epochs_neighbor_t *one)
{
    bool clear = atomic_exchange(&one->own->post, TOLD) == CLEARED;
    return (atomic_exchange(&one->own->completion, TOLD) == CLEARED) | clear;
}

bool
wm_epochs_release(void)
{
    bool moved = false;
    for (const wm_epochs_t *epochs = list; epochs != NULL;
         epochs = epochs->next)
        for (int i = 0; i < epochs->count; ++i)
            if (epochs->neighbors[i].peer->dead
                || (epochs->revoked != NULL && *epochs->revoked))
                moved |= set_own(&epochs->neighbors[i]);
    return moved;
}

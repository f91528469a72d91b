// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/call/graph_memory.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "comm/engine/engine.h"
#include "comm/engine/modules.h"
#include "cuda/capture.h"
#include "cuda/lock.h"
#include "cuda/stream.h"
#include "cuda/word.h"

#define LOOK_US 100000

// Memory of one call of a graph.
typedef struct kept {
    struct kept *next;
    _Atomic bool ended; // the graph is gone
    wm_block_t *block;  // NULL: none
    const void *owner;  // of the marks; NULL: none
    wm_graph_marks_t marks;
    int size;
} kept_t;

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static kept_t *list;            // list_lock
static _Atomic int count;       // of the list
static _Atomic bool some_ended; // some of the list are

// Called by the driver.
static void
note_end(void *object)
{
    atomic_store(&((kept_t *)object)->ended, true);
    atomic_store(&some_ended, true);
}

// Frees what no graph needs any more.
static void
graph_memory_collect(void)
{
    kept_t *ended = NULL;
    if (!atomic_exchange(&some_ended, false))
        return;
    wm_lock(&list_lock);
    for (kept_t **at = &list; *at != NULL;) {
        kept_t *kept = *at;
        if (!atomic_load(&kept->ended)) {
            at = &kept->next;
            continue;
        }
        *at = kept->next;
        atomic_fetch_sub(&count, 1);
        kept->next = ended;
        ended = kept;
    }
    pthread_mutex_unlock(&list_lock);
    while (ended != NULL) {
        kept_t *kept = ended;
        ended = kept->next;
        if (kept->block != NULL)
            wm_block_free(kept->block, 0, NULL, NULL);
        if (kept->marks.own != NULL)
            wm_pinned_free(kept->marks.own);
        free(kept);
    }
}

static int
graph_memory_add(int device, CUstream stream, const kept_t *what,
                 wm_error_t *err)
{
    kept_t *kept = malloc(sizeof *kept);
    graph_memory_collect();
    if (kept == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    *kept = *what;
    int code = wm_capture_keep(device, stream, kept, note_end, err);
    uint64_t capture;
    if (code < 0 // nodes of the graph may use it, unless none will come
        && wm_stream_capture(device, stream, &capture, NULL) == 0)
        atomic_store(&kept->ended, false);
    wm_lock(&list_lock);
    kept->next = list;
    list = kept;
    bool first = atomic_fetch_add(&count, 1) == 0;
    if (atomic_load(&kept->ended)) // before it was in the list
        atomic_store(&some_ended, true);
    pthread_mutex_unlock(&list_lock);
    if (first)
        wm_engine_notify(); // it now looks for graphs that are gone
    return code;
}

int
wm_graph_memory_keep(int device, CUstream stream, wm_block_t *block,
                     wm_error_t *err)
{
    return graph_memory_add(device, stream, &(kept_t){.block = block}, err);
}

int
wm_graph_marks_new(const void *owner, int device, CUstream stream,
                   uint64_t mark, int size, wm_graph_marks_t *marks,
                   wm_error_t *err)
{
    size_t nbytes = (2 * (size_t)size + 1) * sizeof mark;
    void *memory;
    int code = wm_pinned_alloc(nbytes, &memory, err);
    if (code < 0)
        return code;
    uint64_t *words = memset(memory, 0, nbytes);
    words[0] = mark;
    *marks = (wm_graph_marks_t){words, words + 1, words + 1 + size};
    return graph_memory_add(
        device, stream,
        &(kept_t){.owner = owner, .marks = *marks, .size = size}, err);
}

int
wm_graph_marks_begin(const void *owner, int device, CUstream stream,
                     uint64_t number, wm_error_t *err)
{
    wm_graph_marks_t marks;
    int code = wm_graph_marks_new(owner, device, stream, number, 1, &marks,
                                  err);
    return code < 0 ? code
                    : wm_word_write(device, stream,
                                    (_Atomic uint32_t *)marks.last, 1, err);
}

bool
wm_graph_marks_any(const void *owner, uint64_t least, bool begun)
{
    wm_lock(&list_lock);
    const kept_t *kept = list;
    while (
        kept != NULL
        && (kept->owner != owner || *kept->marks.own < least
            || atomic_load(&kept->ended)
            || (begun
                && __atomic_load_n(kept->marks.last, __ATOMIC_ACQUIRE) == 0)))
        kept = kept->next;
    pthread_mutex_unlock(&list_lock);
    return kept != NULL;
}

bool
wm_graph_marks_differ(const void *owner, int *rank, uint64_t *own,
                      uint64_t *its)
{
    bool differ = false;
    wm_lock(&list_lock);
    for (const kept_t *kept = list; kept != NULL && !differ; kept = kept->next)
        for (int i = 0; kept->owner == owner && i < kept->size && !differ;
             ++i) {
            uint64_t ever = __atomic_load_n(&kept->marks.ever[i],
                                            __ATOMIC_ACQUIRE);
            *rank = i;
            *own = *kept->marks.own;
            *its = __atomic_load_n(&kept->marks.last[i], __ATOMIC_RELAXED);
            differ = (*its != 0 && *its != *own) || (ever & ~*own) != 0;
            if (*its == *own)
                *its = 0;
        }
    pthread_mutex_unlock(&list_lock);
    return differ;
}

void
wm_graph_marks_leave(const void *owner)
{
    wm_lock(&list_lock);
    for (kept_t *kept = list; kept != NULL; kept = kept->next)
        if (kept->owner == owner)
            kept->owner = NULL;
    pthread_mutex_unlock(&list_lock);
    graph_memory_collect();
}

static void
graph_memory_serve(bool waited)
{
    (void)waited;
    graph_memory_collect();
}

static int64_t
graph_memory_rest(void)
{
    return atomic_load(&count) > 0 ? LOOK_US : 0;
}

const wm_module_t wm_graph_memory_module = {
    .serve = graph_memory_serve,
    .rest = graph_memory_rest,
};

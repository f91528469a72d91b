// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/stream/graph_memory.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/capture.h"
#include "cuda/lock.h"

// Memory of one call of a graph.
typedef struct kept {
    struct kept *next;
    _Atomic bool gone; // the graph is gone
    wm_block_t *block; // NULL: none
    const void *owner; // of the marks; NULL: none
    uint64_t *words;   // page-locked: ours, and those of `size` ranks
    int size;
} kept_t;

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static kept_t *list;           // list_lock
static _Atomic bool some_gone; // some of the list are

// Called by the driver.
static void
note_gone(void *object)
{
    atomic_store(&((kept_t *)object)->gone, true);
    atomic_store(&some_gone, true);
}

// Frees what no graph needs any more.
static void
graph_memory_collect(void)
{
    kept_t *gone = NULL;
    if (!atomic_exchange(&some_gone, false))
        return;
    wm_lock(&list_lock);
    for (kept_t **at = &list; *at != NULL;) {
        kept_t *kept = *at;
        if (!atomic_load(&kept->gone)) {
            at = &kept->next;
            continue;
        }
        *at = kept->next;
        kept->next = gone;
        gone = kept;
    }
    pthread_mutex_unlock(&list_lock);
    while (gone != NULL) {
        kept_t *kept = gone;
        gone = kept->next;
        if (kept->block != NULL)
            wm_block_free(kept->block, 0, NULL, NULL);
        if (kept->words != NULL)
            wm_pinned_free(kept->words);
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
    wm_lock(&list_lock);
    int code = wm_capture_keep(device, stream, kept, note_gone, err);
    if (code < 0) // nodes of the graph may use it
        atomic_store(&kept->gone, false);
    kept->next = list;
    list = kept;
    pthread_mutex_unlock(&list_lock);
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
                   uint64_t mark, int size, uint64_t **words, wm_error_t *err)
{
    kept_t kept = {.owner = owner, .size = size};
    size_t nbytes = ((size_t)size + 1) * sizeof **words;
    void *memory;
    int code = wm_pinned_alloc(nbytes, &memory, err);
    if (code < 0)
        return code;
    kept.words = memset(memory, 0, nbytes);
    kept.words[0] = mark;
    *words = kept.words;
    return graph_memory_add(device, stream, &kept, err);
}

bool
wm_graph_marks_differ(const void *owner, int *rank, uint64_t marks[2])
{
    bool differ = false;
    wm_lock(&list_lock);
    for (const kept_t *kept = list; kept != NULL && !differ;
         kept = kept->next)
        for (int i = 0; kept->owner == owner && i < kept->size && !differ;
             ++i) {
            uint64_t its = __atomic_load_n(&kept->words[1 + i],
                                           __ATOMIC_ACQUIRE);
            differ = its != 0 && its != kept->words[0];
            *rank = i;
            marks[0] = kept->words[0];
            marks[1] = its;
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

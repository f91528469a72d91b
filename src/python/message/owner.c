// SPDX-License-Identifier: BSD-3-Clause
#include "python/message/owner.h"

#include <stdatomic.h>
#include <string.h>

#include "cuda/device.h"
#include "cuda/lock.h"
#include "python/message/elements.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static wm_owner_t *waiting;
static bool called; // a pending call of release_waiting exists

wm_owner_t *
wm_py_owner_new(void)
{
    // Not calloc(), nor malloc() and memset(), which compilers turn into
    // calloc(): it bypasses the C library's cache.
    wm_owner_t *owner = PyMem_RawMalloc(sizeof *owner);
    if (owner == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    memset(owner, 0, sizeof *owner);
    atomic_store(&owner->uses, 1);
    return owner;
}

void
wm_py_owner_retain(wm_owner_t *owner)
{
    atomic_fetch_add(&owner->uses, 1);
}

static void
release_now(wm_owner_t *owner)
{
    if (owner->viewed)
        wm_py_view_release(&owner->view);
    if (owner->raw.obj != NULL)
        PyBuffer_Release(&owner->raw);
    wm_py_elements_free(owner->pattern);
    Py_XDECREF(owner->keep);
    PyMem_RawFree(owner);
}

static int
release_waiting(void *Py_UNUSED(unused))
{
    wm_lock(&lock);
    wm_owner_t *list = waiting;
    waiting = NULL;
    called = false;
    pthread_mutex_unlock(&lock);
    // The thread may be in a capture of its own, of which the operations that
    // have ended know nothing, and a deallocator may free GPU memory.
    CUstreamCaptureMode mode = wm_device_set_mode(
        CU_STREAM_CAPTURE_MODE_RELAXED);
    while (list != NULL) {
        wm_owner_t *next = list->next;
        release_now(list);
        list = next;
    }
    wm_device_set_mode(mode);
    return 0;
}

void
wm_py_owner_release_waiting(void)
{
    if (waiting != NULL)
        release_waiting(NULL);
}

void
wm_py_owner_release(void *argument)
{
    wm_owner_t *owner = argument;
    if (!Py_IsInitialized()) // the process ends
        return;
    if (atomic_fetch_sub(&owner->uses, 1) > 1)
        return;
    if (wm_py_holds_gil()) {
        release_now(owner);
        return;
    }
    wm_lock(&lock);
    owner->next = waiting;
    waiting = owner;
    if (!called) // fails if too many wait: the next release retries
        called = Py_AddPendingCall(release_waiting, NULL) == 0;
    pthread_mutex_unlock(&lock);
}

bool
wm_py_owner_is_alone(const wm_buffer_t *buffer)
{
    return buffer->release == wm_py_owner_release
           && atomic_load(&((const wm_owner_t *)buffer->owner)->uses) == 1;
}

int
wm_py_owner_traverse(const wm_buffer_t *buffer, visitproc visit, void *arg)
{
    const wm_owner_t *owner = buffer->owner;
    if (!wm_py_owner_is_alone(buffer))
        return 0;
    if (owner->viewed)
        Py_VISIT(wm_py_view_object(owner->view.release, owner->view.owner));
    Py_VISIT(owner->raw.obj);
    Py_VISIT(owner->keep);
    return 0;
}

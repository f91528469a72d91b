// SPDX-License-Identifier: BSD-3-Clause
#include "comm/engine/progress.h"

#include <poll.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "comm/engine/links.h"

#define LOOK_US 1000 // between looks at a library without a descriptor

static wm_source_t sources[WM_LINKS_KNOWN];
static _Atomic int source_count;
// The thread waits for these descriptors; the first one is for wake-ups.
static struct pollfd waited[1 + WM_LINKS_KNOWN] = {{.fd = -1}};
static int waited_count;
static bool looks; // a library has no descriptor

void
wm_progress_add(const wm_source_t *source)
{
    int count = atomic_load(&source_count);
    if (waited[0].fd < 0)
        waited[0].fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    sources[count] = *source;
    atomic_store(&source_count, count + 1);
}

void
wm_progress_end(void)
{
    int count = atomic_exchange(&source_count, 0);
    for (int i = 0; i < count; ++i)
        if (sources[i].close != NULL)
            sources[i].close();
    if (waited[0].fd >= 0)
        close(waited[0].fd);
    waited[0].fd = -1;
}

bool
wm_progress_is_asked(void)
{
    return atomic_load_explicit(&source_count, memory_order_relaxed) > 0;
}

void
wm_progress_poll(void)
{
    int count = atomic_load(&source_count);
    for (int i = 0; i < count; ++i)
        if (sources[i].progress != NULL)
            sources[i].progress();
}

void
wm_progress_arm(void)
{
    int count = atomic_load(&source_count);
    waited_count = 1;
    looks = waited[0].fd < 0;
    for (int i = 0; i < count; ++i) {
        int fd = -1;
        if (sources[i].progress == NULL)
            continue;
        if (sources[i].idle_fd != NULL)
            fd = sources[i].idle_fd();
        looks |= fd < 0;
        if (fd >= 0)
            waited[waited_count++].fd = fd;
    }
    for (int i = 0; i < waited_count; ++i)
        waited[i].events = POLLIN;
}

void
wm_progress_sleep(int64_t us)
{
    uint64_t wakes;
    if (looks && (us == 0 || us > LOOK_US))
        us = LOOK_US;
    int limit = us == 0 ? -1 : (int)((us + 999) / 1000);
    (void)poll(waited, (nfds_t)waited_count, limit);
    (void)!read(waited[0].fd, &wakes, sizeof wakes);
}

void
wm_progress_wake(void)
{
    uint64_t one = 1;
    if (wm_progress_is_asked())
        (void)!write(waited[0].fd, &one, sizeof one);
}

// SPDX-License-Identifier: BSD-3-Clause
#define _GNU_SOURCE
#include "comm/diagnostics/fault.h"

#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cuda/lock.h"
#include "cuda/memory.h"

// The handler waits so long for the thread, in milliseconds: the fault may
// have come under a lock of the driver.
#define PATIENCE_MS 1000

enum { UNKNOWN, HOST, DEVICE };

static const char line[] =
    "warpmpi: host code has used GPU memory at its address: most probably MPI "
    "was given a GPU array by mpi4py itself. Use wm.Comm(comm), or call "
    "wm.install() before the program stores methods of mpi4py (guide, "
    "\"Errors\")\n";

static struct sigaction former;
static sem_t question;
static _Atomic uintptr_t address;
static _Atomic int answer;
static pid_t process;
static bool watching;

static void *
fault_run(void *unused)
{
    wm_pointer_t memory;
    while (sem_wait(&question) != 0 && errno == EINTR)
        ;
    bool known = wm_pointer_describe((const void *)atomic_load(&address),
                                     &memory, NULL)
                 == 0;
    atomic_store(&answer,
                 known && wm_memory_on_device(&memory) ? DEVICE : HOST);
    return unused;
}

// Calls only what handlers may call.
static void
on_fault(int number, siginfo_t *info, void *context)
{
    (void)context;
    int kept = errno;
    sigaction(number, &former, NULL);
    if (info->si_code <= 0) // by kill(): it would not come again
        raise(number);
    else if (getpid() == process) {
        atomic_store(&address, (uintptr_t)info->si_addr);
        sem_post(&question);
        for (int i = 0; i < PATIENCE_MS && atomic_load(&answer) == UNKNOWN;
             ++i)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        if (atomic_load(&answer) == DEVICE
            && write(STDERR_FILENO, line, sizeof line - 1) < 0)
            return;
    }
    errno = kept;
}

void
wm_fault_watch(void)
{
    struct sigaction own = {.sa_sigaction = on_fault,
                            .sa_flags = SA_SIGINFO | SA_ONSTACK};
    if (watching || wm_device_count() == 0 || sem_init(&question, 0, 0) != 0
        || !wm_thread_start(fault_run))
        return;
    watching = true;
    process = getpid();
    sigemptyset(&own.sa_mask);
    sigaction(SIGSEGV, &own, &former);
}

void
wm_fault_end(void)
{
    struct sigaction present;
    if (watching && sigaction(SIGSEGV, NULL, &present) == 0
        && present.sa_sigaction == on_fault)
        sigaction(SIGSEGV, &former, NULL);
}

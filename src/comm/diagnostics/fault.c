// SPDX-License-Identifier: BSD-3-Clause
#define _GNU_SOURCE
#include "comm/diagnostics/fault.h"

#include <errno.h>
#include <mpi.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "comm/engine/modules.h"
#include "cuda/driver.h"
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
static _Atomic pid_t process; // that has the thread; 0: none
static atomic_flag busy = ATOMIC_FLAG_INIT;
static _Atomic bool watching;

static void *
fault_run(void *unused)
{
    wm_pointer_t memory;
    while (sem_wait(&question) != 0 && errno == EINTR)
        ;
    bool known = wm_driver_in_process()
                 && wm_pointer_describe((const void *)atomic_load(&address),
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

// Open MPI installs its handler in MPI_Init, and only if there is none.
static bool
mpi_runs(void)
{
    int begun = 0, ended = 0;
    MPI_Initialized(&begun);
    if (begun)
        MPI_Finalized(&ended);
    return begun && !ended;
}

// Starts the thread once a process. Returns false if there is none.
static bool
fault_begin(void)
{
    if (atomic_load(&process) == 0 && sem_init(&question, 0, 0) == 0
        && wm_thread_start(fault_run, NULL, NULL))
        atomic_store(&process, getpid());
    return atomic_load(&process) == getpid();
}

void
wm_fault_watch(void)
{
    struct sigaction own = {.sa_sigaction = on_fault,
                            .sa_flags = SA_SIGINFO | SA_ONSTACK};
    if (atomic_load_explicit(&watching, memory_order_relaxed) || !mpi_runs()
        || wm_driver_is_absent() || atomic_flag_test_and_set(&busy))
        return;
    if (!atomic_load(&watching) && fault_begin()) {
        sigemptyset(&own.sa_mask);
        sigaction(SIGSEGV, &own, &former);
        atomic_store(&watching, true);
    }
    atomic_flag_clear(&busy);
}

bool
wm_fault_end(void)
{
    struct sigaction present;
    if (!atomic_load(&watching) || sigaction(SIGSEGV, NULL, &present) != 0
        || present.sa_sigaction != on_fault)
        return false;
    sigaction(SIGSEGV, &former, NULL);
    atomic_store(&watching, false);
    return true;
}

static void
fault_leave(void)
{
    (void)wm_fault_end();
}

const wm_module_t wm_fault_module = {
    .begin = wm_fault_watch,
    .end = fault_leave,
};

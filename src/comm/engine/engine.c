// SPDX-License-Identifier: BSD-3-Clause
#define _GNU_SOURCE
#include "comm/engine/engine.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "comm/engine/child.h"
#include "comm/engine/cores.h"
#include "comm/engine/handle.h"
#include "comm/engine/modules.h"
#include "comm/engine/progress.h"
#include "comm/engine/progress_mpi.h"
#include "cuda/list.h"
#include "cuda/lock.h"

// A program that was outside our code for so long computes.
#define AWAY_US 50
// If the program comes and goes for so long without a step, the progress
// thread steps.
#define IDLE_US 500
// Rounds without a call of MPI before we make one. A program that waits in our
// code must still serve its peers through MPI, as their own messages may wait
// for that.
#define ROUNDS_WITHOUT_MPI 32
// Messages begun without waiting before MPI gets a call. It has room for few
// headers on the way (Open MPI: 4 KiB), and sends the others when it is called
// again.
#define BEGUN_WITHOUT_MPI 8
// Looks in vain, in one round, at operations that wait for MPI alone. The
// other operations of that kind are left to a later round, as each look costs
// a round of MPI progress.
#define LOOKS_A_ROUND 8
// All operations are looked at once in so many rounds, plus a quarter of their
// number.
#define ROUNDS_FOR_ALL 16

// A wait that has lasted so long sleeps between its looks. Ranks of another
// container may share the cores, and are not counted. If a thread spins, Linux
// starves threads that yield as often as MPI's waits do.
#define LONG_US 10000

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic pthread_t holder; // thread that holds the lock; 0: none
static unsigned again;           // times that the holder has taken it again
static pthread_cond_t wake;      // uses the monotonic clock
static wm_op_t *first, *last;
static _Atomic int active;      // operations on the list
static _Atomic int inside;      // threads waiting in our code
static _Atomic unsigned events; // operations begun and ended so far
static _Atomic int wanted;      // threads that ask for the lock
static _Atomic bool parked;     // the thread sleeps and can be notified
static pthread_t thread;
static bool threaded;
static _Thread_local bool background; // this is the progress thread
static _Atomic bool stopping;
static _Atomic unsigned rounds; // of stepping all operations, so far
static _Atomic unsigned visits; // grows whenever the program is in our code
static _Atomic bool started, ending, finalized;
static _Atomic int sessions; // sessions of MPI that the program has begun
static bool plenty;          // two cores or more for each rank
static bool crowded;         // more ranks than cores: do not spin for long
static int finalize_key = MPI_KEYVAL_INVALID;

static void
spin_hint(void)
{
#ifdef __x86_64__
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static void
note_holder(pthread_t self)
{
    atomic_store_explicit(&holder, self, memory_order_relaxed);
}

// Takes the lock; spins first, as the lock is usually held for microseconds,
// and sleeping and waking takes longer.
static void
take_lock(void)
{
    for (int i = 0; i < 500 && !crowded; ++i) {
        if (wm_engine_try_lock())
            return;
        spin_hint();
    }
    wm_lock(&lock);
    note_holder(pthread_self());
}

static bool
is_holder(void)
{
    return atomic_load_explicit(&holder, memory_order_relaxed)
           == pthread_self();
}

void
wm_engine_lock(void)
{
    if (is_holder()) {
        ++again;
        return;
    }
    // The progress thread yields to threads counted here.
    atomic_fetch_add(&wanted, 1);
    atomic_fetch_add_explicit(&visits, 1, memory_order_relaxed);
    take_lock();
    atomic_fetch_sub(&wanted, 1);
}

bool
wm_engine_try_lock(void)
{
    bool taken = pthread_mutex_trylock(&lock) == 0;
    if (taken)
        note_holder(pthread_self());
    return taken;
}

void
wm_engine_unlock(void)
{
    if (again > 0) {
        --again;
        return;
    }
    note_holder(0);
    pthread_mutex_unlock(&lock);
}

int64_t
wm_engine_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * (int64_t)1000000 + time.tv_nsec / 1000;
}

static void
sleep_us(int64_t us)
{
    struct timespec time = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&time, NULL);
}

void
wm_engine_remove_lock_held(wm_op_t *op)
{
    WM_LIST_REMOVE(first, last, op);
    atomic_fetch_sub(&active, 1);
    atomic_fetch_add(&events, 1);
    wm_op_finish(op);
}

static wm_asks_t
asks_mpi(const wm_op_t *op)
{
    return op->kind->asks != NULL ? op->kind->asks(op) : WM_ASKS_NOTHING;
}

// Returns true if `op` is `other`, or a part of it.
static bool
is_part_of(const wm_op_t *op, const wm_op_t *other)
{
    return other != NULL
           && (op == other || op == other->parts_of[0]
               || op == other->parts_of[1]);
}

// Steps the operations, always including `wanted`. Returns the list of those
// to be released, which the caller does without the lock. If many wait for
// MPI, only the first are looked at, which usually end first; rarely, all are.
static wm_op_t *
step_lock_held(const wm_op_t *wanted, bool all)
{
    // Rounds since a call of MPI, and since all operations were looked at.
    static unsigned without_mpi, without_all;
    wm_op_t *finished = NULL;
    bool asked = false;
    int looks = 0;
    if (++without_all > ROUNDS_FOR_ALL + (unsigned)atomic_load(&active) / 4)
        all = true;
    without_all = all ? 0 : without_all;
    atomic_fetch_add_explicit(&rounds, 1, memory_order_relaxed);
    if (wm_progress_is_asked())
        wm_progress_poll();
    wm_modules_round(); // first, as an operation may end in its step
    for (wm_op_t *op = first, *next; op != NULL; op = next) {
        next = op->next;
        wm_asks_t asks = asks_mpi(op);
        bool alone = asks == WM_ASKS_ALONE;
        if (alone && looks >= LOOKS_A_ROUND && !all && !is_part_of(op, wanted))
            continue;
        asked |= asks != WM_ASKS_NOTHING;
        if (op->kind->step(op)) {
            wm_engine_remove_lock_held(op);
            op->finished = finished;
            finished = op;
        }
        else
            looks += alone;
    }
    wm_modules_round();
    without_mpi = asked ? 0 : without_mpi + 1;
    if (without_mpi == ROUNDS_WITHOUT_MPI) {
        without_mpi = 0;
        wm_progress_mpi();
    }
    return finished;
}

static void
release_all(wm_op_t *op)
{
    while (op != NULL) {
        wm_op_t *next = op->finished;
        wm_op_release(op);
        op = next;
    }
}

static void
poll_for(const wm_op_t *wanted, bool all)
{
    wm_op_t *finished = NULL;
    if (wm_is_child() || !wm_engine_try_lock())
        return;
    if (!atomic_load_explicit(&finalized, memory_order_relaxed))
        finished = step_lock_held(wanted, all);
    wm_engine_unlock();
    release_all(finished);
}

void
wm_engine_poll(void)
{
    poll_for(NULL, background);
}

void
wm_engine_look(const wm_op_t *op)
{
    poll_for(op, op == NULL);
}

void
wm_engine_step(void)
{
    wm_engine_lock();
    wm_op_t *finished = step_lock_held(NULL, true);
    wm_engine_unlock();
    release_all(finished);
}

wm_op_t *
wm_engine_first(void)
{
    return first;
}

bool
wm_engine_is_threaded(void)
{
    return threaded;
}

bool
wm_engine_is_entered(void)
{
    return atomic_load(&inside) != 0;
}

bool
wm_engine_is_idle(void)
{
    return atomic_load(&inside) == 0
           && (!threaded || atomic_load(&active) == 0);
}

// Does not return on a thread that outlives the program, in or after
// MPI_Finalize: there is no caller to return to.
static void
stay_if_alone(void)
{
    while (atomic_load(&ending) && !wm_holder_is_alive())
        sleep_us(1000000);
}

void
wm_engine_turn(unsigned turn)
{
    static _Thread_local int64_t began;
    atomic_fetch_add(&inside, 1);
    wm_engine_poll();
    if (crowded || turn % 32 == 0)
        sched_yield();
    if (turn <= 1)
        began = wm_engine_now();
    if (crowded ? turn > 50
                : turn % 32 == 0 && wm_engine_now() - began > LONG_US)
        sleep_us(crowded ? 50 : 20);
    wm_engine_visit();
    atomic_fetch_sub(&inside, 1);
    stay_if_alone();
}

void
wm_engine_add_lock_held(wm_op_t *op)
{
    wm_op_retain(op);
    WM_LIST_APPEND(first, last, op);
    atomic_fetch_add(&active, 1);
    atomic_fetch_add(&events, 1);
}

void
wm_engine_add(wm_op_t *op)
{
    wm_engine_lock();
    wm_engine_add_lock_held(op);
    wm_engine_unlock();
}

void
wm_engine_begun_lock_held(void)
{
    static unsigned begun;
    if (++begun % BEGUN_WITHOUT_MPI == 0)
        wm_progress_mpi();
}

void
wm_engine_peer_died(const wm_peer_t *peer)
{
    for (wm_op_t *op = first; op != NULL; op = op->next)
        if (op->kind->peer_died != NULL)
            op->kind->peer_died(op, peer);
}

int
wm_engine_active(void)
{
    return atomic_load(&active);
}

bool
wm_engine_is_background(void)
{
    return background;
}

bool
wm_engine_may_wait(void)
{
    return !background && !is_holder();
}

void
wm_engine_visit(void)
{
    atomic_fetch_add_explicit(&visits, 1, memory_order_relaxed);
}

void
wm_engine_notify(void)
{
    wm_engine_visit();
    if (atomic_load(&parked)) {
        pthread_cond_signal(&wake);
        wm_progress_wake();
    }
}

bool
wm_engine_wait(const _Atomic int *flag, wm_op_t *op, wm_watcher_t *watcher,
               bool (*interrupted)(wm_op_t *op))
{
    bool leave = false;
    int64_t asked = 0, began = 0;
    atomic_fetch_add(&inside, 1);
    for (unsigned turn = 1; !atomic_load(flag); ++turn) {
        poll_for(op, false);
        if (!crowded && turn % 32 != 0)
            continue;
        int64_t now = wm_engine_now();
        if (began == 0)
            watcher->begin(watcher, began = asked = now);
        if ((leave = atomic_load(&finalized)))
            break;
        if (!atomic_load(&ending))
            watcher->look(watcher, op, now);
        if (!threaded)
            WM_EACH_MODULE(serve, true);
        if (now - began > (crowded ? 20 : plenty ? 1000 : 200))
            sched_yield();
        if (now - began > (crowded ? 500 : LONG_US))
            sleep_us(crowded ? 50 : 20);
        if (interrupted != NULL && now - asked > 50000) {
            asked = now;
            // The call waits for the GIL; the progress thread serves
            // meanwhile.
            atomic_fetch_sub(&inside, 1);
            wm_engine_notify();
            leave = interrupted(op);
            atomic_fetch_add(&inside, 1);
            if (leave)
                break;
        }
    }
    wm_engine_visit();
    atomic_fetch_sub(&inside, 1);
    stay_if_alone();
    return !leave;
}

// Sleeps until an operation begins, until the time of the next look, or until
// a link has work.
static void
park(void)
{
    wm_lock(&lock);
    atomic_store(&parked, true);
    int64_t rest = wm_modules_rest(), until = wm_engine_now() + rest;
    struct timespec time = {until / 1000000, until % 1000000 * 1000};
    bool idle = !atomic_load(&stopping) && atomic_load(&active) == 0;
    bool links = idle && wm_progress_is_asked();
    if (links)
        wm_progress_arm();
    else if (idle && rest > 0)
        pthread_cond_timedwait(&wake, &lock, &time);
    else if (idle)
        pthread_cond_wait(&wake, &lock);
    if (!links)
        atomic_store(&parked, false);
    pthread_mutex_unlock(&lock);
    if (links) {
        wm_progress_sleep(rest);
        atomic_store(&parked, false);
    }
}

// Returns the microseconds until the thread looks again, if no operation has
// begun or ended for `quiet`; 0: at once.
static int64_t
pause_after(int64_t quiet)
{
    if (quiet < (plenty ? 500 : 0))
        return 0;
    if (quiet < 20000)
        return plenty ? 10 : 50;
    return quiet < 200000 ? 100 : 500;
}

// The progress thread. It serves while no thread is in our code: it spins for
// a moment after an operation began or ended, then looks at growing intervals,
// and parks when there is nothing to do. It does not step if the program was
// in our code a moment ago: the program would come back and find the lock, and
// that of the driver, taken. It sleeps and is not woken, as a wake costs the
// program more than a message takes.
static void *
engine_serve(void *unused)
{
    (void)unused;
    background = true;
    // mpirun usually binds a rank to one core, where this thread and the
    // program would take turns. So the thread may run on any core.
    cpu_set_t everywhere;
    memset(&everywhere, 0xff, sizeof everywhere);
    (void)sched_setaffinity(0, sizeof everywhere, &everywhere);
    prctl(PR_SET_TIMERSLACK, 1000);
    unsigned seen = 0, visited = 0, stepped = 0;
    int64_t quiet_since = wm_engine_now(), left = quiet_since,
            idle = quiet_since;
    while (!atomic_load(&stopping)) {
        unsigned current = atomic_load(&events);
        unsigned visit = atomic_load(&visits);
        int64_t now = wm_engine_now();
        if (current != seen)
            quiet_since = now;
        if (visit != visited || atomic_load(&inside) > 0)
            left = now;
        if (atomic_load(&rounds) != stepped)
            idle = now;
        stepped = atomic_load(&rounds);
        seen = current;
        visited = visit;
        WM_EACH_MODULE(serve, atomic_load(&inside) > 0);
        int64_t quiet = now - quiet_since;
        if (atomic_load(&active) == 0) {
            if (wm_progress_is_asked() && atomic_load(&wanted) == 0)
                wm_engine_poll();
            if (quiet > 5000)
                park();
            else
                sleep_us(plenty ? 20 : 100);
            continue;
        }
        if (now - left < AWAY_US && now - idle < IDLE_US) {
            sleep_us(AWAY_US);
            continue;
        }
        int64_t pause = pause_after(quiet);
        if (pause > 0)
            sleep_us(pause);
        if (atomic_load(&inside) == 0 && atomic_load(&wanted) == 0)
            wm_engine_poll();
    }
    return NULL;
}

// MPI calls this function first in MPI_Finalize.
static int
finalize(MPI_Comm comm, int key, void *value, void *extra)
{
    (void)comm, (void)key, (void)value, (void)extra;
    if (wm_is_child())
        wm_child_refuse_end();
    void *held = wm_gil_release(); // the thread may need it to end
    atomic_store(&ending, true);
    if (threaded) {
        wm_lock(&lock);
        atomic_store(&stopping, true);
        pthread_cond_signal(&wake);
        wm_progress_wake();
        pthread_mutex_unlock(&lock);
        pthread_join(thread, NULL);
    }
    wm_handle_stop_thread(); // without the lock, as the thread takes it
    WM_EACH_MODULE(end);
    wm_engine_lock();
    wm_handle_end_all_lock_held();
    wm_progress_end();
    wm_progress_mpi_end();
    atomic_store(&finalized, true); // no thread steps any operation after this
    wm_engine_unlock();
    wm_gil_retake(held);
    return MPI_SUCCESS;
}

void
wm_engine_count_session(int change)
{
    atomic_fetch_add(&sessions, change);
}

int
wm_engine_check_world(wm_error_t *err)
{
    int flag = 0;
    if (wm_engine_check(err) < 0)
        return WM_ERR_STATE;
    MPI_Initialized(&flag);
    return flag ? 0
                : wm_error_set(
                    err, WM_ERR_STATE, 0,
                    "MPI has sessions, but MPI.Init() was not called: call "
                    "MPI.Init() as well, before the communicator is made; "
                    "sessions can still be used");
}

int
wm_engine_check(wm_error_t *err)
{
    if (wm_child_refuse(err) < 0)
        return WM_ERR_STATE;
    if (atomic_load(&started) && !atomic_load(&finalized))
        return 0;
    int flag = 0;
    MPI_Initialized(&flag);
    if (!flag && atomic_load(&sessions) > 0)
        return 0;
    if (!flag)
        return wm_error_set(err, WM_ERR_STATE, 0,
                            "MPI is not initialized: import mpi4py.MPI, or "
                            "call MPI.Init(), before using warpmpi's "
                            "communicators");
    MPI_Finalized(&flag);
    if (flag || atomic_load(&finalized))
        return wm_error_set(err, WM_ERR_STATE, 0,
                            "MPI is finalized: communicators cannot be used "
                            "any more");
    return 0;
}

static void
start_thread(void)
{
    int level = MPI_THREAD_SINGLE;
    MPI_Query_thread(&level);
    if (level < MPI_THREAD_MULTIPLE)
        return;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    threaded = wm_thread_start(engine_serve, NULL, &thread);
    if (threaded)
        pthread_setname_np(thread, "warpmpi");
}

int
wm_engine_start(wm_error_t *err)
{
    if (wm_engine_check_world(err) < 0)
        return WM_ERR_STATE;
    if (atomic_load(&started))
        return 0;
    wm_lock(&lock);
    if (!atomic_load(&started)) {
        MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, finalize, &finalize_key,
                               NULL);
        MPI_Comm_set_attr(MPI_COMM_SELF, finalize_key, NULL);
        wm_progress_mpi_begin();
        wm_modules_begin();
        start_thread();
        atomic_store(&started, true);
    }
    pthread_mutex_unlock(&lock);
    return 0;
}

bool
wm_engine_is_started(void)
{
    return atomic_load(&started);
}

void
wm_engine_count_cores(int ranks, int beside)
{
    // Counts online cores, not the affinity: mpirun may bind each rank to a
    // core of its own, which is enough.
    static int counted, counted_beside;
    if (ranks != counted || beside != counted_beside) {
        long online = sysconf(_SC_NPROCESSORS_ONLN); // this reads a file
        int allowed = wm_cores_allowed("/sys/fs/cgroup");
        bool tight = allowed > 0 && allowed < beside;
        plenty = online >= 2 * ranks
                 && (allowed == 0 || allowed >= 2 * beside);
        crowded = online < ranks || tight;
        counted = ranks;
        counted_beside = beside;
    }
}

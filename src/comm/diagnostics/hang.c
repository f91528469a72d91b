// SPDX-License-Identifier: BSD-3-Clause
#define _GNU_SOURCE
#include "comm/diagnostics/hang.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/engine/engine.h"
#include "comm/engine/modules.h"
#include "comm/message/unexpected.h"
#include "comm/diagnostics/cause.h"
#include "comm/diagnostics/report.h"
#include "comm/diagnostics/watchdog.h"
#include "cuda/settings.h"

#define SECONDS_INSIDE 60
// Time for peers to answer: at most, and after the signal.
#define ANSWER_US 1000000
#define ANSWER_NOW_US 200000
#define LISTED 4 // messages, operations in a report

enum {
    WAITING,  // first half of the time; then progress is noted
    NOTED,    // second half; then peers are asked
    ASKED,    // a moment for their answers
    SIGNALED, // likewise; reported even if there is progress
    REPORTED, // reported once
};

_Thread_local wm_waiting_call_t wm_waiting_call;

void
wm_hang_call(const char *name, bool collective)
{
    wm_waiting_call = (wm_waiting_call_t){
        .name = name, .type = MPI_DATATYPE_NULL, .collective = collective};
}

static int64_t limit;
static int64_t limit_inside = (int64_t)SECONDS_INSIDE * 1000000;
static bool configured;
static _Atomic unsigned signals;
static pid_t process;
static char who[80];
static char idle_line[sizeof who + 64];

// The handler only writes, counts and wakes, which handlers may do.
static void
on_signal(int number)
{
    if (getpid() != process) { // a child ends as it would without us
        signal(number, SIG_DFL);
        raise(number);
        return;
    }
    int kept = errno;
    bool idle = wm_engine_is_idle(), asked = wm_watchdog_ask(idle);
    if (!asked && idle)
        (void)!write(STDERR_FILENO, idle_line, strlen(idle_line));
    else if (!asked)
        atomic_fetch_add(&signals, 1);
    errno = kept;
}

// Installs the handler only if the signal would end the process: a handler of
// the program stays, also one that is set later.
static void
install_handler(void)
{
    struct sigaction old,
        own = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    if (sigaction(SIGUSR1, NULL, &old) != 0 || old.sa_handler != SIG_DFL)
        return;
    process = getpid();
    snprintf(idle_line, sizeof idle_line,
             "warpmpi: %s is in no blocking call of warpmpi\n", who);
    sigemptyset(&own.sa_mask);
    sigaction(SIGUSR1, &own, NULL);
}

int
wm_hang_configure(wm_error_t *err)
{
    double seconds;
    int code = wm_setting_seconds(WM_SETTING_HANG_SECONDS, &seconds, err);
    limit = seconds < 1e9 ? (int64_t)(seconds * 1e6) : 0;
    if (code < 0)
        return code;
    if (wm_setting_text(WM_SETTING_HANG_SECONDS) != NULL)
        limit_inside = limit;
    if (!configured) {
        int rank = 0, size = 0;
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        MPI_Comm_size(MPI_COMM_WORLD, &size);
        snprintf(who, sizeof who, "rank %d of MPI_COMM_WORLD (size %d)", rank,
                 size);
        if (limit > 0)
            install_handler();
    }
    configured = true;
    return 0;
}

int64_t
wm_hang_limit(void)
{
    return limit;
}

int64_t
wm_hang_limit_inside(void)
{
    return limit_inside;
}

const char *
wm_hang_who(void)
{
    return who;
}

static uint64_t
mark_lock_not_held(const wm_op_t *op)
{
    wm_about_t about = {0};
    wm_engine_lock();
    if (!wm_op_has_left(op))
        about = wm_op_about(op);
    wm_engine_unlock();
    return about.mark;
}

void
wm_hang_begin(wm_watcher_t *watcher, int64_t now)
{
    wm_hang_t *hang = (wm_hang_t *)watcher;
    *hang = (wm_hang_t){
        .watcher = *watcher,
        .call = wm_waiting_call,
        .began = now,
        .due = limit > 0 ? now + limit / 2 : INT64_MAX,
        .phase = WAITING,
        .signalled = atomic_load_explicit(&signals, memory_order_relaxed),
        .answered = wm_cause_asked(),
    };
    if (hang->call.name == NULL)
        hang->call.name = "a call";
}

static void
ask_and_wait(wm_hang_t *hang, const wm_op_t *op, int64_t now, int phase,
             int64_t pause)
{
    wm_cause_ask(op);
    hang->asked = now;
    hang->phase = phase;
    hang->due = now + pause;
}

// Begins the next phase.
static void
go_on(wm_hang_t *hang, const wm_op_t *op, int64_t now)
{
    int64_t pause = limit / 2 < ANSWER_US ? limit / 2 : ANSWER_US;
    uint64_t mark = mark_lock_not_held(op);
    bool moved = hang->phase == WAITING || mark != hang->mark;
    hang->mark = mark;
    if (hang->phase == SIGNALED || (hang->phase == ASKED && !moved)) {
        wm_cause_report(hang, op, now);
        hang->phase = REPORTED;
        hang->due = now + WM_REPORT_AGAIN_US;
    }
    else if (moved) {
        hang->due = now - pause + (hang->phase == WAITING ? limit / 2 : limit);
        hang->phase = NOTED;
    }
    else
        ask_and_wait(hang, op, now, ASKED, pause);
}

void
wm_hang_look(wm_watcher_t *watcher, const wm_op_t *op, int64_t now)
{
    wm_hang_t *hang = (wm_hang_t *)watcher;
    uint32_t asked = wm_cause_asked();
    unsigned signalled = atomic_load_explicit(&signals, memory_order_relaxed);
    if (asked != hang->answered) {
        hang->answered = asked;
        wm_cause_answer(hang, op, now);
    }
    if (signalled != hang->signalled) {
        hang->signalled = signalled;
        ask_and_wait(hang, op, now, SIGNALED, ANSWER_NOW_US);
    }
    if (now >= hang->due)
        go_on(hang, op, now);
}

// Reports all operations under way, if no thread waits.
static void
report_pending(void)
{
    wm_words_t words = {.length = 0};
    int count = 0, more = 0;
    wm_engine_lock();
    for (wm_comm_t *comm = wm_comm_all(); comm != NULL; comm = comm->next)
        if (comm->next == NULL) // the first that was made
            wm_report_rank(&words, comm);
    wm_words_add(&words, "%s is in no blocking call of warpmpi; under way: ",
                 words.length > 0 ? "" : "this rank");
    for (wm_op_t *op = wm_engine_first(); op != NULL; op = op->next) {
        if (op->parts_of[0] != NULL)
            continue; // its message is reported
        if (count == LISTED) {
            ++more;
            continue;
        }
        wm_words_add(&words, "%s", count++ > 0 ? ", " : "");
        wm_report_op(&words, op);
    }
    if (more > 0)
        wm_words_add(&words, " and %d more", more);
    for (wm_comm_t *comm = wm_comm_all(); comm != NULL; comm = comm->next) {
        wm_result_t list[LISTED];
        int come = wm_unexpected_list(comm, list, LISTED);
        if (come == 0)
            continue;
        wm_words_add(&words, "; messages have come on ");
        wm_report_comm(&words, comm->user);
        wm_words_add(&words, " and were not received: ");
        wm_report_messages(&words, list, come, LISTED);
    }
    wm_engine_unlock();
    wm_words_print(&words);
}

static void
hang_serve(bool waited)
{
    static unsigned heeded;
    unsigned current = atomic_load_explicit(&signals, memory_order_relaxed);
    if (current == heeded)
        return;
    heeded = current;
    if (!waited)
        report_pending();
}

static _Thread_local int watched; // number of the watched call; 0: none

static void
hang_wait_begin(MPI_Comm user)
{
    wm_engine_lock();
    // Configure() reports an error to all ranks.
    (void)!wm_hang_configure(NULL);
    wm_engine_unlock();
    watched = wm_watchdog_begin(user, limit, "wm.Comm",
                                "do all ranks make this wm.Comm?");
}

static void
hang_wait_end(void)
{
    wm_watchdog_end(watched);
}

const wm_module_t wm_hang_module = {
    .configure = wm_hang_configure,
    .wait_begin = hang_wait_begin,
    .wait_end = hang_wait_end,
    .serve = hang_serve,
};

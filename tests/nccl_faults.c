// SPDX-License-Identifier: BSD-3-Clause
// A libnccl.so.2 that stands before the real one, of which NCCL_FAULTS_PATH
// is the path: it counts the calls of the functions that we use, and passes
// them on. Its own functions are those of tests/simnccl:
//     simnccl_fail(name, n, code): in the n-th call from now, "*" of any
//         function, the process dies (137), or the call returns that code
//     simnccl_live("communicators"): those made, and not destroyed or aborted
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/coll/nccl/nccl_library.h"

#ifndef __x86_64__
#error "the trampolines below are x86-64's"
#endif

#define KILLED 137
#define INTERNAL 3 // unless a code is told

typedef struct {
    const char *title;
    void *next;
    atomic_long left; // calls until one fails, if not 0
    int code;
} function_t;

#define X(name, result, arguments)                                            \
    static function_t function_##name __attribute__((used)) = {.title = #name};
WM_NCCL_FUNCTIONS(X)
#undef X

static function_t *const functions[] = {
#define X(name, result, arguments) &function_##name,
    WM_NCCL_FUNCTIONS(X)
#undef X
};

static function_t any = {.title = "*"};

#define COUNT (sizeof functions / sizeof *functions)

static _Thread_local int refused;
static atomic_long live; // communicators whose end has not returned
static wm_nccl_functions_t real;

static int
refuse(void)
{
    return refused;
}

static wm_nccl_result_t
made(wm_nccl_result_t result)
{
    if (result == WM_NCCL_SUCCESS || result == WM_NCCL_IN_PROGRESS)
        atomic_fetch_add(&live, 1);
    return result;
}

static wm_nccl_result_t
init(wm_nccl_handle_t **comm, int ranks, wm_nccl_id_t id, int rank,
     wm_nccl_config_t *config)
{
    return made(real.CommInitRankConfig(comm, ranks, id, rank, config));
}

static wm_nccl_result_t
split(wm_nccl_handle_t *comm, int color, int key, wm_nccl_handle_t **child,
      wm_nccl_config_t *config)
{
    return made(real.CommSplit(comm, color, key, child, config));
}

static wm_nccl_result_t
destroy(wm_nccl_handle_t *comm)
{
    wm_nccl_result_t result = real.CommDestroy(comm);
    atomic_fetch_sub(&live, 1);
    return result;
}

static wm_nccl_result_t
stop(wm_nccl_handle_t *comm)
{
    wm_nccl_result_t result = real.CommAbort(comm);
    atomic_fetch_sub(&live, 1);
    return result;
}

__attribute__((constructor)) static void
find(void)
{
    const char *path = getenv("NCCL_FAULTS_PATH");
    void *library = path != NULL ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (library == NULL) {
        fprintf(stderr, "NCCL_FAULTS_PATH: %s\n", path ? dlerror() : "unset");
        abort();
    }
#define X(name, result, arguments)                                            \
    function_##name.next = dlsym(library, "nccl" #name);                      \
    memcpy(&real.name, &function_##name.next, sizeof real.name);
    WM_NCCL_FUNCTIONS(X)
#undef X
    function_CommInitRankConfig.next = (void *)init;
    function_CommSplit.next = (void *)split;
    function_CommDestroy.next = (void *)destroy;
    function_CommAbort.next = (void *)stop;
}

// Returns where the call goes.
static void *__attribute__((used)) enter(function_t *function)
{
    function_t *fails = atomic_load(&any.left) != 0 ? &any : function;
    if (atomic_load(&fails->left) == 0
        || atomic_fetch_sub(&fails->left, 1) > 1)
        return function->next;
    if (fails->code == KILLED)
        kill(getpid(), SIGKILL);
    refused = fails->code != 0 ? fails->code : INTERNAL;
    return (void *)refuse;
}

// All registers of arguments are kept, and the stack is as it was.
#define X(name, result, arguments)                                            \
    __asm__(".globl nccl" #name "\n.type nccl" #name ", @function\n"          \
            "nccl" #name ":\n"                                                \
            "push %rax\npush %rdi\npush %rsi\npush %rdx\npush %rcx\n"         \
            "push %r8\npush %r9\n"                                            \
            "lea function_" #name "(%rip), %rdi\ncall enter\n"                \
            "mov %rax, %r11\n"                                                \
            "pop %r9\npop %r8\npop %rcx\npop %rdx\npop %rsi\npop %rdi\n"      \
            "pop %rax\njmp *%r11\n");
WM_NCCL_FUNCTIONS(X)
#undef X

void
simnccl_fail(const char *name, long n, int code)
{
    function_t *fails = &any;
    for (size_t i = 0; i < COUNT; ++i)
        if (strcmp(functions[i]->title, name) == 0)
            fails = functions[i];
    if (strcmp(fails->title, name) != 0)
        abort(); // there is no such function
    fails->code = code;
    atomic_store(&fails->left, n);
}

long
simnccl_live(const char *what)
{
    if (strcmp(what, "communicators") != 0)
        return -1;
    return atomic_load(&live);
}

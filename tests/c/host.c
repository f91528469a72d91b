// SPDX-License-Identifier: BSD-3-Clause
// The identity of the host is found out once: what a process tells of itself,
// and what it compares its peers with, stay the same. Processes of two PID
// namespaces are on one machine, and on two hosts.
#define _GNU_SOURCE
#include <assert.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/node/node.h"

// What node.c needs of the rest.
int
wm_error_set(wm_error_t *err, int code, int detail, const char *format, ...)
{
    (void)err, (void)detail, (void)format;
    return code;
}

int
wm_error_context(wm_error_t *err, const char *format, ...)
{
    (void)err, (void)format;
    return WM_ERR_CUDA;
}

int
wm_host_register(int device, void *ptr, size_t size, wm_error_t *err)
{
    (void)device, (void)ptr, (void)size, (void)err;
    return WM_ERR_CUDA;
}

void
wm_engine_lock(void)
{
}

void
wm_engine_unlock(void)
{
}

// Returns what a process tells of its host, in a PID namespace of its own if
// `apart`; ends the program where no such namespace can be made.
static wm_endpoint_t
told_by_child(bool apart)
{
    wm_endpoint_t told;
    int ends[2];
    assert(pipe(ends) == 0);
    pid_t outer = fork();
    if (outer == 0) {
        int how = CLONE_NEWPID | (geteuid() != 0 ? CLONE_NEWUSER : 0);
        if (apart && unshare(how) < 0)
            _exit(77);
        pid_t inner = fork();
        if (inner == 0) {
            wm_node_describe(&told);
            _exit(write(ends[1], &told, sizeof told) != sizeof told);
        }
        int status = 1;
        waitpid(inner, &status, 0);
        _exit(status != 0);
    }
    int status = 0;
    assert(waitpid(outer, &status, 0) == outer);
    if (WEXITSTATUS(status) == 77) {
        puts("no PID namespaces here");
        exit(0);
    }
    assert(status == 0 && read(ends[0], &told, sizeof told) == sizeof told);
    close(ends[0]);
    close(ends[1]);
    return told;
}

static void
of_two_namespaces(void)
{
    unsetenv("WARPMPI_HOST");
    wm_endpoint_t here = told_by_child(false), beside = told_by_child(false);
    assert(memcmp(here.host, beside.host, WM_HOST_BYTES) == 0);
    wm_endpoint_t apart = told_by_child(true);
    assert(memcmp(here.host, apart.host, WM_MACHINE_BYTES) == 0);
    assert(memcmp(here.host, apart.host, WM_HOST_BYTES) != 0);
}

int
main(void)
{
    wm_endpoint_t first, second, neighbour, stranger, container;
    of_two_namespaces(); // in children: this process is asked later
    setenv("WARPMPI_HOST", "here", 1);
    wm_node_describe(&first);
    setenv("WARPMPI_HOST", "there", 1);
    wm_node_describe(&second);
    assert(!first.failed && memcmp(&first, &second, sizeof first) == 0);
    neighbour = stranger = container = first;
    neighbour.id[0] ^= 1;
    stranger.id[0] ^= 2;
    stranger.host[0] ^= 1;
    container.id[0] ^= 4;
    container.host[WM_MACHINE_BYTES] ^= 1;
    assert(wm_node_peer(&neighbour)->same_host);
    assert(!wm_node_peer(&stranger)->same_host);
    assert(!wm_node_peer(&container)->same_host);
    assert(wm_node_machine_peers() == 3); // all but the stranger
    assert(wm_node_host_peers() == 2);
    assert(wm_node_peer(&first)->self);
    return 0;
}

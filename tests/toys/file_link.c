// SPDX-License-Identifier: BSD-3-Clause
// A link over files, for tests: the address is a folder of the receiver, into
// which the sender writes each chunk as a file. WARPMPI_TRANSPORT=file chooses
// it in a build with WARPMPI_TOYS=1. Engine lock held.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "comm/link/link.h"

#define ROOM 256

// A folder into which we write, of a peer that is connected.
typedef struct folder {
    struct folder *next;
    const wm_peer_t *peer;
    char path[ROOM];
} folder_t;

// A chunk that we receive: a file of this name in our folder.
typedef struct posted {
    struct posted *next;
    const wm_peer_t *peer;
    char name[ROOM];
    char *memory;
    size_t room, nbytes;
    int code; // 1: it has come; below 0: it never will
} posted_t;

static char own[ROOM];
static int notices = -1; // readable after a file has come
static folder_t *folders;
static posted_t *posted;
static bool look;  // a receive was posted, whose file may be there
static char ended; // what the flight of a chunk that has ended names

static int
file_open(bool asked, wm_error_t *err)
{
    const char *under = getenv("TMPDIR");
    if (!asked || getenv("TOY_LINK_CLOSED") != NULL)
        return 1;
    if (notices >= 0)
        return 0;
    snprintf(own, sizeof own, "%s/warpmpi-link-XXXXXX",
             under != NULL ? under : "/tmp");
    if (mkdtemp(own) == NULL
        || (notices = inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) < 0
        || inotify_add_watch(notices, own, IN_MOVED_TO) < 0)
        return wm_error_set(err, WM_ERR_SYSTEM, errno, "%s: %s", own,
                            strerror(errno));
    return 0;
}

static size_t
file_address(void *into, size_t room)
{
    size_t nbytes = notices >= 0 ? strlen(own) + 1 : 0;
    if (nbytes <= room && nbytes > 0)
        memcpy(into, own, nbytes);
    return nbytes;
}

static folder_t **
find(const wm_peer_t *peer)
{
    folder_t **at = &folders;
    while (*at != NULL && (*at)->peer != peer)
        at = &(*at)->next;
    return at;
}

static int
file_connect(wm_peer_t *peer, const void *address, size_t nbytes,
             wm_error_t *err)
{
    const char *path = address;
    if (getenv("TOY_LINK_REFUSES") != NULL || nbytes == 0 || nbytes > ROOM
        || path[nbytes - 1] != '\0' || access(path, W_OK | X_OK) < 0)
        return wm_error_set(err, WM_ERR_SYSTEM, errno,
                            "the peer's folder cannot be written");
    folder_t *folder = calloc(1, sizeof *folder);
    if (folder == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    folder->peer = peer;
    memcpy(folder->path, path, nbytes);
    *find(peer) = folder;
    return 0;
}

static void
file_disconnect(wm_peer_t *peer)
{
    folder_t **at = find(peer), *folder = *at;
    *at = folder->next;
    free(folder);
}

// A test asks if the link is told.
static void
file_forget_memory(uint64_t buffer_id)
{
    char path[2 * ROOM];
    if (notices < 0)
        return;
    snprintf(path, sizeof path, "%s/freed-%llu", own,
             (unsigned long long)buffer_id);
    FILE *file = fopen(path, "we");
    if (file != NULL)
        fclose(file);
}

static bool
file_reach(const wm_peer_t *peer, const wm_pointer_t *into,
           const char **reason)
{
    (void)into;
    *reason = peer->refused[WM_LINK_file];
    return *find(peer) != NULL;
}

// Writes the name of a chunk's file, which `folder`, the sender's, makes its
// own.
static void
name_chunk(const char *folder, const wm_carry_t *way, char *name)
{
    snprintf(name, ROOM, "%s-%u-%u", strrchr(folder, '/') + 1, way->number,
             way->index);
}

static int
file_send(const wm_carry_t *to, const void *memory, size_t nbytes,
          wm_flight_t *flight, wm_error_t *err)
{
    const char *folder = (*find(to->peer))->path;
    char name[ROOM], path[2 * ROOM], part[2 * ROOM + 8];
    if (to->index == 1 && getenv("TOY_LINK_DIES") != NULL)
        raise(SIGKILL);
    name_chunk(own, to, name);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    snprintf(part, sizeof part, "%s.part", path);
    FILE *file = fopen(part, "wxe");
    bool written = file != NULL && fwrite(memory, 1, nbytes, file) == nbytes;
    if (file != NULL)
        written = fclose(file) == 0 && written;
    if (!written || rename(part, path) < 0)
        return wm_error_set(err, WM_ERR_SYSTEM, errno, "%s: %s", path,
                            strerror(errno));
    flight->own = &ended; // it is there
    return 0;
}

static int
file_receive(const wm_carry_t *from, void *memory, size_t nbytes,
             wm_flight_t *flight, wm_error_t *err)
{
    posted_t *one = calloc(1, sizeof *one);
    if (one == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    one->peer = from->peer;
    name_chunk((*find(from->peer))->path, from, one->name);
    one->memory = memory;
    one->room = nbytes;
    one->next = posted;
    posted = one;
    flight->own = one;
    look = true;
    return 0;
}

static void
forget(const posted_t *one)
{
    posted_t **at = &posted;
    while (*at != one)
        at = &(*at)->next;
    *at = one->next;
}

static int
file_test(wm_flight_t *flight, size_t *nbytes, wm_error_t *err)
{
    posted_t *one = flight->own;
    if (flight->own == &ended || one->code == 0)
        return flight->own == &ended;
    int code = one->code > 0
                   ? 1
                   : wm_error_set(err, WM_ERR_SYSTEM, 0,
                                  "%s/%s cannot be read", own, one->name);
    if (code > 0 && nbytes != NULL)
        *nbytes = one->nbytes;
    forget(one);
    free(one);
    flight->own = &ended;
    return code;
}

static void
file_cancel(wm_flight_t *flight)
{
    if (flight->own == &ended)
        return;
    forget(flight->own);
    free(flight->own);
    flight->own = &ended;
}

static void
take_chunk(posted_t *one)
{
    char path[2 * ROOM], more;
    snprintf(path, sizeof path, "%s/%s", own, one->name);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return;
    one->nbytes = fread(one->memory, 1, one->room, file);
    one->code = fread(&more, 1, 1, file) == 0 && !ferror(file) ? 1 : -1;
    fclose(file);
    unlink(path);
}

static void
file_progress(void)
{
    char events[4096], path[2 * ROOM];
    while (read(notices, events, sizeof events) > 0)
        look = true;
    if (!look)
        return;
    look = false;
    for (posted_t *one = posted; one != NULL; one = one->next)
        if (one->code == 0)
            take_chunk(one);
    snprintf(path, sizeof path, "%s/ping", own); // a test asks if we look
    unlink(path);
}

static int
file_idle_fd(void)
{
    return notices;
}

static void
file_died(wm_peer_t *peer)
{
    for (posted_t *one = posted; one != NULL; one = one->next)
        if (one->peer == peer && one->code == 0)
            one->code = -1;
}

static void
file_close(void)
{
    char path[2 * ROOM];
    DIR *all = opendir(own);
    for (struct dirent *one; all != NULL && (one = readdir(all)) != NULL;) {
        snprintf(path, sizeof path, "%s/%s", own, one->d_name);
        unlink(path); // not of "." and ".."
    }
    if (all != NULL)
        closedir(all);
    rmdir(own);
    close(notices);
    notices = -1;
    while (folders != NULL) {
        folder_t *next = folders->next;
        free(folders);
        folders = next;
    }
}

const wm_link_t wm_link_file = {
    .name = "file",
    .title = "a file",
    .open = file_open,
    .source =
        {
            .progress = file_progress,
            .idle_fd = file_idle_fd,
            .close = file_close,
        },
    .address = file_address,
    .connect = file_connect,
    .disconnect = file_disconnect,
    .died = file_died,
    .forget_memory = file_forget_memory,
    .reach = file_reach,
    .send = file_send,
    .receive = file_receive,
    .test = file_test,
    .cancel = file_cancel,
};

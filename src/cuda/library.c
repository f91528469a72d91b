// SPDX-License-Identifier: BSD-3-Clause
#define _GNU_SOURCE
#include "cuda/library.h"

#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *folders; // of sys.path, with colons between

void
wm_library_set_folders(const char *given)
{
    free(folders);
    folders = strdup(given);
}

// Opens the first package's copy; returns NULL if there is none.
static void *
library_open_packaged(const wm_library_t *library, char *reason, size_t room)
{
    char path[4096];
    void *handle = NULL;
    const char *at = library->folder != NULL ? folders : NULL;
    while (at != NULL && *at != '\0' && handle == NULL) {
        size_t length = strcspn(at, ":");
        int chars = snprintf(path, sizeof path, "%.*s/%s/%s", (int)length, at,
                             library->folder, library->name);
        bool fits = chars > 0 && (size_t)chars < sizeof path;
        if (*at == '/' && fits && access(path, R_OK) == 0) {
            handle = dlopen(path, RTLD_NOW | library->mode);
            if (handle == NULL)
                snprintf(reason, room, "%s", dlerror());
        }
        at += length + (at[length] == ':');
    }
    return handle;
}

// Opens the library; else writes the loader's reason, that of a library which
// is there and does not load before that of one which is not.
static void *
library_find(const wm_library_t *library, char *reason, size_t room)
{
    void *handle = dlopen(library->name,
                          RTLD_NOW | RTLD_NOLOAD | library->mode);
    if (handle == NULL)
        handle = dlopen(library->name, RTLD_NOW | library->mode);
    if (handle == NULL) {
        snprintf(reason, room, "%s", dlerror());
        handle = library_open_packaged(library, reason, room);
    }
    return handle;
}

static char *
library_path(void *handle, const char *name)
{
    struct link_map *map = NULL;
    bool known = dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map != NULL
                 && map->l_name[0] != '\0';
    return strdup(known ? map->l_name : name);
}

int
wm_library_open(const wm_library_t *library,
                const wm_library_function_t *functions, size_t count,
                void *table, char **path, wm_error_t *err)
{
    char reason[300];
    void *handle = library_find(library, reason, sizeof reason);
    if (handle == NULL)
        return wm_error_set(err, WM_ERR_STATE, 0,
                            "%s cannot be loaded (%s): %s", library->name,
                            reason, library->cure);
    char *found = library_path(handle, library->name);
    for (size_t i = 0; i < count; ++i) {
        void *function = dlsym(handle, functions[i].name);
        if (function == NULL) {
            (void)wm_error_set(err, WM_ERR_STATE, 0, "%s lacks %s: %s",
                               found != NULL ? found : library->name,
                               functions[i].name, library->cure);
            free(found);
            return WM_ERR_STATE;
        }
        // POSIX lets a data pointer hold a function's address.
        memcpy((char *)table + functions[i].offset, &function,
               sizeof function);
    }
    if (path != NULL)
        *path = found;
    else
        free(found);
    return 0;
}

// Reads how often libraries have been loaded, which stands in each entry of
// the list.
static int
first_library(struct dl_phdr_info *info, size_t size, void *loads)
{
    (void)size;
    *(unsigned long long *)loads = info->dlpi_adds;
    return 1;
}

unsigned long long
wm_library_loads(void)
{
    unsigned long long loads = 0;
    dl_iterate_phdr(first_library, &loads);
    return loads;
}

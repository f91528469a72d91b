// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/run/coll_tell.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "comm/coll/run/coll_class.h"
#include "comm/engine/engine.h"

static void
tell_add(wm_coll_told_t *told, const char *format, ...)
{
    size_t used = strlen(told->reason);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(told->reason + used, sizeof told->reason - used, format,
              arguments);
    va_end(arguments);
}

// Returns why an engine does no such call; NULL: it does.
static const char *
tell_why_not(wm_comm_t *comm, const wm_coll_asked_t *asked, int number)
{
    const wm_coll_engine_t *engine = wm_coll_engines_at(number);
    const char *why = wm_coll_engines_why_not(comm, number);
    unsigned memory = asked->on_device ? WM_COLL_TAKES_DEVICE
                                       : WM_COLL_TAKES_HOST;
    bool all_short = !wm_comm_is_one_host(comm)
                     && !wm_coll_shape(asked->kind)->varies
                     && asked->nbytes < WM_COLL_CLASS_BYTES
                     && !wm_coll_engines_take_short(comm);
    if (why != NULL)
        return why;
    if ((wm_coll_engines_do(comm, asked->kind) & 1u << number) == 0)
        return "it does no such calls here";
    if ((engine->takes & memory) == 0)
        return asked->on_device ? "it takes no GPU memory"
                                : "it takes no host memory";
    return all_short ? "MPI is faster for so few bytes" : NULL;
}

// Returns the name of the engine that serves on a level.
static const char *
tell_level(const wm_comm_t *level)
{
    unsigned opened = level->colls.opened;
    return wm_direct_is_reached(level) ? wm_copies_engine.name
           : opened != 0 ? wm_coll_engines_at(__builtin_ctz(opened))->name
                         : wm_mpi_engine.name;
}

static void
tell_chosen(const wm_comm_t *comm, int number, wm_coll_told_t *told)
{
    const wm_coll_engine_t *engine = wm_coll_engines_at(number);
    const wm_levels_t *levels = &comm->levels;
    if (engine == &wm_mpi_engine)
        tell_add(told, "MPI carries host memory, GPU memory is staged");
    else if (engine->open != NULL && (comm->colls.opened & 1u << number) == 0)
        tell_add(told, "the first such blocking call opens it");
    else if (engine == &wm_hierarchy_engine)
        tell_add(told, "in this host by %s, between hosts by %s",
                 levels->local->size > 1 ? tell_level(levels->local)
                                         : "nobody, as this rank is alone",
                 comm->hosts.place < comm->hosts.smallest
                     ? tell_level(levels->rail)
                     : "the ranks before this one");
    else
        tell_add(told, "the first that does such calls");
}

wm_coll_told_t
wm_coll_tell(wm_comm_t *comm, const wm_coll_asked_t *asked)
{
    wm_coll_told_t told = {.reason = ""};
    int chosen = 0;
    wm_engine_lock();
    while (wm_coll_engines_at(chosen) != &wm_mpi_engine
           && tell_why_not(comm, asked, chosen) != NULL)
        ++chosen;
    told.name = wm_coll_engines_at(chosen)->name;
    tell_chosen(comm, chosen, &told);
    for (int i = 0; i < chosen; ++i)
        tell_add(&told, "; not %s: %s", wm_coll_engines_at(i)->name,
                 tell_why_not(comm, asked, i));
    wm_engine_unlock();
    return told;
}

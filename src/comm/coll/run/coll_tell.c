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

// Tells the names of the engines that serve on a level.
static void
tell_level(const wm_comm_t *level, const char *where, wm_coll_told_t *told)
{
    unsigned left = wm_direct_is_reached(level) ? 0 : level->colls.opened;
    const wm_coll_engine_t *other = wm_direct_is_reached(level)
                                        ? &wm_copies_engine
                                        : &wm_mpi_engine;
    tell_add(told, "%s", where);
    if (left == 0)
        tell_add(told, " by %s", other->name);
    for (const char *before = " by"; left != 0; left &= left - 1) {
        tell_add(told, "%s %s", before,
                 wm_coll_engines_at(__builtin_ctz(left))->name);
        before = " and";
    }
}

// Tells the engines of the hierarchy's levels.
static void
tell_levels(const wm_comm_t *comm, wm_coll_told_t *told)
{
    const wm_levels_t *levels = &comm->levels;
    if (levels->local->size > 1)
        tell_level(levels->local, "in this host", told);
    else
        tell_add(told, "this rank is alone in its host");
    if (comm->hosts.place < comm->hosts.smallest)
        tell_level(levels->rail, ", between hosts", told);
    else
        tell_add(told, ", between hosts by the ranks before this one");
}

static void
tell_chosen(const wm_comm_t *comm, int number, wm_coll_told_t *told)
{
    const wm_coll_engine_t *engine = wm_coll_engines_at(number);
    if (engine == &wm_mpi_engine)
        tell_add(told, "MPI carries host memory, GPU memory is staged");
    else if (engine->open != NULL && (comm->colls.opened & 1u << number) == 0)
        tell_add(told, "the first such blocking call opens it");
    else if (engine == &wm_hierarchy_engine)
        tell_levels(comm, told);
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

wm_coll_lacking_t
wm_coll_tell_lacking(wm_comm_t *comm, wm_coll_kind_t kind, bool on_stream)
{
    wm_coll_lacking_t told = {.text = "there is none for these ranks"};
    const wm_coll_engine_t *engine;
    size_t used = 0;
    for (int i = 0; (engine = wm_coll_engines_at(i)) != &wm_mpi_engine; ++i) {
        bool does = wm_coll_engines_may_do(comm, kind, i);
        const char *why = does ? wm_coll_engines_why_not(comm, i)
                               : "it does no such calls";
        if (!engine->spans(comm) || (on_stream && engine->on_stream == NULL)
            || used >= sizeof told.text)
            continue;
        told.may |= does;
        if (why == NULL && used == 0)
            strcpy(told.text, "one may serve");
        else if (why != NULL)
            used += (size_t)snprintf(told.text + used, sizeof told.text - used,
                                     "%sengine \"%s\": %s",
                                     used > 0 ? "; " : "", engine->name, why);
    }
    return told;
}

// SPDX-License-Identifier: BSD-3-Clause
#define _GNU_SOURCE
#include "comm/engine/binding.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define GENERATIONS 8 // from a rank to its launcher: shells and wrappers

_Static_assert(sizeof((wm_binding_t){0}.own) == sizeof(cpu_set_t), "a set");

// The kernel's names of the processes that start ranks.
static const char *const launchers[] = {
    "mpirun",  "mpiexec", "prterun",       "prted",
    "orterun", "orted",   "mpiexec.hydra", "hydra_pmi_proxy",
};

// Returns a number of a processor's topology; -1: unknown.
static int
binding_topology(int processor, const char *name)
{
    char path[128];
    int value = -1;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/%s",
             processor, name);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return -1;
    if (fscanf(file, "%d", &value) != 1)
        value = -1;
    fclose(file);
    return value;
}

// Returns true if all processors of the set are threads of one core.
static bool
binding_is_one_core(const cpu_set_t *set)
{
    int core = 0, package = 0, count = 0;
    if (CPU_COUNT(set) == 1)
        return true;
    for (int i = 0; i < CPU_SETSIZE; ++i) {
        if (!CPU_ISSET(i, set))
            continue;
        int its_core = binding_topology(i, "core_id");
        int its_package = binding_topology(i, "physical_package_id");
        if (its_core < 0
            || (count++ > 0 && (its_core != core || its_package != package)))
            return false;
        core = its_core;
        package = its_package;
    }
    return true;
}

// Reads a process's parent, and whether it is a launcher. Returns false if
// this is unknown.
static bool
binding_look(pid_t process, pid_t *parent, bool *launches)
{
    char path[64], name[32] = "", rest[4096] = "";
    snprintf(path, sizeof path, "/proc/%d/comm", (int)process);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    if (fscanf(file, "%31s", name) != 1)
        name[0] = '\0';
    fclose(file);
    *launches = false;
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; ++i)
        *launches |= strcmp(name, launchers[i]) == 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)process);
    file = fopen(path, "re");
    if (file == NULL)
        return false;
    size_t length = fread(rest, 1, sizeof rest - 1, file);
    fclose(file);
    rest[length] = '\0';
    const char *behind = strrchr(rest, ')'); // a name may have any character
    int value = 0;
    if (behind == NULL || sscanf(behind + 1, " %*c %d", &value) != 1)
        return false;
    *parent = value;
    return true;
}

// Finds the cores of the launcher of this process.
static bool
binding_of_launcher(cpu_set_t *set)
{
    pid_t process = getppid(), parent = 0;
    bool launches = false;
    for (int i = 0; i < GENERATIONS && process > 1; ++i) {
        if (!binding_look(process, &parent, &launches))
            return false;
        if (launches)
            return sched_getaffinity(process, sizeof *set, set) == 0;
        process = parent;
    }
    return false;
}

void
wm_binding_widen(wm_binding_t *binding)
{
    cpu_set_t own, wide, both;
    binding->wide = false;
    if (sched_getaffinity(0, sizeof own, &own) != 0
        || !binding_is_one_core(&own) || !binding_of_launcher(&wide))
        return;
    CPU_AND(&both, &own, &wide);
    if (!CPU_EQUAL(&both, &own) || CPU_EQUAL(&own, &wide))
        return;
    memcpy(binding->own, &own, sizeof own);
    binding->wide = sched_setaffinity(0, sizeof wide, &wide) == 0;
}

void
wm_binding_restore(const wm_binding_t *binding)
{
    if (binding->wide)
        (void)sched_setaffinity(0, sizeof binding->own,
                                (const cpu_set_t *)binding->own);
}

// SPDX-License-Identifier: BSD-3-Clause
#include "comm/engine/cores.h"

#include <stdio.h>
#include <stdlib.h>

// Reads the numbers of a line, as far as there are some; "max" is none.
static int
cores_read(const char *root, const char *name, const char *format, long *one,
           long *other)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *file = fopen(path, "re");
    int count = file != NULL ? fscanf(file, format, one, other) : 0;
    if (file != NULL)
        fclose(file);
    return count;
}

int
wm_cores_allowed(const char *root)
{
    long quota = -1, period = 0, unused; // microseconds
    if (cores_read(root, "cpu.max", "%ld %ld", &quota, &period) != 2
        && cores_read(root, "cpu/cpu.cfs_quota_us", "%ld", &quota, &unused)
               == 1)
        cores_read(root, "cpu/cpu.cfs_period_us", "%ld", &period, &unused);
    if (quota <= 0 || period <= 0)
        return 0;
    return (int)((quota + period - 1) / period);
}

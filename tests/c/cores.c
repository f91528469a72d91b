// SPDX-License-Identifier: BSD-3-Clause
// The quota of a container in each version of cgroups, in a folder like
// /sys/fs/cgroup. Prints the number of cores.
#include <stdio.h>

#include "comm/engine/cores.h"

int
main(int count, char **words)
{
    return count == 2 && printf("%d\n", wm_cores_allowed(words[1])) > 0 ? 0
                                                                        : 1;
}

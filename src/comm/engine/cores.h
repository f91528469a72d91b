// SPDX-License-Identifier: BSD-3-Clause
// The cores that a container gives its processes, by its quota (cgroup).
#ifndef WM_COMM_ENGINE_CORES_H
#define WM_COMM_ENGINE_CORES_H

// Returns the number of cores whose time the quota allows, rounded up; 0:
// there is no quota. root: the folder of the cgroups, which in a container is
// that of its own one; both versions of cgroups are read.
int
wm_cores_allowed(const char *root);

#endif

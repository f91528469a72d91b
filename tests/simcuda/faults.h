// SPDX-License-Identifier: BSD-3-Clause
// How the simulated libraries read their settings …_FAIL and …_FAIL_RANK.
#ifndef SIMCUDA_FAULTS_H
#define SIMCUDA_FAULTS_H

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace sim {

// In the place of an error: the process is killed.
constexpr int FAULT_KILLS = 128 + SIGKILL;

// Returns the error of a call that is to fail.
inline int
fault_happens(int code)
{
    if (code == FAULT_KILLS)
        raise(SIGKILL);
    return code;
}

// Returns true if the variable names this process's rank, or is not set.
inline bool
faults_are_here(const char *variable)
{
    const char *want = getenv(variable);
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (rank == nullptr)
        rank = getenv("PMI_RANK");
    return want == nullptr || (rank != nullptr && atoi(want) == atoi(rank));
}

// Calls arm(name, n, code) for each "name:nth[:code]", with commas between.
template <typename arm_t>
void
faults_read(const char *variable, arm_t arm)
{
    std::string list = getenv(variable) ? getenv(variable) : "";
    for (char *save, *item = strtok_r(list.data(), ",", &save);
         item != nullptr; item = strtok_r(nullptr, ",", &save)) {
        char name[100] = "";
        long n = 1;
        int code = 0;
        sscanf(item, "%99[^:]:%ld:%d", name, &n, &code);
        arm(name, n, code);
    }
}

} // namespace sim

#endif

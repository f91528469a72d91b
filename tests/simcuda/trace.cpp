// SPDX-License-Identifier: BSD-3-Clause
// Writes a line for each call: simcuda_trace(), simcuda_note().
#include "sim.h"

#include <cstdarg>
#include <cstdio>

static auto &trace_mu = *new std::mutex;
static auto &lines = *new std::string;
static std::atomic<bool> on;

namespace sim {

void
trace(const char *format, ...)
{
    if (!on)
        return;
    char line[200];
    va_list values;
    va_start(values, format);
    vsnprintf(line, sizeof line, format, values);
    va_end(values);
    std::lock_guard<std::mutex> guard(trace_mu);
    lines += line;
    lines += '\n';
}

} // namespace sim

// begin: drops all lines and starts to write. Otherwise stops, and returns the
// lines, which are valid until the next begin.
SIM_EXPORT const char *
simcuda_trace(int begin)
{
    std::lock_guard<std::mutex> guard(trace_mu);
    on = begin != 0;
    if (begin)
        lines.clear();
    return lines.c_str();
}

// Adds a line for another library's call.
SIM_EXPORT void
simcuda_note(const char *line)
{
    sim::trace("%s", line);
}

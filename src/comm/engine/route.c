// SPDX-License-Identifier: BSD-3-Clause
#include "comm/engine/route.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "cuda/settings.h"

bool
wm_route_is_wanted(void)
{
    static _Atomic int wanted = -1; // -1: not read yet
    int known = atomic_load_explicit(&wanted, memory_order_relaxed);
    if (known < 0) {
        int log = wm_setting_log();
        known = log > 0 && (log & WM_LOG_ROUTE) != 0;
        atomic_store(&wanted, known);
    }
    return known;
}

void
wm_route_begin(wm_route_t *route)
{
    route->wanted = wm_route_is_wanted();
    route->used = 0;
}

// Appends as much as there is room for.
__attribute__((format(printf, 2, 3))) static void
route_append(wm_route_t *route, const char *format, ...)
{
    va_list arguments;
    size_t room = sizeof route->declined - route->used;
    va_start(arguments, format);
    int length = vsnprintf(route->declined + route->used, room, format,
                           arguments);
    va_end(arguments);
    if (length > 0)
        route->used += (size_t)length < room ? (size_t)length : room - 1;
}

// Rows with one reason stand together.
void
wm_route_decline(wm_route_t *route, const char *row, const char *why)
{
    if (!route->wanted)
        return;
    if (route->used == 0)
        route_append(route, " (not %s", row);
    else if (strncmp(route->why, why, sizeof route->why - 1) == 0)
        route_append(route, ", %s", row);
    else
        route_append(route, ": %s; not %s", route->why, row);
    snprintf(route->why, sizeof route->why, "%s", why);
}

// Writes a line at once, so that lines of several ranks do not mix.
static void
route_write(const wm_route_t *route, const char *what, const char *row)
{
    char line[sizeof route->declined + 512];
    bool declined = route->used > 0;
    int length = snprintf(
        line, sizeof line, "warpmpi: route: %s: %s%s%s%s%s\n", what, row,
        declined ? route->declined : "", declined ? ": " : "",
        declined ? route->why : "", declined ? ")" : "");
    size_t most = sizeof line - 1;
    fwrite(line, 1, (size_t)length < most ? (size_t)length : most, stderr);
}

void
wm_route_message(const wm_route_t *route, const wm_route_end_t *end,
                 const char *row)
{
    char what[160];
    if (!route->wanted)
        return;
    snprintf(what, sizeof what,
             "rank %d %s %" PRIu64 " bytes %s rank %d with tag %d", end->rank,
             end->receives ? "receives" : "sends", end->nbytes,
             end->receives ? "from" : "to", end->peer, end->tag);
    route_write(route, what, row);
}

void
wm_route_coll(const wm_route_t *route, const char *call, int rank, int size,
              uint64_t nbytes, const char *row)
{
    char what[160];
    if (!route->wanted)
        return;
    snprintf(what, sizeof what, "rank %d of %d, %s of %" PRIu64 " bytes", rank,
             size, call, nbytes);
    route_write(route, what, row);
}

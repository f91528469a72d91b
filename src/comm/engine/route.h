// SPDX-License-Identifier: BSD-3-Clause
// WARPMPI_LOG=route: a line on stderr for each message and collective, which
// names the row of a table that serves it, and says why the rows before it do
// not. Costs one branch if it is not set. Any thread.
//
//     wm_route_t route;
//     wm_route_begin(&route);
//     for each row, until one serves: wm_route_decline(&route, name, why);
//     wm_route_message(&route, &message, name);
#ifndef WM_COMM_ENGINE_ROUTE_H
#define WM_COMM_ENGINE_ROUTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// A choice that is being made.
typedef struct {
    bool wanted;
    size_t used;         // of `declined`; 0: no row has declined
    char declined[1024]; // rows and reasons, without the last reason
    char why[160];       // the last reason
} wm_route_t;

// One end of a message.
typedef struct {
    bool receives;
    int rank, peer, tag; // `rank` is this one's
    uint64_t nbytes;
} wm_route_end_t;

// Returns true if the lines are asked for.
bool
wm_route_is_wanted(void);

void
wm_route_begin(wm_route_t *route);

// Notes that a row does not serve. `why` is a few words.
void
wm_route_decline(wm_route_t *route, const char *row, const char *why);

// Write the line, if lines are asked for: `row` serves the message, or the
// call of a collective by name, on a rank of a communicator of `size` ranks.
void
wm_route_message(const wm_route_t *route, const wm_route_end_t *end,
                 const char *row);
void
wm_route_coll(const wm_route_t *route, const char *call, int rank, int size,
              uint64_t nbytes, const char *row);

#endif

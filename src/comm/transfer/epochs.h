// SPDX-License-Identifier: BSD-3-Clause
// Epochs of transfers between neighbours on this host: MPI's Post, Start,
// Complete and Wait, between pairs of ranks instead of all ranks of a
// communicator. A rank posts when its memory may be accessed. A neighbour
// starts when the ranks that it accesses have posted, and completes when it
// has accessed them; then the rank has waited for it. A rank that does both
// posts before it starts.
//
// For each neighbour a rank has two words in its segment: one that the
// neighbour sets when it posts, one when it completes. The rank clears a word
// when it has passed it. So the values are the same in each epoch, and calls
// on the host, on streams, and in graphs that are replayed can alternate.
// Epochs that are under way at the same time have words of their own. The
// streams, or the host, of one rank make the calls in order; one thread at a
// time. Engine lock held where words are taken, connected, released and given
// back; GIL not needed.
#ifndef WM_COMM_TRANSFER_EPOCHS_H
#define WM_COMM_TRANSFER_EPOCHS_H

#include "comm/node/node.h"

// Calls are bits, and are made in this order.
enum {
    WM_EPOCHS_POST = 1,     // tells the neighbours that access us
    WM_EPOCHS_START = 2,    // waits for the posts of those that we access
    WM_EPOCHS_COMPLETE = 4, // tells those that we access
    WM_EPOCHS_WAIT = 8,     // waits for the neighbours that access us
};

typedef struct {
    // The user may change these between epochs: a window's group does.
    bool accesses_us, is_accessed;
    wm_peer_t *peer;
    int index; // of our words for this neighbour, which it is told
    wm_epoch_words_t *own, *its; // its: NULL before wm_epochs_connect()
} wm_epochs_neighbor_t;

typedef struct wm_epochs {
    struct wm_epochs *next;
    const bool *revoked; // the user's: true once its communicator is; or NULL
    bool on_streams;
    int count;
    wm_epochs_neighbor_t neighbors[];
} wm_epochs_t;

// Takes words for each neighbour, which accesses us and is accessed. The peers
// share their segments (wm_node_shares).
WM_MUST_CHECK int
wm_epochs_new(wm_peer_t *const *peers, int count, wm_epochs_t **made,
              wm_error_t *err);

// Learns the index that a neighbour has for us, and lets streams of `device`
// (-1: none do) set and await words. Fails with WM_ERR_STATE if the number is
// impossible.
WM_MUST_CHECK int
wm_epochs_connect(wm_epochs_t *epochs, int neighbor, int index, int device,
                  wm_error_t *err);

// Gives the words back. All neighbours have ended their epochs. NULL: no-op.
void
wm_epochs_free(wm_epochs_t *epochs);

// Makes calls on the host: tells, then waits. Returns false, and the calls
// that wait are to be made again, if some neighbour has not told yet.
bool
wm_epochs_try(wm_epochs_t *epochs, unsigned calls);

// Enqueues calls. Behind them, the stream waits for the neighbours. In a
// capture they are one node, or a few.
WM_MUST_CHECK int
wm_epochs_enqueue(const wm_epochs_t *epochs, unsigned calls, int device,
                  CUstream stream, wm_error_t *err);

// wm_epochs_any_on_streams() returns true if a stream may wait for a
// neighbour; any thread, without the lock. wm_epochs_release() sets our words
// in the place of dead neighbours, and of all where the communicator is
// revoked, so that no stream here waits for them; the user raises. Repeat
// while it returns true: then a stream, or a graph, has passed a word. Engine
// lock held.
bool
wm_epochs_any_on_streams(void);
bool
wm_epochs_release(void);

#endif

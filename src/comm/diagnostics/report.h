// SPDX-License-Identifier: BSD-3-Clause
// Descriptions of operations under way, for lines on stderr. Engine lock held.
#ifndef WM_COMM_DIAGNOSTICS_REPORT_H
#define WM_COMM_DIAGNOSTICS_REPORT_H

#include "comm/comm/comm.h"
#include "comm/engine/op.h"

// A line under construction; text that is too long is cut.
typedef struct {
    char text[1536];
    size_t length;
} wm_words_t;

void
wm_words_add(wm_words_t *words, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

// Writes "warpmpi: ", the words and a line feed to stderr, at once, so that
// the lines of several ranks do not mix. No lock needed.
void
wm_words_print(wm_words_t *words);

// Adds "rank 1 of MPI_COMM_WORLD (size 2)".
void
wm_report_rank(wm_words_t *words, const wm_comm_t *comm);

// Adds the communicator's name, or "a communicator".
void
wm_report_comm(wm_words_t *words, MPI_Comm comm);

// Adds " (8000 bytes, float64)" if the size is known.
void
wm_report_size(wm_words_t *words, bool known, uint64_t nbytes,
               MPI_Datatype type);

// Adds "a send to rank 1 with tag 7", for `before` "a send to ".
void
wm_report_rank_of(wm_words_t *words, const char *before, int rank, int tag);

// Adds the operation: "a send to rank 1 with tag 7 (8000 bytes)".
void
wm_report_op(wm_words_t *words, const wm_op_t *op);

// Adds the awaited event: "for a message from rank 0 with tag 7 (8000 bytes,
// float64)"; of an operation with two parts, that of the one that has not
// ended.
void
wm_report_awaited(wm_words_t *words, const wm_op_t *op, MPI_Datatype type);

// Returns true if no message has come for a receive, or a probe.
bool
wm_report_is_unmatched(wm_about_t about);

// Adds "from rank 0 with tag 5 (8000 bytes)", for up to `most` messages, then
// "and 2 more".
void
wm_report_messages(wm_words_t *words, const wm_result_t *list, int count,
                   int most);

// Adds that a peer of this host ends or has ended, and its exception. Returns
// false if the peer still runs.
bool
wm_report_end(wm_words_t *words, int rank, const wm_peer_t *peer);

#endif

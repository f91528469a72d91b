// SPDX-License-Identifier: BSD-3-Clause
// Protocols: how the payload of a message gets across. A protocol is a file of
// src/comm/protocol and a row of functions for each end, which the ends call
// without knowing the protocol: the first row that serves a message has it. A
// row may hand over to another (wm_send_become, wm_receive_become). Engine
// lock held.
#ifndef WM_COMM_MESSAGE_PROTOCOL_H
#define WM_COMM_MESSAGE_PROTOCOL_H

#include <string.h>

#include "comm/message/end.h"

// The row of a sender. Functions that a row does not need are NULL.
struct wm_sending {
    const char *name;
    // Asked only for a message that no row before takes and that has gaps, or
    // is copied first (wm_protocols_t): its offer() makes room, and the list
    // is asked again for a row that carries the packed copy.
    bool packs;
    // Takes the message, with all that may be lacking, and returns true if the
    // row serves it. Else returns the reason, in a few words that live as long
    // as the engine lock is held. NULL: other rows alone hand over to this
    // one.
    bool (*try_take)(wm_end_t *end, const char **why);
    // Fills the header, whose nbytes is set.
    int (*offer)(wm_end_t *end, wm_error_t *err);
    // Called when the header has left.
    int (*go)(wm_end_t *end, wm_error_t *err);
    // Makes a step. Returns 1 when all data are across and no word of ours is
    // still to come, 0 if not yet. NULL: nothing follows the header.
    int (*step)(wm_end_t *end, wm_error_t *err);
    // Reports the end to the caller when the buffer is no longer needed.
    int (*report_early)(wm_end_t *end, wm_error_t *err);
    // Tells the receiver that the message has failed. Returns true if the
    // message still comes, out of the caller's own buffer.
    bool (*fail)(wm_end_t *end);
    // Returns true if a failed send can end: the receiver has learned of the
    // failure, or wants nothing more, and nobody reads our memory any more.
    bool (*heard)(wm_end_t *end);
    void (*peer_died)(wm_end_t *end);
    // Copies the message out on the operation's stream, for a row to which
    // this one has handed over, and then writes `ready`. Returns 1, or 0 if
    // the data are in end->buffer. NULL: they always are.
    int (*copy_out)(wm_end_t *end, char *into, uint32_t ready,
                    wm_error_t *err);
    // Tells if the row waits for MPI (wm_op_kind_t). NULL: for the header
    // alone.
    wm_asks_t (*asks)(const wm_end_t *end);
    // Returns a number that changes when the row makes progress beyond the
    // words of the slot.
    uint64_t (*mark)(const wm_end_t *end);
    // Releases what the row has. Called at the end, also of a row that has
    // handed over; maybe twice.
    void (*drop)(wm_end_t *end);
};

// The row of a receiver.
struct wm_receiving {
    const char *name;
    int kind; // WM_MESSAGE_…: headers of this kind begin here; 0: none do
    // Returns true if the header is valid for this protocol.
    bool (*check)(wm_end_t *end);
    // Begins the payload of a matched message, which fits unless `refused`.
    // Returns 1 when the message has ended, 0 if not yet.
    int (*match)(wm_end_t *end, bool refused, wm_error_t *err);
    // Takes an offer that is claimed and returns true if the row serves it;
    // else returns the reason, as try_take() does. With `reads`, it is asked
    // when the offered memory can be reached. NULL: the row takes no offers.
    bool (*accept)(wm_end_t *end, const char **why);
    bool reads;
    // Returns true if the row itself writes memory with gaps as it is laid
    // out, unless MPI alone knows how. NULL: never.
    bool (*unpacks)(const wm_end_t *end);
    int (*step)(wm_end_t *end, wm_error_t *err);
    // Tells the sender that the message has failed, and ensures that no work
    // of ours accesses its memory. Returns true if the receive goes on, to
    // discard data that still come.
    bool (*fail)(wm_end_t *end, const wm_error_t *err);
    void (*peer_died)(wm_end_t *end);
    // Waits for the row's work on the caller's thread, without the lock.
    void (*synchronize)(wm_end_t *end);
    wm_asks_t (*asks)(const wm_end_t *end); // these three as a sender's
    uint64_t (*mark)(const wm_end_t *end);
    void (*drop)(wm_end_t *end);
};

// Defines name(), which returns the private state of type_t of an end. It is
// zero when the row begins.
#define WM_STATE(type_t, name, member)                                        \
    _Static_assert(sizeof(type_t) <= WM_STATE_BYTES, "it has that room");     \
    static type_t *name(const wm_end_t *end)                                  \
    {                                                                         \
        return (type_t *)end->member;                                         \
    }

// The row that packs memory with gaps (pack.c).
extern const wm_sending_t wm_sending_packed;

// Fails a message whose protocol has found an error outside of a step.
void
wm_send_fail(wm_end_t *end, const wm_error_t *err);

// Returns the error of an invalid header.
int
wm_receive_damaged(const wm_end_t *end, wm_error_t *err);

static inline void
wm_send_become(wm_end_t *end, const wm_sending_t *protocol)
{
    memset(end->second_state, 0, sizeof end->second_state);
    end->sending = protocol;
}

static inline void
wm_receive_become(wm_end_t *end, const wm_receiving_t *protocol)
{
    memset(end->second_state, 0, sizeof end->second_state);
    end->receiving = protocol;
}

// All protocols, which src/comm/protocol/table.c knows, in order of
// preference. The last row of senders serves every message, and the last one
// of receivers every offer; NULL ends the receivers' rows.
typedef struct {
    const wm_sending_t *const *sending;
    const wm_receiving_t *const *receiving;
    // A short message of host memory without an end: see protocol/inline.h.
    bool (*fits_inline)(const wm_comm_t *comm, const wm_buffer_t *buffer,
                        const wm_envelope_t *envelope);
    WM_MUST_CHECK int (*send_inline)(wm_comm_t *comm,
                                     const wm_buffer_t *buffer,
                                     const wm_envelope_t *envelope,
                                     wm_op_t **op, wm_error_t *err);
    // Returns true if a send on a stream of the program does not wait for its
    // receiver: the stream copies the message, and then goes on.
    bool (*copies)(const wm_end_t *end);
    // Launches the kernels that wait for others of their kind.
    void (*flush)(void);
} wm_protocols_t;

extern const wm_protocols_t wm_protocols;

#endif

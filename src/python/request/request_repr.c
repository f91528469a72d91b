// SPDX-License-Identifier: BSD-3-Clause
// The repr of requests: it neither makes progress nor ends anything.
#include "comm/diagnostics/report.h"
#include "comm/engine/child.h"
#include "comm/engine/engine.h"
#include "python/request/prequest.h"

// Adds the message or call under way. Returns false if there is none.
static bool
add_op(wm_words_t *words, const wm_op_t *op)
{
    wm_engine_lock();
    bool pending = !atomic_load(&op->done);
    if (pending) {
        if (wm_op_about(op).is_message)
            wm_report_op(words, op);
        else
            wm_words_add(words, "a collective, or another call");
    }
    wm_engine_unlock();
    return pending;
}

static const char *
add_state(wm_words_t *words, wm_request_t *self, bool persistent)
{
    const wm_prequest_t *prequest = (const wm_prequest_t *)self;
    if (persistent && !wm_py_prequest_is_live(prequest))
        return "freed";
    if (!wm_py_request_is_active(self) || self->op == NULL) {
        if (persistent && prequest->start != NULL
            && !PyObject_TypeCheck((PyObject *)self,
                                   wm_py_state->persistent_coll_type))
            wm_report_rank_of(
                words, prequest->receives ? "a receive from " : "a send to ",
                prequest->envelope.rank, prequest->envelope.tag);
        return "inactive";
    }
    bool asks = !wm_is_child() && wm_engine_check(NULL) == 0;
    return asks && add_op(words, self->op) ? "pending"
           : atomic_load(&self->op->done)  ? "complete"
                                           : "pending";
}

PyObject *
wm_py_request_repr(PyObject *object)
{
    wm_request_t *self = (wm_request_t *)object;
    bool persistent = PyObject_TypeCheck(object, wm_py_state->prequest_type);
    wm_words_t words = {.length = 0};
    const char *state = add_state(&words, self, persistent);
    return PyUnicode_FromFormat(
        "<warpmpi.%s: %s%s%s>", persistent ? "Prequest" : "Request",
        words.text, words.length > 0 ? ", " : "", state);
}

// SPDX-License-Identifier: BSD-3-Clause
// Reports of kernels in CUDA graphs that wait long for a message. No call of
// the program's waits then, or one of CUDA's. Those for a message that the
// other rank has refused end.
#include "comm/diagnostics/hang.h"
#include "comm/diagnostics/report.h"
#include "comm/engine/engine.h"
#include "comm/engine/modules.h"
#include "comm/protocol/captured.h"

#define LOOK_US 200000
#define REFUSED_US 2000000 // a rank captures again in this time

// Adds why, as far as this rank knows.
static void
graph_waits_explain(wm_words_t *words, const wm_captured_wait_t *wait)
{
    if (wait->matched) {
        wm_words_add(words, ": has that rank launched as many graphs?");
        return;
    }
    wm_words_add(words, ", which the other rank has not captured");
    if (wait->other) {
        wm_report_rank_of(words, "; a captured message has come from ",
                          wait->other_rank, wait->other_tag);
        wm_words_add(words, ": do the tags differ?");
        return;
    }
    wm_words_add(words, ": both ends must be captured; Send_init and "
                        "Recv_init of comm.on(stream) make ends that stay");
}

static void
graph_waits_tell(const wm_captured_wait_t *wait)
{
    wm_words_t words = {.length = 0};
    double seconds = (double)wait->waited_us / 1e6;
    wm_report_rank(&words, wait->comm);
    if (wait->unasked) {
        wm_report_rank_of(&words, ": a message of a CUDA graph from ",
                          wait->rank, wait->tag);
        wm_words_add(&words,
                     " has waited %.0f s for a receive that is "
                     "captured, too: no other receive takes it",
                     seconds);
        wm_words_print(&words);
        return;
    }
    wm_words_add(&words, ": a CUDA graph has waited %.0f s ", seconds);
    wm_report_rank_of(&words,
                      wait->receives ? "for a message from "
                                     : "for the receiver of a message to ",
                      wait->rank, wait->tag);
    graph_waits_explain(&words, wait);
    wm_words_print(&words);
}

static void
graph_waits_serve(bool waited)
{
    (void)waited;
    static _Atomic int64_t looked;
    int64_t now = wm_engine_now(), limit = wm_hang_limit();
    if (!wm_captured_any() || now - looked < LOOK_US || !wm_engine_try_lock())
        return;
    looked = now;
    wm_captured_end_refused(now, REFUSED_US);
    if (limit > 0)
        wm_captured_each_wait(now, limit, graph_waits_tell);
    wm_engine_unlock();
}

const wm_module_t wm_graph_waits_module = {.serve = graph_waits_serve};

// SPDX-License-Identifier: BSD-3-Clause
// Reports of kernels in CUDA graphs that wait long for a message. No call of
// the program's waits then, or one of CUDA's.
#include "comm/diagnostics/hang.h"
#include "comm/diagnostics/report.h"
#include "comm/engine/engine.h"
#include "comm/engine/modules.h"
#include "comm/protocol/captured.h"

#define LOOK_US 200000

static void
graph_waits_tell(const wm_captured_wait_t *wait)
{
    wm_words_t words = {.length = 0};
    wm_report_rank(&words, wait->comm);
    wm_words_add(&words, ": a CUDA graph has waited %.0f s ",
                 (double)wait->waited_us / 1e6);
    if (wait->receives)
        wm_report_rank_of(&words, "for a message from ", wait->rank,
                          wait->tag);
    else
        wm_report_rank_of(&words, "for the receiver of a message to ",
                          wait->rank, wait->tag);
    wm_words_add(&words, "%s",
                 wait->matched ? ": has that rank launched as many graphs?"
                               : ", which the other rank has not captured");
    wm_words_print(&words);
}

static void
graph_waits_serve(bool waited)
{
    (void)waited;
    static _Atomic int64_t looked;
    int64_t now = wm_engine_now(), limit = wm_hang_limit();
    if (!wm_captured_any() || limit <= 0 || now - looked < LOOK_US
        || !wm_engine_try_lock())
        return;
    looked = now;
    wm_captured_each_wait(now, limit, graph_waits_tell);
    wm_engine_unlock();
}

const wm_module_t wm_graph_waits_module = {.serve = graph_waits_serve};

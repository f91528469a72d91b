// SPDX-License-Identifier: BSD-3-Clause
#include "comm/engine/modules.h"

const wm_module_t *const wm_modules[] = {
#define X(name) &wm_##name##_module,
    WM_MODULES(X)
#undef X
        NULL,
};
#define MODULES (sizeof wm_modules / sizeof *wm_modules)

// Those with a `round`, as rounds are many.
static const wm_module_t *rounds[MODULES];
static int round_count;

void
wm_modules_begin(void)
{
    for (const wm_module_t *const *one = wm_modules; *one != NULL; ++one)
        if ((*one)->round != NULL)
            rounds[round_count++] = *one;
    WM_EACH_MODULE(begin);
}

void
wm_modules_round(void)
{
    for (int i = 0; i < round_count; ++i)
        if (rounds[i]->queued == NULL || *rounds[i]->queued > 0)
            rounds[i]->round();
}

int64_t
wm_modules_rest(void)
{
    int64_t least = 0;
    for (const wm_module_t *const *one = wm_modules; *one != NULL; ++one) {
        int64_t rest = (*one)->rest != NULL ? (*one)->rest() : 0;
        if (rest > 0 && (least == 0 || rest < least))
            least = rest;
    }
    return least;
}

int
wm_modules_configure(wm_error_t *err)
{
    int code = 0;
    const wm_module_t *const *one = wm_modules;
    for (; *one != NULL && code == 0; ++one)
        if ((*one)->configure != NULL)
            code = (*one)->configure(err);
    return code;
}

bool
wm_modules_is_used(const wm_comm_t *comm)
{
    bool used = false;
    const wm_module_t *const *one = wm_modules;
    for (; *one != NULL && !used; ++one)
        used = (*one)->is_used != NULL && (*one)->is_used(comm);
    return used;
}

// SPDX-License-Identifier: BSD-3-Clause
#include "comm/engine/modules.h"

#include "cuda/settings.h"

static const wm_module_t *const modules[] = {
#define X(name) &wm_##name##_module,
    WM_MODULES(X)
#undef X
};
#define MODULES ((int)(sizeof modules / sizeof *modules))

// Those with a `round`, as rounds are many.
static const wm_module_t *rounds[MODULES];
static int round_count;

#define EACH(function, ...)                                                   \
    for (int i = 0; i < MODULES; ++i)                                         \
        if (modules[i]->function != NULL)                                     \
            modules[i]->function(__VA_ARGS__);

void
wm_modules_begin(void)
{
    for (int i = 0; i < MODULES; ++i)
        if (modules[i]->round != NULL)
            rounds[round_count++] = modules[i];
    EACH(begin);
}

void
wm_modules_round(void)
{
    for (int i = 0; i < round_count; ++i)
        if (rounds[i]->queued == NULL || *rounds[i]->queued > 0)
            rounds[i]->round();
}

void
wm_modules_serve(bool waited)
{
    EACH(serve, waited);
}

int64_t
wm_modules_rest(void)
{
    int64_t least = 0;
    for (int i = 0; i < MODULES; ++i) {
        int64_t rest = modules[i]->rest != NULL ? modules[i]->rest() : 0;
        if (rest > 0 && (least == 0 || rest < least))
            least = rest;
    }
    return least;
}

void
wm_modules_end(void)
{
    EACH(end);
}

void
wm_modules_requested(const wm_op_t *op)
{
    if (wm_setting_is_on(WM_SETTING_CHECK))
        EACH(requested, op);
}

void
wm_modules_request_freed(const wm_op_t *op)
{
    if (wm_setting_is_on(WM_SETTING_CHECK))
        EACH(request_freed, op);
}

int
wm_modules_configure(wm_error_t *err)
{
    int code = 0;
    for (int i = 0; i < MODULES && code == 0; ++i)
        if (modules[i]->configure != NULL)
            code = modules[i]->configure(err);
    return code;
}

void
wm_modules_wait_begin(MPI_Comm user)
{
    EACH(wait_begin, user);
}

void
wm_modules_wait_end(void)
{
    EACH(wait_end);
}

void
wm_modules_retain(wm_comm_t *comm)
{
    EACH(retain, comm);
}

void
wm_modules_release(wm_comm_t *comm)
{
    EACH(release, comm);
}

void
wm_modules_freed(wm_comm_t *comm)
{
    EACH(freed, comm);
}

bool
wm_modules_is_used(const wm_comm_t *comm)
{
    bool used = false;
    for (int i = 0; i < MODULES && !used; ++i)
        used = modules[i]->is_used != NULL && modules[i]->is_used(comm);
    return used;
}

void
wm_modules_drop(wm_comm_t *comm)
{
    EACH(drop, comm);
}

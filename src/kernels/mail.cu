// SPDX-License-Identifier: BSD-3-Clause
#include "kernels/mail.h"
#include "kernels/kernel.h"

#define AT_ONCE 8 // lines a thread has under way
#define LOOKS 256 // in vain, before it looks whether to stop

// The last line stands for those beyond it: no branch between loads.
WM_DEVICE size_t
clamped(size_t line, size_t lines)
{
    return line < lines ? line : lines - 1;
}

// Up to 8 of the bytes at src, `left` of which there are.
WM_DEVICE uint64_t
load_payload(const char *src, uint64_t left, uint32_t unit)
{
    if (unit == 8)
        return *(const uint64_t *)src;
    uint64_t value = 0;
    if (unit == 4) {
        value = *(const uint32_t *)src;
        if (left > 4)
            value |= (uint64_t) * (const uint32_t *)(src + 4) << 32;
        return value;
    }
    for (uint32_t i = 0; i < WM_LINE_PAYLOAD && i < left; i++)
        value |= (uint64_t)(uint8_t)src[i] << (8 * i);
    return value;
}

WM_DEVICE void
store_payload(char *dst, uint64_t value, uint64_t left, uint32_t unit)
{
    if (unit == 8)
        *(uint64_t *)dst = value;
    else if (unit == 4) {
        *(uint32_t *)dst = (uint32_t)value;
        if (left > 4)
            *(uint32_t *)(dst + 4) = (uint32_t)(value >> 32);
    }
    else
        for (uint32_t i = 0; i < WM_LINE_PAYLOAD && i < left; i++)
            dst[i] = (char)(value >> (8 * i));
}

WM_DEVICE void
post(const wm_mail_post_t &mail)
{
    const size_t lines = (mail.nbytes + WM_LINE_PAYLOAD - 1) / WM_LINE_PAYLOAD;
    const size_t step = wm_block_threads();
    for (size_t i = wm_block_thread(); i < lines; i += AT_ONCE * step) {
        uint64_t values[AT_ONCE];
        for (size_t k = 0; k < AT_ONCE; k++) {
            const size_t at = clamped(i + k * step, lines) * WM_LINE_PAYLOAD;
            values[k] = load_payload(mail.src + at, mail.nbytes - at,
                                     mail.unit);
        }
        for (size_t k = 0; k < AT_ONCE; k++)
            if (i + k * step < lines)
                wm_store_line(mail.box + (i + k * step) * WM_LINE_BYTES,
                              values[k], mail.flag);
    }
    if (wm_block_ended())
        wm_store_system(mail.ready, mail.ready_value);
}

WM_DEVICE bool
gives_up(const wm_mail_fetch_t &mail, uint64_t deadline, uint32_t looks)
{
    if (mail.stop != nullptr && looks % LOOKS == 0
        && wm_load_system(mail.stop) != 0)
        return true;
    return deadline != 0 && wm_now_ns() >= deadline;
}

// Reads lines i, i + step … until all have the flag; false when that took too
// long. No line is looked at before all are asked for.
WM_DEVICE bool
read_lines(const wm_mail_fetch_t &mail, size_t i, size_t step, size_t lines,
           uint64_t deadline, wm_line_t *read)
{
    for (uint32_t looks = 1;; ++looks) {
        for (size_t k = 0; k < AT_ONCE; k++)
            read[k] = wm_load_line(
                mail.box + clamped(i + k * step, lines) * WM_LINE_BYTES);
        bool come = true;
        for (size_t k = 0; k < AT_ONCE; k++)
            come = come && read[k].flags[0] == mail.flag
                   && read[k].flags[1] == mail.flag;
        if (come || gives_up(mail, deadline, looks))
            return come;
    }
}

WM_DEVICE void
fetch(const wm_mail_fetch_t &mail, uint32_t patience_us)
{
    const size_t lines = (mail.nbytes + WM_LINE_PAYLOAD - 1) / WM_LINE_PAYLOAD;
    const size_t step = wm_block_threads();
    const uint64_t deadline = patience_us == WM_MAIL_FOR_EVER
                                  ? 0
                                  : wm_now_ns() + patience_us * (uint64_t)1000;
    // False where a thread that ran before this one was late already.
    bool come = !wm_block_any(false);
    for (size_t i = wm_block_thread(); i < lines && come;
         i += AT_ONCE * step) {
        wm_line_t read[AT_ONCE];
        come = read_lines(mail, i, step, lines, deadline, read);
        for (size_t k = 0; k < AT_ONCE; k++) {
            const size_t at = (i + k * step) * WM_LINE_PAYLOAD;
            if (come && i + k * step < lines)
                store_payload(mail.dst + at,
                              (uint64_t)read[k].high << 32 | read[k].low,
                              mail.nbytes - at, mail.unit);
        }
    }
    const bool late = wm_block_any(!come);
    if (!wm_block_ended())
        return;
    if (mail.status != nullptr)
        wm_store_system(mail.status, late ? WM_MAIL_LATE : WM_MAIL_TAKEN);
    if (!late)
        wm_store_system(mail.taken, mail.taken_value);
}

WM_KERNEL(wm_mail, wm_mail_params_t)
{
    if (wm_block() < p.posts)
        post(p.post[wm_block()]);
    else
        fetch(p.fetch[wm_block() - p.posts], p.patience_us);
}

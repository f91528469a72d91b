// SPDX-License-Identifier: BSD-3-Clause
#include "cuda/error.h"

#include <stdio.h>
#include <string.h>

int
wm_error_set(wm_error_t *err, int code, int detail, const char *format, ...)
{
    if (err == NULL)
        return code;
    // Formatted aside first, since an argument may be the old text itself.
    char text[sizeof(err->text)];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    err->code = code;
    err->detail = detail;
    memcpy(err->text, text, sizeof(text));
    return code;
}

void
wm_error_cut(const char *text, size_t room, char *cut)
{
    static const char more[] = " ...";
    size_t length = strlen(text);
    if (length >= room) {
        length = room - sizeof more;
        size_t word = length;
        while (word > 0 && text[word] != ' ')
            --word;
        length = word > 0 ? word : length;
        memcpy(cut + length, more, sizeof more);
    }
    else
        cut[length] = '\0';
    memcpy(cut, text, length);
}

int
wm_error_context(wm_error_t *err, const char *format, ...)
{
    if (err == NULL)
        return WM_ERR_STATE;
    char text[sizeof(err->text)];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (length < 0)
        return err->code;
    size_t used = (size_t)length < sizeof(text) ? (size_t)length
                                                : sizeof(text) - 1;
    size_t room = sizeof(text) - used;
    if (room > 2)
        snprintf(text + used, room, ": %.*s", (int)(room - 3), err->text);
    memcpy(err->text, text, sizeof(text));
    return err->code;
}

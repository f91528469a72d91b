// SPDX-License-Identifier: BSD-3-Clause
#include "comm/way/mailbox.h"

#include "cuda/stream.h"

#define BOXES 32

struct wm_mailbox {
    char *pointer;
    uint32_t flag; // of its latest message
    bool taken;
};

// Those of a device.
typedef struct {
    wm_block_t *block; // NULL: not made
    wm_mailbox_t boxes[BOXES];
} boxes_t;

static boxes_t devices[WM_MAX_DEVICES];

static int
make(int device, boxes_t *boxes, wm_error_t *err)
{
    const size_t size = (size_t)BOXES * WM_MAIL_BOX_BYTES;
    wm_block_t *block;
    CUstream stream;
    int code = wm_mail_prepare(device, err);
    if (code == 0)
        code = wm_block_alloc(device, size, &block, err);
    if (code < 0)
        return code;
    char *memory = wm_block_pointer(block);
    code = wm_stream_acquire(device, &stream, err);
    if (code == 0) {
        code = wm_mail_clear(device, memory, size, stream, err);
        if (code == 0)
            code = wm_stream_synchronize(device, stream, err);
        wm_stream_release(device, stream);
    }
    if (code < 0) {
        wm_block_free(block, 0, NULL, NULL);
        return code;
    }
    for (size_t i = 0; i < BOXES; ++i)
        boxes->boxes[i].pointer = memory + i * WM_MAIL_BOX_BYTES;
    boxes->block = block;
    return 0;
}

int
wm_mailbox_acquire(int device, wm_mailbox_t **box, wm_pointer_t *memory,
                   wm_error_t *err)
{
    boxes_t *boxes = &devices[device];
    *box = NULL;
    int code = boxes->block == NULL ? make(device, boxes, err) : 0;
    if (code < 0)
        return code;
    for (int i = 0; i < BOXES && *box == NULL; ++i)
        if (!boxes->boxes[i].taken)
            *box = &boxes->boxes[i];
    if (*box == NULL)
        return 0;
    (*box)->taken = true;
    ++(*box)->flag;
    wm_block_describe(boxes->block, memory);
    return 0;
}

char *
wm_mailbox_pointer(const wm_mailbox_t *box)
{
    return box->pointer;
}

uint32_t
wm_mailbox_flag(const wm_mailbox_t *box)
{
    return box->flag;
}

void
wm_mailbox_release(wm_mailbox_t *box)
{
    // After the last flag it is not used any more.
    box->taken = box->flag == UINT32_MAX;
}

void
wm_mailbox_free_all(void)
{
    for (int device = 0; device < WM_MAX_DEVICES; ++device) {
        boxes_t *boxes = &devices[device];
        if (boxes->block != NULL)
            wm_block_free(boxes->block, 0, NULL, NULL);
        *boxes = (boxes_t){0};
    }
}

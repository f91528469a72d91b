// SPDX-License-Identifier: BSD-3-Clause
#include "comm/message/packet.h"

#include <pthread.h>
#include <stdlib.h>

#include "cuda/lock.h"

// They live for microseconds: some are kept for the next. Under
// AddressSanitizer none is, so that it sees each one's end.
#ifdef __SANITIZE_ADDRESS__
#define SPARES 0
#else
#define SPARES 160
#endif

#define BYTES (WM_PACKET_BYTES + WM_STATUS_BYTES)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *spares[SPARES + 1];
static int spare_count;

char *
wm_packet_take(void)
{
    char *packet = NULL;
    wm_lock(&lock);
    if (spare_count > 0)
        packet = spares[--spare_count];
    pthread_mutex_unlock(&lock);
    return packet != NULL ? packet : malloc(BYTES);
}

void
wm_packet_give(char *packet)
{
    wm_lock(&lock);
    if (spare_count < SPARES) {
        spares[spare_count++] = packet;
        packet = NULL;
    }
    pthread_mutex_unlock(&lock);
    free(packet);
}

int
wm_packet_take_pinned(char **packet, wm_error_t *err)
{
    return wm_pinned_alloc(BYTES, (void **)packet, err);
}

void
wm_packet_give_pinned(char *packet)
{
    wm_pinned_free(packet);
}

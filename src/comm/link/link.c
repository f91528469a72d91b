// SPDX-License-Identifier: BSD-3-Clause
#include "comm/link/link.h"

#include <stdio.h>
#include <string.h>

#include "comm/engine/engine.h"
#include "comm/engine/modules.h"
#include "cuda/settings.h"

// In order of preference; the last one reaches every peer.
static const wm_link_t *const links[WM_LINKS_KNOWN] = {
#define X(name) &wm_link_##name,
    WM_LINKS(X)
#undef X
};

static const struct {
    wm_stat_t messages, bytes;
} counters[WM_LINKS_KNOWN] = {
#define X(name) {WM_STAT_##name##_messages, WM_STAT_##name##_bytes},
    WM_LINKS(X)
#undef X
};

static const wm_link_t *forced; // WARPMPI_TRANSPORT; NULL: unset
static uint32_t closed;         // bits of links whose open() did not serve

// Before each of the addresses that a rank sends.
typedef struct {
    uint32_t link, nbytes;
} head_t;

static void
forget_memory(uint64_t buffer_id)
{
    for (int i = 0; i < WM_LINKS_KNOWN; ++i)
        if (links[i]->forget_memory != NULL)
            links[i]->forget_memory(buffer_id);
}

// Opens a link; the first time, the engine learns of its functions.
static int
open_one(int link, bool asked, wm_error_t *err)
{
    static bool added[WM_LINKS_KNOWN];
    const wm_source_t *source = &links[link]->source;
    int code = links[link]->open != NULL ? links[link]->open(asked, err) : 0;
    closed &= ~(1u << link);
    if (code > 0)
        closed |= 1u << link;
    if (code > 0 && asked)
        code = wm_error_set(err, WM_ERR_VALUE, 0,
                            "WARPMPI_TRANSPORT=%s: it does not serve in this "
                            "process: unset WARPMPI_TRANSPORT",
                            links[link]->name);
    if (code != 0 || added[link])
        return code < 0 ? code : 0;
    added[link] = true;
    if (links[link]->forget_memory != NULL)
        wm_memory_set_freeing(forget_memory);
    if (source->progress != NULL || source->close != NULL) {
        wm_progress_add(source);
        wm_engine_notify();
    }
    return 0;
}

// Reads WARPMPI_TRANSPORT for a new communicator, and opens the links.
// WM_ERR_VALUE for an unknown name, or if the link that it names cannot serve.
static int
link_configure(wm_error_t *err)
{
    const char *name = wm_setting_text(WM_SETTING_TRANSPORT);
    const wm_link_t *asked = NULL;
    int code = 0;
    forced = NULL;
    for (int i = 0; i < WM_LINKS_KNOWN && name != NULL; ++i)
        if (strcmp(name, links[i]->name) == 0 && links[i] != &wm_link_self)
            asked = links[i];
    if (asked == NULL && name != NULL)
        return wm_setting_refuse(WM_SETTING_TRANSPORT, err);
    for (int i = 0; i < WM_LINKS_KNOWN && code == 0; ++i)
        code = open_one(i, links[i] == asked, err);
    if (code == 0)
        forced = asked;
    return code;
}

size_t
wm_link_addresses(char *into, size_t room)
{
    size_t all = 0;
    for (int i = 0; i < WM_LINKS_KNOWN; ++i) {
        if (links[i]->address == NULL || (closed & 1u << i) != 0)
            continue;
        size_t at = all + sizeof(head_t), left = room > at ? room - at : 0;
        size_t nbytes = links[i]->address(left > 0 ? into + at : NULL, left);
        head_t head = {(uint32_t)i, (uint32_t)nbytes};
        if (nbytes == 0)
            continue;
        all = at + nbytes;
        if (all <= room)
            memcpy(into + at - sizeof head, &head, sizeof head);
    }
    return all;
}

// Connects a link. An error is a reason not to use the link.
static void
connect_one(wm_peer_t *peer, int link, const char *address, size_t nbytes)
{
    wm_error_t err;
    if (links[link]->connect(peer, address, nbytes, &err) < 0)
        wm_peer_refuse(peer, link, err.text);
    else
        peer->connected |= 1u << link;
}

void
wm_link_connect(wm_peer_t *peer, const char *addresses, size_t nbytes)
{
    head_t head;
    if (peer->linked || peer->self)
        return;
    for (size_t at = 0; nbytes - at >= sizeof head; at += head.nbytes) {
        memcpy(&head, addresses + at, sizeof head);
        at += sizeof head;
        if (head.link >= WM_LINKS_KNOWN || head.nbytes > nbytes - at)
            break;
        if (links[head.link]->connect != NULL
            && (closed & 1u << head.link) == 0
            && links[head.link]->address(NULL, 0) > 0)
            connect_one(peer, (int)head.link, addresses + at, head.nbytes);
    }
}

void
wm_link_confirm(wm_peer_t *peer, uint32_t theirs)
{
    for (int i = 0; i < WM_LINKS_KNOWN && !peer->linked && !peer->self; ++i) {
        uint32_t bit = 1u << i;
        if (links[i]->connect == NULL || (peer->connected & theirs & bit) != 0)
            continue;
        if ((peer->connected & bit) != 0) {
            links[i]->disconnect(peer);
            wm_peer_refuse(peer, i, "the peer cannot connect to this process");
        }
        peer->connected &= ~bit;
        char why[64];
        snprintf(why, sizeof why, "not both processes use %s",
                 links[i]->title);
        wm_peer_refuse(peer, i, why);
    }
    peer->linked = true;
}

void
wm_link_peer_died(wm_peer_t *peer)
{
    for (int i = 0; i < WM_LINKS_KNOWN; ++i)
        if (links[i]->died != NULL && (peer->connected & 1u << i) != 0)
            links[i]->died(peer);
}

bool
wm_link_is_asked(const wm_link_t *link)
{
    return forced == link;
}

const wm_link_t *
wm_link_numbered(unsigned number)
{
    return number < WM_LINKS_KNOWN ? links[number] : NULL;
}

unsigned
wm_link_number(const wm_link_t *link)
{
    unsigned number = 0;
    while (links[number] != link)
        ++number;
    return number;
}

// Returns the first link that reaches the peer. The reason of `host` is why
// ipc does not. `offered`: no link that carries.
static const wm_link_t *
first(const wm_peer_t *peer, const wm_pointer_t *into, bool offered,
      const char **reason)
{
    const char *other;
    for (int i = 0; i + 1 < WM_LINKS_KNOWN; ++i) {
        const wm_link_t *one = links[i];
        bool ipc = one == &wm_link_ipc;
        if ((one->send != NULL && offered) || (closed & 1u << i) != 0
            || !one->reach(peer, into, ipc ? reason : &other))
            continue;
        if (!ipc)
            *reason = other;
        return one;
    }
    return links[WM_LINKS_KNOWN - 1];
}

// Returns why a link that carries, and is used here, does not reach the peer,
// so that MPI or the host serves in its place; NULL: there is no such link.
static const char *
link_missed(const wm_peer_t *peer)
{
    const char *why = NULL;
    for (int i = 0; i < WM_LINKS_KNOWN && why == NULL; ++i)
        if (links[i]->send != NULL && (closed & 1u << i) == 0
            && (forced == NULL || forced == links[i]))
            why = peer->refused[i];
    return why;
}

const wm_link_t *
wm_link_tell(const wm_peer_t *peer, const wm_pointer_t *into,
             const char **reason)
{
    if (forced != NULL && !peer->self && forced->reach(peer, into, reason)) {
        *reason = "WARPMPI_TRANSPORT selects it";
        return forced;
    }
    const wm_link_t *found = first(peer, into, wm_node_shares(peer), reason);
    const char *missed = found == &wm_link_host ? link_missed(peer) : NULL;
    if (missed != NULL)
        *reason = missed;
    return found;
}

bool
wm_link_offers(const wm_peer_t *peer, const char **why)
{
    const char *unused;
    bool shares = wm_node_shares(peer);
    bool carried = forced != NULL && forced->send != NULL
                   && forced->reach(peer, NULL, &unused);
    if (!shares)
        *why = peer->refused[WM_LINK_host];
    else if (carried)
        *why = "WARPMPI_TRANSPORT selects a link that carries";
    return shares && !carried;
}

void
wm_link_tell_lacking(const wm_peer_t *peer, size_t room, char *told)
{
    size_t used = 0;
    told[0] = '\0';
    for (int i = 0; i < WM_LINKS_KNOWN && used < room; ++i) {
        const wm_link_t *one = links[i];
        char why[200] = "WARPMPI_TRANSPORT does not select it";
        if (one->tell_lacking == NULL)
            continue;
        if (forced == NULL || forced == one)
            one->tell_lacking(peer, sizeof why, why);
        used += (size_t)snprintf(told + used, room - used, "%s%s: %s",
                                 used > 0 ? "; " : "", one->name, why);
    }
}

const wm_link_t *
wm_link_for_offer(const wm_peer_t *peer, const wm_pointer_t *into)
{
    const char *unused;
    if (forced != NULL && forced->send == NULL
        && forced->reach(peer, into, &unused))
        return forced;
    return first(peer, into, true, &unused);
}

const wm_link_t *
wm_link_carrier(const wm_peer_t *peer, const wm_pointer_t *memory)
{
    const char *unused;
    for (int i = 0; i < WM_LINKS_KNOWN; ++i)
        if (links[i]->send != NULL && links[i] != &wm_link_mpi
            && (closed & 1u << i) == 0
            && (forced == NULL || forced == links[i])
            && links[i]->reach(peer, memory, &unused))
            return links[i];
    return &wm_link_mpi;
}

const wm_link_t *
wm_link_accessor(const wm_peer_t *peer)
{
    const char *unused;
    for (int i = 0; i < WM_LINKS_KNOWN; ++i)
        if (links[i]->access != NULL && (closed & 1u << i) == 0
            && (peer->connected & 1u << i) != 0
            && (forced == NULL || forced == links[i])
            && links[i]->reach(peer, NULL, &unused))
            return links[i];
    return NULL;
}

bool
wm_link_maps(const wm_peer_t *peer)
{
    return (forced == NULL || forced->import != NULL)
           && peer->refused[WM_LINK_ipc] == NULL;
}

void
wm_link_count(const wm_link_t *link, uint64_t nbytes, bool staged)
{
    unsigned number = wm_link_number(link);
    wm_stat_add(counters[number].messages, 1);
    wm_stat_add(counters[number].bytes, (int64_t)nbytes);
    if (staged)
        wm_stat_add(WM_STAT_staged_bytes, (int64_t)nbytes);
}

const wm_module_t wm_link_module = {.configure = link_configure};

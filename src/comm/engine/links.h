// SPDX-License-Identifier: BSD-3-Clause
// The links (link/link.h) in order of preference. Each name is that of a row,
// wm_link_<name>, of the link's number, WM_LINK_<name>, and of two counters of
// wm.stats(), <name>_messages and <name>_bytes.
#ifndef WM_COMM_ENGINE_LINKS_H
#define WM_COMM_ENGINE_LINKS_H

#ifdef WM_TOYS // tests/toys
#define WM_TOY_LINKS(X) X(file)
#else
#define WM_TOY_LINKS(X)
#endif

#define WM_LINKS(X)                                                           \
    X(self) /* a rank to itself on the GPU */                                 \
    X(ipc)  /* GPU to GPU, by mapped memory */                                \
    WM_TOY_LINKS(X)                                                           \
    X(ucx)  /* by UCX, between hosts */                                       \
    X(mpi)  /* by MPI alone */                                                \
    X(host) /* with a GPU buffer, staged in host memory */

enum {
#define X(name) WM_LINK_##name,
    WM_LINKS(X)
#undef X
        WM_LINKS_KNOWN,
};

#endif

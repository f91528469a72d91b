// SPDX-License-Identifier: BSD-3-Clause
// The build includes this before every file where the C library is glibc, on
// x86-64. Functions to which glibc 2.32 and 2.34 gave a new version, though
// nothing about them changed, are taken in the version that glibc 2.28 has, so
// that a wheel runs there, too. Includes nothing: feature macros come later.
#ifndef WM_CUDA_GLIBC_H
#define WM_CUDA_GLIBC_H

#define WM_OLD(name, version)                                                 \
    __asm__(".symver " #name ", " #name "@GLIBC_" #version);
WM_OLD(dlclose, 2.2.5)
WM_OLD(dlerror, 2.2.5)
WM_OLD(dlinfo, 2.3.3)
WM_OLD(dlopen, 2.2.5)
WM_OLD(dlsym, 2.2.5)
WM_OLD(pthread_condattr_setclock, 2.3.3)
WM_OLD(pthread_create, 2.2.5)
WM_OLD(pthread_detach, 2.2.5)
WM_OLD(pthread_join, 2.2.5)
WM_OLD(pthread_mutex_trylock, 2.2.5)
WM_OLD(pthread_once, 2.2.5)
WM_OLD(pthread_setname_np, 2.12)
WM_OLD(pthread_sigmask, 2.2.5)
WM_OLD(sem_init, 2.2.5)
WM_OLD(sem_post, 2.2.5)
WM_OLD(sem_timedwait, 2.2.5)
WM_OLD(sem_wait, 2.2.5)

#endif

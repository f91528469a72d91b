// SPDX-License-Identifier: BSD-3-Clause
// Lets MPI see to what it has under way, where nothing of ours asks it.
#ifndef WM_COMM_ENGINE_POKE_H
#define WM_COMM_ENGINE_POKE_H

void
wm_poke_begin(void); // while MPI runs, before the first poke
void
wm_poke_end(void);

void
wm_poke_mpi(void);

#endif

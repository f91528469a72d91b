// SPDX-License-Identifier: BSD-3-Clause
// The setting WARPMPI_CHECK: ranks compare their arguments of a message or a
// collective. Any thread.
#ifndef WM_COMM_ENGINE_CHECK_H
#define WM_COMM_ENGINE_CHECK_H

#include <stdbool.h>

// Returns true if WARPMPI_CHECK is set, to something but 0. Read once. If it
// is not the same on all ranks of a communicator, making the communicator
// fails.
bool
wm_check_wanted(void);

#endif

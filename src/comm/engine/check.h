// SPDX-License-Identifier: BSD-3-Clause
// Whether what the ranks say of the same message or collective is compared.
// Any thread.
#ifndef WM_COMM_ENGINE_CHECK_H
#define WM_COMM_ENGINE_CHECK_H

#include <stdbool.h>

// Whether WARPMPI_CHECK asks for it: it is set, to something but 0. Read once;
// the same on all ranks of a communicator, or making it fails.
bool
wm_check_wanted(void);

#endif

# SPDX-License-Identifier: BSD-3-Clause
"""The NVLinks of a GPU, by NVML. Runs in a child process, which may crash.

NVML comes with the NVIDIA driver; the CUDA driver does not count links.
"""

from __future__ import annotations

import ctypes

SWITCH = "a switch"
# Numbers of nvml.h.
_MOST, _SWITCH_TYPE = 18, 2


class _Pci(ctypes.Structure):
    _fields_ = [
        ("legacy", ctypes.c_char * 16),
        ("numbers", ctypes.c_uint * 5),
        ("address", ctypes.c_char * 32),
    ]


def place(address: str) -> str:
    """Return a PCI address as CUDA writes it; NVML's domain is longer."""
    return address[-12:].lower()


def links(uuid: str, library: str = "libnvidia-ml.so.1") -> dict[str, int]:
    """Return the number of a GPU's active links by what they lead to.

    They lead to the place() of another GPU, or to SWITCH. Empty if NVML does
    not tell.
    """
    told: dict[str, int] = {}
    try:
        nvml = ctypes.CDLL(library)
        device = ctypes.c_void_p()
        if nvml.nvmlInit_v2() != 0 or nvml.nvmlDeviceGetHandleByUUID(
            uuid.encode(), ctypes.byref(device)
        ):
            return told
        for link in range(_MOST):
            active, kind, pci = ctypes.c_int(), ctypes.c_int(), _Pci()
            asked = (
                (nvml.nvmlDeviceGetNvLinkState, active),
                (nvml.nvmlDeviceGetNvLinkRemoteDeviceType, kind),
                (nvml.nvmlDeviceGetNvLinkRemotePciInfo_v2, pci),
            )
            failed = any(
                ask(device, link, ctypes.byref(into)) for ask, into in asked
            )
            if failed or not active.value:
                continue
            end = place(pci.address.decode())
            end = SWITCH if kind.value == _SWITCH_TYPE else end
            told[end] = told.get(end, 0) + 1
    except (OSError, AttributeError):  # no such library, or an old one
        return {}
    return told

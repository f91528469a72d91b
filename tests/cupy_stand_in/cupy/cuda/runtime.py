# SPDX-License-Identifier: BSD-3-Clause
"""What runs underneath the stand-in for CuPy."""

is_hip = False


def getDeviceCount():
    import warpmpi

    return warpmpi.get_cuda_device_count()

# SPDX-License-Identifier: BSD-3-Clause
"""Programs that ask the environment whether their MPI knows CUDA get yes.

os.environ answers a look-up of these names, if the program has not set them.
The process's environment does not have them, and no list or copy of
os.environ: MPI itself and started processes never see them, for which they
could be wrong.
"""

from __future__ import annotations

import os

# By whom they are asked for: tike, ptypy, Sagesim; heat; serinv; PyLops-MPI;
# FBPIC.
_answers = {
    "OMPI_MCA_opal_cuda_support": "true",
    "MV2_USE_CUDA": "1",
    "MPI_CUDA_AWARE": "1",
    "PYLOPS_MPI_CUDA_AWARE": "1",
    "FBPIC_ENABLE_GPUDIRECT": "1",
}


class _Answering(os._Environ[str]):
    def __getitem__(self, key: str) -> str:
        try:
            return super().__getitem__(key)
        except KeyError:
            if key not in _answers:
                raise
        return _answers[key]

    def __delitem__(self, key: str) -> None:
        answered = _answers.pop(key, None) is not None
        try:
            super().__delitem__(key)
        except KeyError:
            if not answered:
                raise


def answer() -> None:
    """Begin to answer; os.environ stays the same object."""
    if type(os.environ) is os._Environ:  # not the program's own
        os.environ.__class__ = _Answering

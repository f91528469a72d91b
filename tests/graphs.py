# SPDX-License-Identifier: BSD-3-Clause
"""CUDA graphs by the driver itself, real or simulated."""

import contextlib
import ctypes
import sys

import kinds
import warpmpi as wm

GLOBAL, THREAD_LOCAL, RELAXED = range(3)


def call(name, *arguments):
    result = getattr(kinds.driver(), name)(*arguments)
    assert result == 0, (name, result)


def handle(stream):
    return ctypes.c_void_p(stream.cuda_stream)


def wait_for(stream, other):
    """A stream waits for another, also in a capture."""
    event = ctypes.c_void_p()
    with kinds.Current(stream.device):
        call("cuEventCreate", ctypes.byref(event), 2)
        call("cuEventRecord", event, handle(other))
        call("cuStreamWaitEvent", handle(stream), event, 0)
        call("cuEventDestroy_v2", event)


@contextlib.contextmanager
def blocking_stream(device):
    """One that the default stream is ordered with, as wm.Stream's are not."""
    created = ctypes.c_void_p()
    with kinds.Current(device):
        call("cuStreamCreate", ctypes.byref(created), 0)
    yield wm.Stream(device, cuda_stream=created.value)
    with kinds.Current(device):
        call("cuStreamDestroy_v2", created)


@contextlib.contextmanager
def relaxed():
    """The thread may call what could interfere with a capture."""
    mode = ctypes.c_int(RELAXED)
    call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    yield
    call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))


class Graph:
    """What a stream was given in a capture, to be launched on streams."""

    def __init__(self, device, graph):
        self.device, self.exec = device, ctypes.c_void_p()
        with kinds.Current(device):
            call(
                "cuGraphInstantiateWithFlags",
                ctypes.byref(self.exec),
                graph,
                ctypes.c_ulonglong(0),
            )
            call("cuGraphDestroy", graph)

    def launch(self, stream):
        with kinds.Current(self.device):
            call("cuGraphLaunch", self.exec, handle(stream))

    def free(self):
        with kinds.Current(self.device):
            call("cuGraphExecDestroy", self.exec)


def usual_mode():
    """CUDA's default, but where JAX would end it.

    A thread of JAX's asks every 5 s whether its streams are idle (measured,
    0.11.2 on an H100), which no thread may while one captures in that mode.
    """
    return THREAD_LOCAL if "jax" in sys.modules else GLOBAL


def begin(stream, mode=None):
    mode = usual_mode() if mode is None else mode
    with kinds.Current(stream.device):
        call("cuStreamBeginCapture_v2", handle(stream), mode)


def end(stream):
    """CUDA's result, and the graph's handle."""
    graph = ctypes.c_void_p()
    with kinds.Current(stream.device):
        result = kinds.driver().cuStreamEndCapture(
            handle(stream), ctypes.byref(graph)
        )
    return result, graph


@contextlib.contextmanager
def spoilt(stream):
    """In a capture that fails: nobody can wait for what is only captured."""
    with kinds.uncollected():
        begin(stream, THREAD_LOCAL)
        with kinds.Current(stream.device):
            assert kinds.driver().cuStreamSynchronize(handle(stream)) != 0
        yield
        assert end(stream)[0] != 0


@contextlib.contextmanager
def capture(stream, mode=None):
    """Gives a list with the Graph in it, once the capture has ended."""
    made = []
    with kinds.uncollected():
        begin(stream, mode)
        try:
            yield made
        except BaseException:
            end(stream)
            raise
        result, graph = end(stream)
    assert result == 0, result
    made.append(Graph(stream.device, graph))

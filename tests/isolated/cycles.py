# SPDX-License-Identifier: BSD-3-Clause
"""Objects that refer to each other are collected, memory and all."""

import gc
import time
import weakref

import numpy as np
from counts import stay_flat
from mpi4py import MPI

import warpmpi as wm

comm = wm.Comm(MPI.COMM_WORLD)
device = wm.get_device()
other = 1 - comm.rank
SIZE = 20_000


class Field:
    """Others' GPU memory, with attributes."""

    def __init__(self):
        self.memory = wm.zeros(SIZE, np.uint8, device=device)

    @property
    def __cuda_array_interface__(self):
        return self.memory.__cuda_array_interface__


class Buffer(bytearray):
    """Host memory with attributes."""


class Stream:
    """Others' stream, with attributes."""

    def __init__(self):
        self.own = wm.Stream(device)

    def __cuda_stream__(self):
        return 0, self.own.cuda_stream


def field_and_array():
    field = Field()
    field.array = wm.asarray(field)
    return field


def field_and_views():
    field = Field()
    array = wm.asarray(field)
    field.views = [array, array[10:], array[10:].reshape(-1, 10).T]
    return field


def field_and_a_view_alone():
    field = Field()
    field.view = wm.asarray(field)[10:]
    return field


def buffer_and_array():
    buffer = Buffer(SIZE)
    buffer.array = wm.asarray(buffer)
    return buffer


def persistent():
    field = Field()
    field.request = comm.Send_init(field, other)
    return field


def persistent_of_an_array():
    field = Field()
    field.array = wm.asarray(field)
    field.requests = [
        comm.Send_init(field.array, other),
        comm.Recv_init([field.array[1:], SIZE - 1], other),
    ]
    return field


def persistent_of_a_buffer():
    buffer = Buffer(SIZE)
    buffer.request = comm.Send_init(buffer, other)
    return buffer


def persistent_that_was_used():
    field = Field()
    field.requests = [
        comm.Recv_init(wm.zeros(SIZE, np.uint8, device=device), other, 1),
        comm.Send_init(field, other, 1),
    ]
    wm.Prequest.Startall(field.requests)
    wm.Request.Waitall(field.requests)
    return field


def partitioned():
    field = Field()
    field.request = comm.Psend_init(field, 2, other)
    return field


def sent_and_waited_for_by_mpi():
    field = Field()
    field.requests = [
        comm.Irecv(wm.zeros(SIZE, np.uint8, device=device), other, 2),
        comm.Isend(field, other, 2),
    ]
    MPI.Request.Waitall(field.requests)
    return field


def exchanged_and_not_waited_for():
    field, into = Field(), Field()
    field.request = comm.Isendrecv(field, other, 3, into, other, 3)
    into.field = field
    return field


def channel():
    stream = Stream()
    stream.channel = comm.on(stream)
    return stream


def persistent_on_a_stream():
    stream = Stream()
    array = wm.zeros(SIZE, np.uint8, device=device)
    stream.request = comm.on(stream).Send_init(array, other)
    return stream


def communicator():
    own = comm.Dup()
    own.channel = own.on(wm.Stream(device))
    own.Free()
    return own


def matched():
    own = wm.Comm(MPI.COMM_SELF)
    while own.Iprobe(tag=5):  # given back by the one before
        own.Recv(bytearray(8), tag=5)
    own.Send(b"x", 0, 5)
    own.message = own.Mprobe(tag=5)
    return own


def object_received():
    own = wm.Comm(MPI.COMM_SELF)
    own.request = own.irecv(tag=6)
    own.send(b"x" * SIZE, 0, 6)
    return own


MAKERS = [
    field_and_array,
    field_and_views,
    field_and_a_view_alone,
    persistent,
    persistent_of_an_array,
    persistent_that_was_used,
    partitioned,
    sent_and_waited_for_by_mpi,
    exchanged_and_not_waited_for,
    channel,
    persistent_on_a_stream,
    communicator,
]
if not device.is_cuda:
    MAKERS = []
MAKERS += [buffer_and_array, persistent_of_a_buffer]
MAKERS += [matched, object_received]


def collect(make, left):
    end = time.monotonic() + 5  # what is under way ends first
    while left() is not None:
        if time.monotonic() > end:
            raise AssertionError(f"{make.__name__}: not collected")
        comm.Iprobe()
        gc.collect()


def turn(i):
    for make in MAKERS:
        collect(make, weakref.ref(make()))
    comm.Barrier()


# What is in use is not collected.
gc.freeze()  # all the rest need not be looked at again and again
for make in MAKERS:
    held = make()
    before = len(gc.get_referents(held.__dict__))
    gc.collect()
    assert len(gc.get_referents(held.__dict__)) == before > 0
    del held
comm.Barrier()
stay_flat(turn, 20)
comm.Barrier()

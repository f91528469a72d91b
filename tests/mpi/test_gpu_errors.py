# SPDX-License-Identifier: BSD-3-Clause
"""A kernel of one rank's user ends his context: its peer hears of it."""

import pytest

import ranks
import warpmpi as wm

pytestmark = [
    pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU"),
    pytest.mark.programs,
]

PROGRAM = r"""
    import ctypes, os, sys
    import numpy as np
    from mpi4py import MPI
    import warpmpi as wm

    # Writes a byte to an address after some 20 ms. The simulated driver has a
    # kernel of that name, and takes no notice of the text.
    KERNEL = b'''
    .version 7.0
    .target sm_70
    .address_size 64
    .visible .entry sim_fill_u8(.param .align 8 .b8 p[32])
    {
        .reg .pred %p;
        .reg .b64 %a, %start, %now;
        .reg .b32 %v;
        ld.param.u64 %a, [p];
        mov.u64 %start, %globaltimer;
    again:
        mov.u64 %now, %globaltimer;
        sub.u64 %now, %now, %start;
        setp.lt.u64 %p, %now, 20000000;
        @%p bra again;
        mov.u32 %v, 7;
        st.global.u8 [%a], %v;
        ret;
    }
    '''


    def crash(stream):
        '''An illegal address in a kernel on it.'''
        cuda = ctypes.CDLL(
            os.environ.get("WARPMPI_CUDA_DRIVER", "libcuda.so.1"))
        module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        values = (ctypes.c_uint64 * 4)(16, 7, 1, 20_000)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(values))
        context, device = ctypes.c_void_p(), ctypes.c_int()
        for result in (
            cuda.cuDeviceGet(ctypes.byref(device), stream.device.ordinal),
            cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
            cuda.cuCtxPushCurrent_v2(context),
            cuda.cuModuleLoadData(ctypes.byref(module), KERNEL),
            cuda.cuModuleGetFunction(
                ctypes.byref(kernel), module, b"sim_fill_u8"),
            cuda.cuLaunchKernel(
                kernel, 1, 1, 1, 1, 1, 1, 0,
                ctypes.c_void_p(stream.cuda_stream), parameters, None),
            cuda.cuCtxPopCurrent_v2(ctypes.byref(context)),
        ):
            assert result == 0, result


    how, size = sys.argv[1], int(sys.argv[2])
    world, comm = MPI.COMM_WORLD, wm.Comm(MPI.COMM_WORLD)
    stream = wm.Stream(wm.get_device())
    array = wm.zeros(size, np.uint8, device=stream.device)
    channel = comm.on(stream)
    ways = {
        "stream": (channel.Send, channel.Recv),
        "to": (comm.Send, channel.Recv),
        "from": (channel.Send, comm.Recv),
        "plain": (comm.Send, comm.Recv),
        "host": (comm.Send, lambda _, *a: comm.Recv(np.zeros(size, "u1"), *a)),
        "receiver": (channel.Send, channel.Recv),
        "requests": (lambda *a: comm.Isend(*a).Wait(),
                     lambda *a: comm.Irecv(*a).Wait()),
    }
    send, receive = ways[how]
    for _ in range(2):
        send(array, 1) if comm.rank == 0 else receive(array, 0)
        stream.synchronize()
    world.Barrier()
    host = np.zeros(1)
    error = None
    if how == "receiver":  # whose error it is; the sender's stream goes on
        try:
            if comm.rank == 0:
                send(array, 1)
                world.Recv(host, 1)
                stream.synchronize()
                raise SystemExit
            crash(stream)
            receive(array, 0)
            stream.synchronize()
        except wm.CudaError as raised:
            error = raised
        if comm.rank == 1:
            world.Send(host, 0)
    elif comm.rank == 0:
        try:
            crash(stream)
            if how in ("plain", "to", "requests", "host"):
                array.fill_(1, stream=stream)  # its producer
            send(array, 1)
            stream.synchronize()
        except wm.CudaError as raised:
            error = raised
        world.Recv(host, 1)
    else:
        try:
            receive(array, 0)
            # It had returned: the error comes with the next message.
            try:
                stream.synchronize()
            except wm.CudaError:
                raise SystemExit("the receiver's own context is lost")
            for _ in range(1000):
                comm.Iprobe(0, 77)
            comm.Send(host, MPI.PROC_NULL)
        except wm.CudaError as raised:
            error = raised
        world.Send(host, 0)
    assert error is not None, "no error"
    print(comm.rank, str(error), flush=True)
"""


WAYS = (
    ("stream", 1000),
    ("stream", 1_000_000),
    ("from", 1000),
    ("to", 1_000_000),
    ("plain", 1000),
    ("requests", 1_000_000),
    ("host", 1_000_000),
    ("receiver", 1_000_000),
)


@pytest.mark.parametrize("how, size", WAYS)
def test_both_ends_hear_of_it(tmp_path, how, size):
    printed = ranks.run_text(tmp_path, PROGRAM, how, size, timeout=60)
    told = 1 if how == "receiver" else 2
    assert printed.count("CUDA_ERROR_ILLEGAL_ADDRESS") == told, printed

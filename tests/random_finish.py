# SPDX-License-Identifier: BSD-3-Clause
"""Requests waited for in any order, by any of the calls that wait."""

import time

from mpi4py import MPI

import warpmpi as wm


def loop(call):
    """Calls until the result is true, and returns it."""
    while not (result := call()):
        time.sleep(0)
    return result


def finish(items, local):
    """Ends requests; items: (request, what to call with its status)."""
    items = list(items)
    local.shuffle(items)
    while items:
        some = [items.pop() for _ in range(min(len(items), _length(local)))]
        local.choice(WAYS)(some, local)


def _length(local):
    return int(1 + local.random() ** 2 * 40)


def _kind(local):
    own = MPI.Query_thread() < MPI.THREAD_MULTIPLE  # MPI's waits would hang
    return wm.Request if own else local.choice((MPI.Request, wm.Request))


def _statuses(count):
    return [MPI.Status() for _ in range(count)]


def _waitall(items, local):
    statuses = _statuses(len(items))
    _kind(local).Waitall([request for request, _ in items], statuses)
    for (_, done), status in zip(items, statuses, strict=True):
        done(status)


def _wait(items, local):
    for request, done in items:
        status = MPI.Status()
        request.Wait(status)
        done(status)


def _test(items, local):
    while items:
        left = []
        for request, done in items:
            status = MPI.Status()
            if request.Test(status):
                done(status)
            else:
                left.append((request, done))
        items = left
        time.sleep(0)


def _get_status(items, local):
    for request, done in items:
        status = MPI.Status()
        loop(lambda request=request: request.Get_status())
        request.Wait(status)
        done(status)


def _waitany(items, local):
    requests = [request for request, _ in items]
    kind = _kind(local)
    for _ in items:
        status = MPI.Status()
        index = kind.Waitany(requests, status)
        items[index][1](status)
    assert kind.Waitany(requests) == MPI.UNDEFINED


def _testany(items, local):
    requests = [request for request, _ in items]
    kind, left = _kind(local), len(items)
    while left:
        status = MPI.Status()
        index, flag = kind.Testany(requests, status)
        if flag:
            items[index][1](status)
            left -= 1
        else:
            time.sleep(0)


def _some(name):
    def wait(items, local):
        requests = [request for request, _ in items]
        call, left = getattr(_kind(local), name), len(items)
        while left:
            statuses = _statuses(len(items))
            indices = call(requests, statuses)
            for index, status in zip(indices, statuses, strict=False):
                items[index][1](status)
            left -= len(indices)
            time.sleep(0)

    return wait


def _testall(items, local):
    statuses = _statuses(len(items))
    requests = [request for request, _ in items]
    kind = _kind(local)
    loop(lambda: kind.Testall(requests, statuses))
    for (_, done), status in zip(items, statuses, strict=True):
        done(status)


WAYS = (
    _waitall,
    _wait,
    _test,
    _get_status,
    _waitany,
    _testany,
    _some("Waitsome"),
    _some("Testsome"),
    _testall,
)

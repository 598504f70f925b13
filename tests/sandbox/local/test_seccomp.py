"""The system call filter, call by call, as a program in a jail meets it."""

import errno
import json
import socket

import pytest

from turngym.sandbox.limits import Limits
from turngym.sandbox.local import seccomp
from turngym.sandbox.local.backend import LocalSandbox
from turngym.sandbox.local.kernel import MACHINE

COLUMN = ["x86_64", "aarch64"].index(MACHINE)
TRIES = """
import ctypes, json, sys
libc = ctypes.CDLL(None, use_errno=True)

def attempt(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(number, *[ctypes.c_long(argument) for argument in (*arguments, *[0] * (6 - len(arguments)))])
    return ctypes.get_errno() if result < 0 else "done"

print(json.dumps([attempt(*call) for call in json.loads(sys.stdin.read())]))
"""


@pytest.fixture
async def sandbox():
    async with LocalSandbox(num_workers=1) as sandbox:
        yield sandbox


async def outcomes(sandbox, calls, **limits):
    result = await sandbox.run(TRIES, stdin=json.dumps(calls).encode(), limits=Limits(**limits))
    assert result.ended == "ok", result
    return json.loads(result.out)


async def test_every_refused_call_is_refused(sandbox):
    calls = {name: numbers[COLUMN] for name, numbers in seccomp._REFUSED.items() if numbers[COLUMN] is not None}
    assert len(calls) >= 75
    found = await outcomes(sandbox, [[number] for number in calls.values()])
    assert dict(zip(calls, found, strict=True)) == dict.fromkeys(calls, errno.EPERM)


async def test_what_is_special(sandbox):
    clone, clone3, open_socket, unshare = (
        numbers[COLUMN] for numbers in (seccomp._CLONE, seccomp._CLONE3, seccomp._SOCKET, seccomp._UNSHARE)
    )
    calls = {
        "a clone into a user namespace": ([clone, 0x10000000 | 17], errno.EPERM),
        "a clone into a time namespace": ([unshare, 0x80], errno.EPERM),
        "unsharing files, which is harmless": ([unshare, 0x400], errno.EPERM),
        "clone3": ([clone3, 0, 0], errno.ENOSYS),
        **{
            f"a socket of family {family}": ([open_socket, family, 1], errno.EACCES)
            for family in (1, 2, 10, 16, 17, 40)
        },
    }
    found = await outcomes(sandbox, [call for call, _ in calls.values()])
    assert dict(zip(calls, found, strict=True)) == {name: error for name, (_, error) in calls.items()}


async def test_the_jails_init_is_out_of_reach_and_oneself_is_not(sandbox):
    numbers = {name: numbers[COLUMN] for name, (numbers, _) in seccomp._OF_INIT.items()}
    of_init = {
        "prlimit64": [1, 7, 0, 0],
        "sched_setaffinity": [1, 8, 0],
        "sched_setparam": [1, 0],
        "sched_setscheduler": [1, 0, 0],
        "sched_setattr": [1, 0, 0],
        "ioprio_set": [1, 1, 0],
        "setpriority": [0, 1, 19],
    }
    assert set(of_init) == set(numbers)
    found = await outcomes(sandbox, [[numbers[name], *arguments] for name, arguments in of_init.items()])
    assert found == [errno.EPERM] * len(of_init)
    own = [[numbers["prlimit64"], 0, 7, 0, 0], [numbers["setpriority"], 0, 0, 5]]
    assert await outcomes(sandbox, own) == ["done", "done"]


async def test_with_network_only_the_internets_sockets_are_to_be_had(sandbox):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2).sendall(b'x'); print('sent')"
        assert (await sandbox.run(code)).ended == "nonzero"
        allowed = await sandbox.run(code, limits=Limits(allow_network=True))
        assert allowed.out == b"sent\n", allowed
    open_socket = seccomp._SOCKET[COLUMN]
    families = range(70)
    found = await outcomes(sandbox, [[open_socket, family, 1] for family in families], allow_network=True)
    assert [family for family, outcome in zip(families, found, strict=True) if outcome != errno.EACCES] == [2, 10]

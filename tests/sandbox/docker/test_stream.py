"""The connection to a runner, with a runner that is a few lines in the test."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator

import pytest

from turngym.errors import ProgramError, SandboxError
from turngym.sandbox.docker.inside.frames import FrameError, Unpacker, pack
from turngym.sandbox.docker.stream import Channel, ChannelError, SilentError


def docker_piece(data: bytes, stream: int = 1) -> bytes:
    return struct.pack(">BxxxI", stream, len(data)) + data


class Far:
    """The other end of a channel."""

    def __init__(self, channel: Channel, sock: socket.socket) -> None:
        self.channel = channel
        self.sock = sock
        self._unpacker = Unpacker(1 << 20)

    async def next_request(self) -> tuple[dict[str, object], bytes]:
        while True:
            data = await asyncio.get_running_loop().sock_recv(self.sock, 1 << 16)
            for frame in self._unpacker.feed(data):
                return frame

    def say(self, data: bytes) -> None:
        self.sock.sendall(data)


@pytest.fixture
async def far() -> AsyncIterator[Far]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    channel = Channel()
    await asyncio.get_running_loop().create_connection(lambda: channel, sock=ours)
    yield Far(channel, theirs)
    channel.close()
    theirs.close()


def test_frames_in_pieces_of_any_size() -> None:
    frames = [({"id": 1, "text": "ä"}, b""), ({"id": 2}, bytes(range(256))), ({}, b"x")]
    data = b"".join(pack(*frame) for frame in frames)
    assert pack({"a": 1}, b"xyz") == b'\0\0\0\x08\0\0\0\x03{"a": 1}xyz'
    for size in (1, 3, 7, len(data)):
        unpacker = Unpacker(1000)
        pieces = [data[start : start + size] for start in range(0, len(data), size)]
        assert [frame for piece in pieces for frame in unpacker.feed(piece)] == frames


@pytest.mark.parametrize("data", [b"\0\0\1\0\0\0\0\0", b"\0\0\0\2\0\0\0\0[]", b"\0\0\0\2\0\0\0\0{]", b"\xff" * 8])
def test_what_is_no_frame(data: bytes) -> None:
    with pytest.raises(FrameError):
        list(Unpacker(100).feed(data))


async def test_replies_find_their_calls_in_any_order(far: Far) -> None:
    first = asyncio.create_task(far.channel.call("a", b"blob", deadline_s=5, x=1))
    assert await far.next_request() == ({"id": 1, "op": "a", "x": 1}, b"blob")
    second = asyncio.create_task(far.channel.call("b", deadline_s=5))
    await far.next_request()
    far.say(docker_piece(pack({"id": 2, "is_last": False}, b"one ")))
    far.say(docker_piece(pack({"id": 1, "is_last": True, "y": 2})))
    far.say(docker_piece(pack({"id": 2, "is_last": True}, b"two")))
    assert await first == ({"id": 1, "is_last": True, "y": 2}, b"")
    assert (await second)[1] == b"one two"


async def test_refusals_and_failures(far: Far) -> None:
    for head, error in (({"refused": "no such file"}, ProgramError), ({"failed": "Traceback"}, SandboxError)):
        task = asyncio.create_task(far.channel.call("a", deadline_s=5))
        request, _ = await far.next_request()
        far.say(docker_piece(pack({"id": request["id"], "is_last": True, **head})))
        with pytest.raises(error, match=next(iter(head.values()))):
            await task
    assert far.channel.is_open


async def test_silence_and_late_replies(far: Far) -> None:
    with pytest.raises(SilentError, match=r"did not answer 'a' within 0.05 s"):
        await far.channel.call("a", deadline_s=0.05)
    await far.next_request()
    far.say(docker_piece(pack({"id": 1, "is_last": True})))  # too late, and of no harm
    task = asyncio.create_task(far.channel.call("b", deadline_s=5))
    await far.next_request()
    far.say(docker_piece(pack({"id": 2, "is_last": True})))
    assert (await task)[0]["id"] == 2


@pytest.mark.parametrize(
    "data",
    [
        docker_piece(b"\xff" * 8),
        docker_piece(b"\0\0\0\2\0\0\0\0[]"),
        docker_piece(b"x", stream=3),
        struct.pack(">BxxxI", 1, 1 << 30),
        docker_piece(pack({"id": 1, "is_last": False}, bytes(200_000))) * 10,
    ],
    ids=["too long", "no object", "no such stream", "no such piece", "too much"],
)
async def test_a_broken_protocol_ends_the_connection(far: Far, data: bytes) -> None:
    closed = asyncio.Event()
    far.channel.on_close = closed.set
    task = asyncio.create_task(far.channel.call("a", deadline_s=5, max_reply_bytes=100_000))
    await far.next_request()
    far.sock.setblocking(True)
    with contextlib.suppress(OSError):  # it is closed as soon as enough has come
        await asyncio.to_thread(far.sock.sendall, data)
    with pytest.raises(ChannelError, match="broke the protocol"):
        await task
    assert closed.is_set()
    assert not far.channel.is_open
    with pytest.raises(ChannelError, match="broke the protocol"):
        await far.channel.call("b", deadline_s=5)


async def test_a_connection_that_ends_tells_what_the_runner_said(far: Far) -> None:
    task = asyncio.create_task(far.channel.call("a", deadline_s=5))
    await far.next_request()
    far.say(docker_piece(b"Traceback: why", stream=2))
    far.sock.close()
    with pytest.raises(ChannelError, match="Traceback: why"):
        await task

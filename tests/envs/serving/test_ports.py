"""The port that a server listens on is taken at once, and its answers are sent at once."""

import asyncio
import socket

import pytest

from turngym.envs.serving.ports import bound_socket
from turngym.errors import ConfigError


async def test_small_answers_are_not_held_back():
    """Without this an answer in two pieces waits for the client's delayed acknowledgement of the first."""
    accepted = asyncio.get_running_loop().create_future()

    async def answer(reader, writer) -> None:
        accepted.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    with bound_socket("127.0.0.1", 0) as listener:
        server = await asyncio.start_server(answer, sock=listener)
        async with server, asyncio.timeout(60):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            assert await accepted
            writer.close()


def test_a_port_that_is_taken_is_named():
    with bound_socket("127.0.0.1", 0) as listener:
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on --host 127.0.0.1 --port {port}"):
            bound_socket("127.0.0.1", port)
    with pytest.raises(ConfigError, match="--port must lie between"):
        bound_socket("127.0.0.1", 65536)

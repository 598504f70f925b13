"""A model's interpreter: what it is told, and that nothing stays behind."""

import asyncio
import os
import signal

import pytest

from turngym.envs.builtin.tool_session import SandboxChoice, ToolSession
from turngym.errors import ConfigError, ForkRefusedError, SandboxError, SandboxLostError, UnknownNameError
from turngym.sandbox.base import Sandbox
from turngym.sandbox.limits import Limits
from turngym.sandbox.local.backend import LocalSandbox

from ..unsafe_sandbox import UnsafeSandbox


def tool(sandbox: str, wall_s: float = 10.0, max_output_chars: int = 2000) -> ToolSession:
    return ToolSession(SandboxChoice(sandbox), Limits(wall_s=wall_s), max_output_chars)


@pytest.mark.slow
async def test_what_the_model_is_told(sandbox: Sandbox) -> None:
    session = tool("local", wall_s=1.0, max_output_chars=200)
    assert await session.run_cell("x = 41\nprint('hi')\nx + 1") == "hi\n42"
    assert await session.run_cell("x") == "41"
    assert await session.run_cell("y = 1") == "(no output)"
    assert (await session.run_cell("1 / 0")).endswith("ZeroDivisionError: division by zero")
    assert (await session.run_cell("")).startswith("Nothing was run: wanted")
    assert len(await session.run_cell("print('x' * 5000)")) < 210
    assert "It took longer than 1 s and was stopped." in await session.run_cell("while True: pass")
    await session.close()


@pytest.mark.slow
async def test_an_interpreter_that_ends_is_started_anew(sandbox: Sandbox) -> None:
    session = tool("local")
    await session.run_cell("x = 1")
    said = await session.run_cell("import os; os._exit(0)")
    assert said.endswith("It ended the interpreter.\nThe interpreter was started anew: variables and files are gone.")
    assert "NameError" in await session.run_cell("x")
    later = "import os, threading, time\nthreading.Thread(target=lambda: (time.sleep(0.1), os._exit(0))).start()"
    await session.run_cell(later)
    await asyncio.sleep(0.4)
    assert (await session.run_cell("2 + 2")).startswith("4\nThe interpreter was started anew")
    await session.close()


async def test_forks_go_their_own_ways(sandbox: Sandbox) -> None:
    session = tool("local")
    assert session.can_fork
    early = await session.fork()
    await session.run_cell("x = [1]; open('f', 'w').write('a')")
    assert session.can_fork
    twin = await session.fork()
    await twin.run_cell("x.append(2); open('f', 'w').write('b')")
    assert await session.run_cell("x, open('f').read()") == "([1], 'a')"
    assert await twin.run_cell("x, open('f').read()") == "([1, 2], 'b')"
    assert "NameError" in await early.run_cell("x")
    for each in (session, twin, early):
        await each.close()


async def test_a_failed_close_is_tried_again_then_reported_and_not_forgotten(unsafe: UnsafeSandbox) -> None:
    session = tool("unsafe")
    await session.run_cell("1")
    unsafe.failing = {"close": 1}
    await session.close()
    assert (unsafe.num_sessions, unsafe.num_closes) == (0, 2)
    await session.run_cell("1")
    unsafe.failing = {"close": 2}
    with pytest.raises(SandboxError, match="close failed"):
        await session.close()
    assert unsafe.num_sessions == 1
    await session.close()
    await session.close()
    assert unsafe.num_sessions == 0


async def test_a_sandbox_that_fails_is_an_error(unsafe: UnsafeSandbox) -> None:
    session = tool("unsafe")
    for what in ("open", "cell"):
        unsafe.failing = {what: 1}
        with pytest.raises(SandboxError, match=f"{what} failed"):
            await session.run_cell("1")
    await session.close()
    assert unsafe.num_sessions == 0


@pytest.mark.slow
async def test_cancelled_cells_leave_nothing(sandbox: Sandbox) -> None:
    sessions = [tool("local", wall_s=60) for _ in range(8)]
    cells = [asyncio.create_task(session.run_cell("import time; time.sleep(60)")) for session in sessions]
    await asyncio.sleep(0.3)
    for index, cell in enumerate(cells):
        if index % 2:
            cell.cancel()
    await asyncio.sleep(0.1)
    for cell in cells:
        cell.cancel()
    results = await asyncio.gather(*cells, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    for session in sessions:
        await session.close()
    assert sandbox.num_sessions == 0


def test_bad_choices_are_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown sandbox 'locl'.*'local'"):
        SandboxChoice("locl")
    with pytest.raises(ConfigError, match="'images' is"):
        SandboxChoice("local", {"images": {"a": 1}})
    assert SandboxChoice("local", {"preload": ["numpy"]}).arguments == {"preload": ("numpy",)}
    with pytest.raises(ConfigError, match="max_output_chars"):
        tool("local", max_output_chars=0)


async def kill_jails(sandbox: LocalSandbox) -> None:
    """Kill every jail, and wait until the sandbox has taken note of it."""
    jails = [jail for jail in sandbox._all if jail.channel.is_open]
    for jail in jails:
        os.kill(jail.pid, signal.SIGKILL)
    async with asyncio.timeout(60):
        while any(jail.channel.is_open for jail in jails):
            await asyncio.sleep(0.01)


async def test_a_cell_is_not_run_again_when_its_jail_is_lost_under_it(sandbox: LocalSandbox) -> None:
    session = tool("local")
    await session.run_cell("x = 1")
    cell = asyncio.create_task(session.run_cell("open('effect', 'a').write('1')\nimport time; time.sleep(60)"))
    async with asyncio.timeout(60):
        while not await session._session.list_files():
            await asyncio.sleep(0.01)
    await kill_jails(sandbox)
    with pytest.raises(SandboxLostError, match="killed from outside"):
        await cell
    with pytest.raises(SandboxLostError, match="killed from outside"):  # nor is the next one, with the state gone
        await session.run_cell("x")
    await session.close()


async def test_state_that_is_lost_between_two_cells_is_a_failure(sandbox: LocalSandbox) -> None:
    session = tool("local")
    await session.run_cell("x = 1")
    await kill_jails(sandbox)
    for _ in range(2):
        with pytest.raises(SandboxLostError):
            await session.run_cell("print('ran')")
    await session.close()
    assert await session.run_cell("1 + 1") == "2"
    await session.close()


async def test_an_interpreter_that_is_lost_before_anything_was_in_it_is_replaced(sandbox: LocalSandbox) -> None:
    session = tool("local")
    assert (await session.run_cell("")).startswith("Nothing was run")
    await kill_jails(sandbox)
    assert await session.run_cell("1 + 1") == "2"
    await session.close()


async def test_a_jail_that_a_cell_has_killed_for_memory_is_the_cells_outcome(sandbox: LocalSandbox) -> None:
    session = ToolSession(SandboxChoice("local"), Limits(memory_bytes=64 << 20, disk_bytes=256 << 20), 2000)
    fills = "import os\nfd = os.memfd_create('x')\nfor _ in range(128): os.write(fd, bytes(1 << 20))"
    said = await session.run_cell(fills)
    assert said == (
        "It needed more memory than there is and was stopped.\n"
        "The interpreter was started anew: variables and files are gone."
    )
    await session.close()


async def test_a_fork_that_cells_keep_from_happening_is_the_programs_fault(sandbox: LocalSandbox) -> None:
    session = tool("local")
    await session.run_cell("import os\nos.fork = lambda: 1 / 0")
    with pytest.raises(ForkRefusedError):
        await session.fork()
    await session.close()

"""What happens to those who use a sandbox while it is closed, and afterwards."""

import asyncio

import pytest

from turngym.errors import SandboxError
from turngym.sandbox.local.backend import LocalSandbox
from turngym.sandbox.local.fork_server import Zygote


async def test_a_closed_sandbox_starts_nothing_anew():
    sandbox = LocalSandbox(num_workers=1)
    await sandbox.start()
    await sandbox.close()
    for use in (sandbox.start, lambda: sandbox.run("print(1)"), sandbox.open_session):
        with pytest.raises(SandboxError, match="the local sandbox is closed; make another"):
            await use()
    assert sandbox._zygote is None
    await sandbox.close()


async def test_a_sandbox_that_was_never_started_can_be_closed():
    sandbox = LocalSandbox(num_workers=1)
    await sandbox.close()
    with pytest.raises(SandboxError, match="closed"):
        await sandbox.run("print(1)")


@pytest.mark.parametrize("use", ["run", "open_session"])
async def test_who_waits_for_a_jail_at_the_close_gets_an_error_and_leaves_none(monkeypatch, use):
    fork, born, goes_on = Zygote.fork, asyncio.Event(), asyncio.Event()
    made = []

    async def fork_slowly(self, **arguments):
        made.append(await fork(self, **arguments))
        born.set()
        await goes_on.wait()
        return made[-1]

    sandbox = LocalSandbox(num_workers=1)
    await sandbox.start()
    first = sandbox._idle[False].pop()
    monkeypatch.setattr(Zygote, "fork", fork_slowly)
    using = asyncio.create_task(sandbox.run("print(1)") if use == "run" else sandbox.open_session())
    await born.wait()
    closing = asyncio.create_task(sandbox.close())
    while not sandbox._is_closed:
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)  # it would be done by now if it did not wait
    assert not closing.done()
    goes_on.set()
    with pytest.raises(SandboxError, match="closed"):
        await using
    await closing
    assert not first.channel.is_open
    assert all(not jail.channel.is_open for jail in made)
    assert (sandbox.num_sessions, sandbox._all) == (0, set())


async def test_runs_at_the_close_and_those_in_line_all_end_in_an_error():
    sandbox = LocalSandbox(num_workers=2)
    await sandbox.start()
    runs = [asyncio.create_task(sandbox.run("import time; time.sleep(60)")) for _ in range(6)]
    while sum(jail.channel.last_request > 0 for jail in sandbox._all) < 2:
        await asyncio.sleep(0.01)
    await asyncio.wait_for(sandbox.close(), 60)
    results = await asyncio.gather(*runs, return_exceptions=True)
    assert [isinstance(result, SandboxError) for result in results] == [True] * 6
    assert sandbox._all == set()


async def test_a_start_that_is_under_way_at_the_close_leaves_nothing():
    sandbox = LocalSandbox(num_workers=1)
    starting = asyncio.create_task(sandbox.start())
    while sandbox._zygote is None and not starting.done():
        await asyncio.sleep(0)
    await sandbox.close()
    with pytest.raises(SandboxError, match="closed"):
        await starting
    assert (sandbox._zygote, sandbox._all) == (None, set())

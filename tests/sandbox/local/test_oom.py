"""Whose fault it is that the kernel killed for want of memory."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from turngym.errors import SandboxLostError
from turngym.sandbox.limits import Limits
from turngym.sandbox.local.backend import LocalSandbox
from turngym.sandbox.local.cgroups import _VERSION_1, _VERSION_2, Group, Groups, OomCount

TAKES_150_MB = "held = bytearray(b'1') * (150 << 20)"


@pytest.mark.parametrize(
    ("before", "now", "cause"),
    [
        ((0, 0), (0, 0), None),
        ((1, 1), (1, 5), None),  # the limit was in the way, and something gave way
        ((0, 0), (1, 1), "limit"),
        ((1, 3), (3, 4), "limit"),
        ((0, 0), (1, 0), "machine"),
        ((2, 7), (3, 7), "machine"),
    ],
)
def test_version_2_counts_what_the_kernel_killed_for(tmp_path: Path, before, now, cause: str | None) -> None:
    group = Group(tmp_path / "g", tmp_path / "g", _VERSION_2)
    events = tmp_path / "g" / "memory.events"
    events.write_text("low 0\nhigh 0\nmax 9\noom {1}\noom_kill {0}\noom_group_kill 0\n".format(*before))
    count = group.oom_count()
    assert count == OomCount(*before)
    events.write_text("low 0\nhigh 0\nmax 9\noom {1}\noom_kill {0}\noom_group_kill 0\n".format(*now))
    assert group.oom_cause(count) == cause
    events.unlink()
    assert (group.oom_count(), group.oom_cause(OomCount())) == (OomCount(), None)


def test_version_1_tells_by_the_most_that_was_used(tmp_path: Path) -> None:
    group = Group(tmp_path / "g", tmp_path / "g", _VERSION_1)
    control, peak = tmp_path / "g" / "memory.oom_control", tmp_path / "g" / "memory.max_usage_in_bytes"
    (tmp_path / "g" / "memory.limit_in_bytes").write_text("67108864\n")
    control.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    peak.write_text("67100672\n")
    assert group.oom_cause(OomCount()) == "limit"
    assert group.oom_cause(OomCount(1)) is None
    group.forget_peak(group.oom_count())
    assert peak.read_text() == "0"
    control.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert group.oom_cause(OomCount(1)) == "machine"
    peak.write_text("67108864\n")
    control.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    group.forget_peak(group.oom_count())  # nothing was killed since the last time
    assert peak.read_text() == "67108864\n"


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A group around all jails that holds 100 MiB, as the machine or a container would."""
    found = Groups.find()
    if found is None:
        pytest.skip("needs control groups that can be written")
    parents = tuple(folder / f"small-machine-{os.getpid()}" for folder in found._parents)
    for folder in dict.fromkeys(parents):
        folder.mkdir()
    if parents[0] == parents[1]:
        (parents[0] / "cgroup.subtree_control").write_text("+memory +pids")
    for name in (found._names.memory_limit, found._names.swap_limit):
        if (parents[0] / name).exists():
            (parents[0] / name).write_text(str(100 << 20) if name != "memory.swap.max" else "0")
    monkeypatch.setattr(Groups, "find", classmethod(lambda cls: Groups(*parents, found._names)))
    yield
    for folder in dict.fromkeys(parents):
        Path(folder).rmdir()


@pytest.mark.slow
async def test_a_program_within_its_limits_that_the_machine_has_no_memory_for_is_lost(small_machine: None) -> None:
    async with LocalSandbox(num_workers=1) as sandbox:
        with pytest.raises(SandboxLostError, match="within its limits"):
            await sandbox.run(TAKES_150_MB)
        own = await sandbox.run(TAKES_150_MB, limits=Limits(memory_bytes=60 << 20))
        assert own.ended in ("memory", "nonzero")
        files = f"open('/dev/shm/x', 'wb').write(bytes({40 << 20})); {TAKES_150_MB}"
        assert (await sandbox.run(files, limits=Limits(memory_bytes=60 << 20))).ended in ("memory", "nonzero")
        assert (await sandbox.run("print(1)")).is_ok


async def test_a_program_that_kills_itself_is_not_lost() -> None:
    async with LocalSandbox(num_workers=1) as sandbox:
        result = await sandbox.run("import os; os.kill(os.getpid(), 9)")
        assert (result.ended, result.signal) == ("signal", 9)


@pytest.mark.slow
async def test_a_session_that_the_machine_has_no_memory_for_is_lost(small_machine: None) -> None:
    async with LocalSandbox(num_workers=1) as sandbox:
        session = await sandbox.open_session()
        await session.run_cell("x = 1")
        with pytest.raises(SandboxLostError, match="machine lacks"):
            await session.run_cell(TAKES_150_MB)
        for use in (session.run_cell("x"), session.run("1"), session.read_file("x")):
            with pytest.raises(SandboxLostError):
                await use
        assert not session.is_alive
        between = await sandbox.open_session()
        await between.run_cell(f"import threading; threading.Timer(0.05, lambda: exec({TAKES_150_MB!r})).start()")
        async with asyncio.timeout(60):
            while between.is_alive:
                await asyncio.sleep(0.01)
        with pytest.raises(SandboxLostError, match="machine lacks"):
            await between.run_cell("1")
        assert sandbox.num_sessions == 0

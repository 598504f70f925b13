"""Each check finds the sandbox that is wrong in its way, and none finds fault with one that keeps the contract."""

import asyncio
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from turngym.errors import SandboxError
from turngym.sandbox.checks import CHECKS, QUICK, check_sandbox
from turngym.sandbox.checks_clean import LOOK, changes
from turngym.sandbox.checks_host import marked_processes, marking, new_mark
from turngym.sandbox.checks_judge import wrong_fields
from turngym.sandbox.checks_leaks import Footprint, leaks
from turngym.sandbox.limits import Limits
from turngym.sandbox.results import CellResult, ExecResult

spec = importlib.util.spec_from_file_location("plain_sandbox", Path(__file__).with_name("plain_sandbox.py"))
plain = importlib.util.module_from_spec(spec)
spec.loader.exec_module(plain)
PlainSandbox, PlainSession = plain.PlainSandbox, plain.PlainSession

NOT_ISOLATED = {"work_folder", "counts", "clean_start", "little_inherited", "apart", "shell", "amounts"}
"""What a sandbox that isolates nothing, has no shell sessions and counts nothing cannot do."""


@pytest.fixture(autouse=True)
def _left_nothing(tmp_path, monkeypatch):
    """Have the plain sandbox's folders, and what programs leave in the machine's, removed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    for path in (Path("/tmp/turngym-left"), Path("/dev/shm/turngym-left")):
        path.unlink(missing_ok=True)


def problems(sandbox, *names, timeout_s=20.0):
    async def check():
        async with sandbox:
            return await check_sandbox(sandbox, only=names, timeout_s=timeout_s)

    return asyncio.run(check())


@pytest.mark.soak
def test_a_sandbox_that_keeps_the_contract_passes():
    names = sorted(set(CHECKS) - NOT_ISOLATED - {"cpu_time", "leaks"})
    assert problems(PlainSandbox(), *names, timeout_s=90.0) == []
    assert problems(Finds(), "clean_start", "little_inherited") == []


class Altered(PlainSandbox):
    """Says something else than what happened."""

    def say(self, job, result):
        return result

    def ask(self, job):
        return job

    async def _run(self, job):
        return self.say(job, await super()._run(self.ask(job)))


class LateIsOk(Altered):
    def say(self, job, result):
        return replace(result, ended="ok", exit_code=0) if result.ended == "timeout" else result


class LateSaysNothing(Altered):
    def say(self, job, result):
        return replace(result, out=b"") if result.ended == "timeout" else result


class FloodIsLate(Altered):
    def say(self, job, result):
        return replace(result, ended="timeout") if result.ended == "output" else result


class OneExitCode(Altered):
    def say(self, job, result):
        return replace(result, exit_code=1) if result.exit_code else result


class SignalIsExitCode(Altered):
    def say(self, job, result):
        if result.ended != "signal":
            return result
        return replace(result, ended="nonzero", exit_code=128 + result.signal, signal=None)


class TextOnly(Altered):
    def say(self, job, result):
        return replace(result, out=result.out.decode(errors="replace").encode()[: job.limits.output_bytes])


class ForgetsTheCut(Altered):
    def say(self, job, result):
        return replace(result, is_out_truncated=False)


class CutsLate(Altered):
    def ask(self, job):
        return replace(job, limits=replace(job.limits, output_bytes=job.limits.output_bytes + 1))


class NoInput(Altered):
    def ask(self, job):
        return replace(job, stdin=b"")


class NoEmptyFiles(Altered):
    def ask(self, job):
        return replace(job, files={path: content for path, content in job.files.items() if content})


class SplitsWords(Altered):
    def ask(self, job):
        return job if job.argv is None else replace(job, argv=tuple(" ".join(job.argv).split()))


class NothingIsExecutable(Altered):
    def ask(self, job):
        return replace(job, executable=None)


class NoTime(Altered):
    def say(self, job, result):
        return replace(result, wall_s=0.0)


class NoShell(Altered):
    languages = frozenset({"python"})


class AnswersTheLast(Altered):
    last = b""

    def say(self, job, result):
        self.last, out = result.out, self.last
        return replace(result, out=out)


class SleepIsCpuTime(Altered):
    def ask(self, job):
        cpu_s = job.limits.cpu_s
        return replace(job, limits=replace(job.limits, wall_s=cpu_s)) if cpu_s else job


class MemoryIsOk(Altered):
    def say(self, job, result):
        return replace(result, ended="ok", exit_code=0) if b"MemoryError" in result.err else result


class CountsMore(Altered):
    def say(self, job, result):
        return replace(result, out=b"100000000\n")

    def ask(self, job):
        return replace(job, code="print(1)")


class OtherTier(Altered):
    def say(self, job, result):
        return replace(result, tier="other")


class CancelledRunsGoOn(PlainSandbox):
    async def _run(self, job):
        job = replace(job, limits=replace(job.limits, wall_s=min(job.limits.wall_s, 3.0)))
        return await asyncio.shield(super()._run(job))


class KillsOnlyTheFirst(PlainSandbox):
    left: list[str]

    def __init__(self):
        super().__init__()
        self.left = []

    def end(self, process, mark):
        self.left.append(mark)
        process.kill()
        process.wait()

    async def close(self):
        await super().close()
        for mark in self.left:
            plain.kill_marked(mark)


class TakesAnything(PlainSandbox):
    async def run(self, code=None, **arguments):
        return await super().run(str(code or "1"))


class Finds(PlainSandbox):
    """Says what a program finds at its start."""

    seen: Mapping[str, object] = {
        "files": {"/tmp": [], "/dev/shm": []},
        "processes": 2,
        "descriptors": [0, 1, 2],
        "environment": {"PATH": "/usr/bin"},
        "users": [[1000, 1000, 1000]],
        "input": "what is to be read",
    }

    async def _run(self, job):
        result = await super()._run(replace(job, code="1"))
        return replace(result, out=json.dumps(self.seen).encode())


class Remembers(Finds):
    async def _run(self, job):
        if job.code != LOOK:
            self.seen = {**Finds.seen, "processes": 5}
        return await super()._run(job)


class FindsTheHostsEnvironment(Finds):
    seen = {**Finds.seen, "environment": {"SOME_TOKEN": "secret"}}


class FindsFiles(Finds):
    seen = {**Finds.seen, "descriptors": [0, 1, 2, 5], "files": {"/tmp": ["x"], "/dev/shm": []}}


class IsRoot(Finds):
    seen = {**Finds.seen, "users": [[0, 0, 0]]}


class LosesDescriptors(PlainSandbox):
    def __init__(self):
        super().__init__()
        self.lost = []

    async def _run(self, job):
        self.lost.append(os.open("/dev/null", os.O_RDONLY))
        return await super()._run(job)

    async def close(self):
        await super().close()
        for fd in self.lost:
            os.close(fd)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("broken", "check", "said"),
    [
        (LateIsOk, "wall_time", "wanted ended 'timeout', got 'ok'"),
        (LateSaysNothing, "wall_time", "wanted out b'x\\n'"),
        (FloodIsLate, "flood", "wanted ended 'output', got 'timeout'"),
        (OneExitCode, "endings", "wanted exit_code 7, got 1"),
        (SignalIsExitCode, "endings", "wanted ended 'signal', got 'nonzero'"),
        (OtherTier, "endings", "its tier is 'other'"),
        (TextOnly, "output", "all bytes: wanted out"),
        (ForgetsTheCut, "output", "wanted is_out_truncated True"),
        (CutsLate, "output", "1001 bytes where 1000 are kept: wanted out"),
        (NoInput, "input", "2 MiB of stdin"),
        (NoEmptyFiles, "files", "four files"),
        (SplitsWords, "commands", "words of a command"),
        (NothingIsExecutable, "commands", "a command that is one of its files"),
        (PlainSandbox, "work_folder", "Python in its work folder"),
        (NoTime, "amounts", "sleeps for 0.4 s took 0.000 s"),
        (NoShell, "languages", "bash cannot be run"),
        (MemoryIsOk, "memory", "memory without end ended as 'ok'"),
        (CountsMore, "counts", "with a limit of 10 processes, 100000000 were had"),
        (CancelledRunsGoOn, "cancellation", "processes of cancelled runs still run"),
        (KillsOnlyTheFirst, "processes_end", "3 processes still run"),
        (TakesAnything, "bad_input", "bytes as code wants ProgramError"),
        (Remembers, "clean_start", "a run sees what an earlier one left: processes: was 2 and is 5"),
        (FindsTheHostsEnvironment, "little_inherited", "a program finds the host's environment: SOME_TOKEN"),
        (FindsFiles, "little_inherited", "open files [0, 1, 2, 5]"),
        (FindsFiles, "little_inherited", "files of others"),
        (IsRoot, "little_inherited", "runs as root"),
        (AnswersTheLast, "concurrency", "run 1 of 100"),
        (SleepIsCpuTime, "cpu_time", "1.3 s of sleep"),
        (LosesDescriptors, "leaks", "descriptors grew"),
    ],
)
def test_a_check_finds_what_is_wrong_with_runs(broken, check, said, monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "secret")
    found = problems(broken(), check, timeout_s=60.0)
    assert any(said in problem.message for problem in found), found


class AlteredSession(PlainSession):
    def say(self, result):
        return result

    async def run_cell(self, code, *, timeout_s=None):
        return self.say(await super().run_cell(code, timeout_s=timeout_s))


class NoValue(AlteredSession):
    def say(self, result):
        return replace(result, value=None)


class ErrorsAreOk(AlteredSession):
    def say(self, result):
        return replace(result, ended="ok") if result.ended == "error" else result


class LateIsDead(AlteredSession):
    def say(self, result):
        return replace(result, is_alive=False) if result.ended == "timeout" else result


class DeadIsAlive(AlteredSession):
    def say(self, result):
        return replace(result, is_alive=True)


class InterruptKills(PlainSession):
    async def interrupt(self):
        if self.is_busy:
            os.kill(self.pid, 9)


class SaysAllOfIt(AlteredSession):
    def say(self, result):
        return replace(result, is_out_truncated=False)


class ExitIsError(AlteredSession):
    def say(self, result):
        return replace(result, ended="error") if result.ended == "exited" else result


class ElsewhereBeside(PlainSession):
    async def run(self, code=None, **arguments):
        limits = Limits(wall_s=arguments.pop("timeout_s", None) or 10.0)
        return await self.sandbox.run(code, limits=limits, **arguments)


class GoesOnCancelled(PlainSession):
    async def close(self):
        if not self.is_busy:
            await super().close()


class BreaksAtJunk(PlainSession):
    async def run_cell(self, code, *, timeout_s=None):
        if "range(3, 256)" in code:
            self.sandbox.languages = frozenset()
        return await super().run_cell(code, timeout_s=timeout_s)


class ReadsText(PlainSession):
    async def read_file(self, path, *, max_bytes=1 << 20):
        return (await super().read_file(path, max_bytes=max_bytes)).decode(errors="replace").encode()


class ListsBackwards(PlainSession):
    async def list_files(self, path=".", *, max_entries=10_000):
        return (await super().list_files(path, max_entries=max_entries))[::-1]


class FollowsLinks(PlainSession):
    async def read_file(self, path, *, max_bytes=1 << 20):
        return (self.box / path).read_bytes() if path == "link" else await super().read_file(path, max_bytes=max_bytes)


class PacksLinks(PlainSession):
    async def snapshot(self):
        done = subprocess.run(["tar", "-C", str(self.box), "-c", "."], capture_output=True, check=True)
        return done.stdout


class TakesAnyArchive(PlainSession):
    def fill(self, files, snapshot):
        super().fill(files, None)


class ForkSharesFiles(PlainSession):
    async def fork(self):
        other = await super().fork()
        for path in other.box.iterdir():
            path.unlink()
            os.symlink(self.box / path.name, path)
        return other


class ForkForgets(PlainSession):
    async def fork(self):
        other = await super().fork()
        await other.run_cell("big = None")
        return other


class ForkFails(PlainSession):
    async def fork(self):
        raise SandboxError("the interpreter did not fork")


class SaysItLives(PlainSession):
    is_alive = True


class SaysItIsDead(PlainSession):
    is_alive = False


class NoFork(PlainSession):
    can_fork = False


class AllGood(PlainSession):
    async def run_cell(self, code, *, timeout_s=None):
        return CellResult("ok", b"", b"", None, None, 0, False, False, 0.0, self.sandbox.tier, True)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("broken", "check", "said"),
    [
        (NoValue, "cells", "wanted value '21', got None"),
        (ErrorsAreOk, "cell_errors", "wanted ended 'error', got 'ok'"),
        (LateIsDead, "cell_timeout", "wanted is_alive True, got False"),
        (DeadIsAlive, "cell_timeout", "a cell that catches everything: wanted is_alive False"),
        (InterruptKills, "interrupt", "wanted ended 'interrupted', got 'exited'"),
        (SaysAllOfIt, "cell_limits", "wanted is_out_truncated True"),
        (ExitIsError, "interpreter_end", "wanted ended 'exited', got 'error'"),
        (ElsewhereBeside, "run_beside", "a program beside"),
        (PlainSession, "apart", "files of another session"),
        (GoesOnCancelled, "cancelled_cell", "processes of a cancelled cell still run"),
        (BreaksAtJunk, "forged_replies", "ProgramError"),
        (ReadsText, "session_files", "a file given at the start reads otherwise"),
        (ListsBackwards, "session_files", "out of order"),
        (FollowsLinks, "session_traps", "reading 'link' wants ProgramError"),
        (PacksLinks, "snapshot", "a snapshot holds"),
        (TakesAnyArchive, "bad_snapshots", "a snapshot with no archive wants ProgramError"),
        (ForkSharesFiles, "fork", "a session after its fork"),
        (NoFork, "fork", "a session forked whose can_fork says that it cannot"),
        (ForkForgets, "fork_of_much", "a fork of 100 MB"),
        (ForkFails, "fork_refused", "a fork after a broken os.fork wants to work or ForkRefusedError"),
        (SaysItLives, "interpreter_end", "is_alive is True after"),
        (SaysItIsDead, "cells", "is_alive of the session is False"),
        (AllGood, "shell", "wanted exit_code 127, got 0"),
    ],
)
def test_a_check_finds_what_is_wrong_with_sessions(broken, check, said):
    sandbox = PlainSandbox()
    sandbox.session_class = broken
    found = problems(sandbox, check)
    assert any(said in problem.message for problem in found), found


def test_every_check_has_a_sandbox_that_fails_it():
    marks = [
        mark
        for test in (test_a_check_finds_what_is_wrong_with_runs, test_a_check_finds_what_is_wrong_with_sessions)
        for mark in test.pytestmark
        if mark.name == "parametrize"
    ]
    cases = [case for mark in marks for case in mark.args[1]]
    assert {check for _, check, _ in cases} == set(CHECKS)
    assert set(QUICK) <= set(CHECKS)


def test_the_page_names_every_check():
    page = (Path(__file__).resolve().parents[2] / "docs" / "sandbox.md").read_text()
    assert set(re.findall(r"`(\w+)`", page.split("| checks |")[1].split("\n\n")[0])) == set(CHECKS)


def test_a_check_that_hangs_or_raises_is_a_problem():
    class Hangs(PlainSandbox):
        async def _run(self, job):
            await asyncio.sleep(100)

    class Raises(PlainSandbox):
        async def _run(self, job):
            raise RuntimeError("broken")

    (late,) = problems(Hangs(), "input", timeout_s=0.2)
    assert late.check == "input"
    assert late.message == "TimeoutError: not done within 0.2 s"
    (raised,) = problems(Raises(), "input")
    assert raised.message == "RuntimeError: broken"


GOOD = ExecResult("ok", 0, None, b"ab", b"", False, False, 0.5, 0.1, 1000, "t")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, None),
        ({"ended": "nonzero"}, "exit code 0 counts as 'nonzero'"),
        ({"exit_code": 3}, "exit code 3 counts as 'ok'"),
        ({"ended": "nonzero", "exit_code": 256}, "not one of 0 to 255"),
        ({"ended": "timeout"}, "ended as 'timeout' with exit code 0"),
        ({"ended": "timeout", "exit_code": None}, "ended as late after 0.50 of 10 s"),
        ({"ended": "timeout", "exit_code": None, "signal": 9, "wall_s": 10.1}, None),
        ({"ended": "signal", "exit_code": None}, "ended as 'signal' with exit code None and signal None"),
        ({"ended": "memory", "exit_code": None, "signal": 9}, None),
        ({"out": b"abcde"}, "5 bytes of out were kept, and 4 was the limit"),
        ({"is_out_truncated": True}, "out counts as truncated with 2 of 4 bytes kept"),
        ({"wall_s": 31.0}, "it took 31.00 s at a limit of 10 s"),
        ({"cpu_s": -1.0}, "-1.0 CPU seconds"),
        ({"peak_memory_bytes": -1}, "a peak memory of -1 bytes"),
        ({"tier": "u"}, "its tier is 'u'"),
    ],
)
def test_a_result_must_not_contradict_itself(changed, said):
    found = list(wrong_fields(replace(GOOD, **changed), Limits(output_bytes=4), "t"))
    assert (not found) if said is None else any(said in message for message in found), found


def test_differences_between_two_starts_are_told():
    before = {"files": {"/tmp": [], "/box": ["a"]}, "processes": 2, "limits": {"NOFILE": [1, 2]}}
    after = {"files": {"/tmp": ["x"], "/box": ["a"]}, "processes": 3, "limits": {"NOFILE": [1, 2]}}
    assert list(changes(before, after)) == ["files: /tmp ['x'] is new", "processes: was 2 and is 3"]


def test_marked_processes_are_found_through_fork_and_exec():
    mark = new_mark()
    code = f"{marking(mark)}\nimport os, time\nif os.fork() == 0: os.execvp('sleep', ['sleep', '100'])\nos.fork()\n"
    code += "print('x', flush=True)\ntime.sleep(100)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    process.stdout.readline()
    process.stdout.readline()
    try:
        until = time.monotonic() + 30
        while len(marked_processes(mark)) < 3 and time.monotonic() < until:
            time.sleep(0.01)  # one that begins another program shows no environment for a moment
        assert len(marked_processes(mark)) == 3
        assert marked_processes(new_mark()) == []
    finally:
        os.killpg(process.pid, 9)
        process.wait()
        process.stdout.close()


def test_a_footprint_shows_processes_descriptors_and_files(tmp_path):
    before = Footprint.take()
    file = Path("/dev/shm/turngym-footprint-test")
    processes = [subprocess.Popen(["sleep", "100"]) for _ in range(4)]
    descriptors = [os.open("/dev/null", os.O_RDONLY) for _ in range(4)]
    file.touch()
    try:
        after = Footprint.take()
        assert list(before.grown(after)) == ["processes", "descriptors"]
        assert after.processes == before.processes + 4
        assert after.files == before.files + 1
    finally:
        file.unlink()
        for process in processes:
            process.kill()
            process.wait()
        for descriptor in descriptors:
            os.close(descriptor)
    assert list(before.grown(Footprint.take())) == []


@pytest.mark.soak
def test_a_sandbox_without_leaks_has_none():
    async def count():
        async with PlainSandbox() as sandbox:
            return await leaks(sandbox, 60)

    assert asyncio.run(count()) == []

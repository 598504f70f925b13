"""The hostile programs are well formed, each can be failed, and what they would do to a host is noticed."""

import ast
import asyncio
import os
import re
import socket
import subprocess
import sys
from collections import Counter

import pytest

from turngym.sandbox.base import Sandbox
from turngym.sandbox.checks_clean import LOOK
from turngym.sandbox.checks_host import MARK, host_canaries
from turngym.sandbox.checks_hostile import check_hostile
from turngym.sandbox.hostile import _MODULES, HOSTILE
from turngym.sandbox.hostile.attack import attack
from turngym.sandbox.hostile.program import HELD, OUT_OF_MEMORY, TIMEOUT, Outcome, python
from turngym.sandbox.results import ExecResult

NOT_PYTHON = {"syntax error", "indentation error"}


def result(ended="ok", out=b"held\n", *, exit_code=None, signal=None, err=b"", wall_s=1.0, cut=False):
    exit_code = 0 if ended == "ok" else exit_code
    return ExecResult(ended, exit_code, signal, out, err, cut, False, wall_s, None, None, "t")


def test_there_are_many_of_each_kind_and_no_two_of_one_name():
    assert len(HOSTILE) == sum(len(module.PROGRAMS) for module in _MODULES)
    given = {"time": 9, "memory": 10, "processes": 10, "introspection": 10, "filesystem": 16, "network": 6}
    given |= {"output": 9, "exit": 9}
    kinds = Counter(program.kind for program in HOSTILE.values())
    assert kinds.total() >= 2 * 78
    assert all(kinds[kind] >= 1.5 * count for kind, count in given.items())
    assert set(kinds) == set(given)


@pytest.mark.parametrize("program", HOSTILE.values(), ids=HOSTILE)
def test_a_program_is_well_formed_and_not_content_with_everything(program):
    assert (program.code is None) != (program.argv is None)
    if program.code is not None and program.name not in NOT_PYTHON:
        ast.parse(program.code)
    assert program.outcomes
    loot = result("ok", b"loot: [('root', 0)]\n", wall_s=5.9)
    if HELD in program.outcomes:
        assert program.judge(loot) is not None
    others = [result(ended, b"nothing of the kind") for ended in ("ok", "timeout", "killed", "output", "memory")]
    assert sum(program.judge(other) is not None for other in others) >= 3


@pytest.mark.parametrize(
    ("outcome", "came", "said"),
    [
        (HELD, result(), None),
        (HELD, result(out=b"loot"), "out is b'loot', not b'held\\n'"),
        (TIMEOUT, result(), "ended is 'ok', not 'timeout'"),
        (Outcome("nonzero", exit_code=3), result("nonzero", exit_code=4), "exit_code is 4, not 3"),
        (Outcome("signal", signal=9), result("signal", signal=11), "signal is 11, not 9"),
        (Outcome("ok", out_has=b"he"), result(), None),
        (Outcome("ok", out_has=b"x"), result(), "its output lacks b'x': b'held\\n'"),
        (Outcome("ok", err_has=b"x"), result(err=b"y"), "its stderr lacks b'x': b'y'"),
        (Outcome("ok", is_out_truncated=True), result(), "is_out_truncated is False, not True"),
        (Outcome("ok", within_s=1.5), result(wall_s=1.4), None),
        (Outcome("ok", within_s=1.5), result(wall_s=1.5), "it took 1.50 s, not less than 1.5 s"),
    ],
)
def test_an_outcome_says_how_a_result_differs(outcome, came, said):
    assert outcome.mismatch(came) == said


def test_any_of_several_outcomes_will_do():
    program = python("x", "memory", "x", *OUT_OF_MEMORY)
    assert program.judge(result("memory", b"")) is None
    assert program.judge(result("nonzero", b"", exit_code=1, err=b"MemoryError")) is None
    assert program.judge(result()) == "ended is 'ok', not 'memory' and ended is 'ok', not 'nonzero'"


def run_as_a_plain_program(code):
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("code", "out"),
    [
        ("attempt('a', os.getcwdb); attempt('b', open, '/no/such')", f"loot: [('a', {os.getcwdb().__repr__()!r})]\n"),
        ("attempt('number', call, 'pidfd_open', os.getpid(), 0)", None),
        ("attempt('bad', call, 'pidfd_open', -1, 0)", "held\n"),
        ("must_refuse('pidfd_open', -1, 0)", "loot: [('pidfd_open', 'EINVAL')]\n"),
        ("attempt('empty', read, '/dev/null')", "held\n"),
        ("attempt('zero', read, '/dev/zero', 2)", "loot: [('zero', \"b'\\\\x00\\\\x00'\")]\n"),
        ("print(1 in others(), os.getpid() in others())", "True False\nheld\n"),
    ],
)
def test_an_attack_tells_what_worked(code, out):
    said = run_as_a_plain_program(attack("x", "exit", code).code)
    assert said == out if out else said.startswith("loot: [('number', '")


class Scripted(Sandbox):
    """Answers as it is told to, and harmlessly."""

    name = "scripted"
    tier = "t"
    languages = frozenset({"python", "bash"})
    num_sessions = 0

    def __init__(self, answer):
        self.answer = answer
        self.jobs = []

    async def start(self):
        pass

    async def close(self):
        pass

    async def open_session(self, *_, **__):
        raise NotImplementedError

    async def _run(self, job):
        if job.code == LOOK:
            return result(out=b'{"processes": %d}' % getattr(self.answer, "processes", 2))
        self.jobs.append(job)
        return self.answer(job)


def check(answer, *programs):
    async def run():
        with host_canaries() as canaries:
            return await check_hostile(Scripted(lambda job: answer(job, canaries)), programs, canaries)

    return [problem.message for problem in asyncio.run(run())]


def is_gate(job):
    """Return whether it is the harmless program that goes before."""
    return "CANARY_FILE)" in (job.code or "")


PROGRAM = attack("x", "exit", "pass")


def test_a_sandbox_that_holds_has_no_problems():
    assert check(lambda job, canaries: result(), PROGRAM) == []


def test_a_wrong_outcome_and_a_contradiction_are_problems():
    messages = check(lambda job, canaries: result() if is_gate(job) else result("ok", b"loot", wall_s=-1.0), PROGRAM)
    assert messages == ["out is b'loot', not b'held\\n'", "it took -1.00 s at a limit of 6 s"]


def test_a_secret_in_the_output_is_a_problem():
    messages = check(lambda job, canaries: result(err=canaries.secret.encode() * (not is_gate(job))), PROGRAM)
    assert messages == ["it shows a secret of the host"]


def test_programs_are_told_the_secret_backwards_only():
    seen = []
    check(lambda job, canaries: seen.append((job, canaries.secret)) or result(), PROGRAM, HOSTILE["shell loop"])
    assert len(seen) == 3
    for job, secret in seen:
        text = (job.code or "") + " ".join(job.argv or ())
        assert secret[::-1] in text
        assert secret not in text
        assert MARK in text


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda c: c.process.kill() or c.process.wait(), "a process of the host was ended"),
        (lambda c: c.file.write_text("x"), "a file of the host was changed"),
        (lambda c: socket.create_connection(c.listener.getsockname()).close(), "a program connected to"),
        (lambda c: socket.socket(socket.AF_UNIX).connect(c.abstract.getsockname()), "a program connected to"),
        (lambda c: socket.socket(socket.AF_UNIX).connect(c.named.getsockname()), "a program connected to"),
        (
            lambda c: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", c.datagrams.getsockname()),
            "a datagram reached the host",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_harm_to_the_host_is_a_problem(harm, said):
    def answer(job, canaries):
        if not is_gate(job):
            harm(canaries)
        return result()

    (message,) = check(answer, PROGRAM)
    assert message.startswith(said)


def test_canaries_leave_nothing_behind():
    with host_canaries() as canaries:
        assert os.environ["TURNGYM_CANARY_SECRET"] == canaries.secret
        assert list(canaries.troubles()) == []
    assert "TURNGYM_CANARY_SECRET" not in os.environ
    assert not canaries.file.parent.exists()
    assert canaries.process.returncode is not None


@pytest.mark.slow
def test_processes_that_stay_are_a_problem():
    left = []

    def answer(job, canaries):
        if not is_gate(job):
            mark = re.search(r"b'(tg\w+)'", job.code)[1]
            left.append(subprocess.Popen(["sleep", "100"], env={**os.environ, MARK: mark}))
        return result()

    try:
        assert check(answer, PROGRAM) == ["1 of its processes still run"]
    finally:
        for process in left:
            process.kill()
            process.wait()


def test_a_sandbox_that_fails_or_then_answers_otherwise_is_a_problem():
    def fail(job, canaries):
        if is_gate(job):
            return result()
        raise RuntimeError("broken")

    assert check(fail, PROGRAM) == ["the sandbox failed: RuntimeError: broken"]

    async def change():
        with host_canaries() as canaries:
            sandbox = Scripted(lambda job: result())

            async def run(job):
                if job.code == LOOK:
                    return result(out=b'{"processes": %d}' % (2 + 3 * (len(sandbox.jobs) > 1)))
                sandbox.jobs.append(job)
                return result()

            sandbox._run = run
            return await check_hostile(sandbox, [PROGRAM], canaries)

    (problem,) = asyncio.run(change())
    assert problem.message == "the next program sees it: processes: was 2 and is 5"


def test_hostile_programs_are_not_run_where_nothing_is_isolated():
    jobs = []

    def reaches(job, canaries):
        jobs.append(job)
        return result(out=run_as_a_plain_program(job.code).encode())

    (message,) = check(reaches, *HOSTILE.values())
    assert message.startswith("a harmless program reached the host: out is")
    assert message.endswith("hostile programs are run only where programs are isolated")
    assert len(jobs) == 1

"""What runs cells: in this process, and in an interpreter that gets it as text."""

import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from turngym.sandbox import cells
from turngym.sandbox.cells import Cells

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def ours() -> Iterator[Cells]:
    main, handler = sys.modules["__main__"], signal.getsignal(signal.SIGINT)
    yield Cells()
    sys.modules["__main__"] = main
    signal.signal(signal.SIGINT, handler)


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("1 + 1", "2"),
        ("x = 1", None),
        ("None", None),
        ("x = 1\nx", "1"),
        ("'a'; 'b'", "'b'"),
        ("if True: 5", None),
        ("# nothing", None),
        ("__name__", "'__main__'"),
        ("def f(x: NoSuch = 1): pass", None),
    ],
)
def test_values(ours: Cells, code: str, value: str | None) -> None:
    if "NoSuch" in code:  # our own `from __future__ import annotations` does not reach cells
        assert ours.run(code)["ended"] == "error"
    else:
        assert ours.run(code) == {"ended": "ok", "value": value, "error": None}


def test_names_stay_and_the_last_value_is_underscore(ours: Cells) -> None:
    ours.run("def f(): return 6")
    assert ours.run("f() * 7")["value"] == "42"
    assert ours.run("_ + 1")["value"] == "43"
    assert ours.run("import pickle\nclass A: pass\ntype(pickle.loads(pickle.dumps(A()))) is A")["value"] == "True"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("def f(:", '  File "<cell 1>", line 1\n    def f(:\n          ^\nSyntaxError: invalid syntax\n'),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("exit()", "SystemExit: None"),
        (
            "def f():\n    raise ValueError('no')\nf()",
            'Traceback (most recent call last):\n  File "<cell 1>", line 3, in <module>\n    f()\n'
            "  File \"<cell 1>\", line 2, in f\n    raise ValueError('no')\nValueError: no\n",
        ),
    ],
)
def test_errors_show_the_cell_and_none_of_ours(ours: Cells, code: str, error: str) -> None:
    outcome = ours.run(code)
    assert (outcome["ended"], outcome["value"]) == ("error", None)
    assert outcome["error"] == error


@pytest.mark.parametrize(
    "code",
    [
        "class E(Exception):\n    def __str__(self): raise SystemExit(0)\nraise E()",
        "class E(BaseException): pass\nraise E()",
        "class R:\n    def __repr__(self): raise ValueError('no')\nR()",
        "class R:\n    def __repr__(self): return 5\nR()",
        "raise RuntimeError('x' * 10**6)",
    ],
)
def test_hostile_errors_and_values(ours: Cells, code: str) -> None:
    outcome = ours.run(code)
    assert outcome["ended"] == "error"
    assert outcome["error"] is not None
    assert len(outcome["error"]) < cells.MAX_CHARACTERS + 200
    assert ours.run("1")["value"] == "1"


def test_long_values_lose_their_middle(ours: Cells) -> None:
    value = ours.run("'a' * 100_000")["value"]
    assert value is not None
    assert value.startswith("'aaa")
    assert value.endswith("aaa'")
    assert "80,002 characters left out" in value


def test_an_interrupt_ends_a_running_cell_and_no_other(ours: Cells) -> None:
    os.kill(os.getpid(), signal.SIGINT)  # between cells: nothing happens
    code = "import os, signal, time\nx = 1\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)"
    outcome = ours.run(code)
    assert outcome["ended"] == "interrupted"
    assert str(outcome["error"]).endswith("KeyboardInterrupt\n")
    assert "cells.py" not in str(outcome["error"])
    assert ours.run("x")["value"] == "1"
    ours.run("signal.signal(signal.SIGINT, signal.SIG_IGN)")
    assert ours.run(code)["ended"] == "interrupted"  # a cell cannot keep the next from being interrupted


def test_serving_from_source_text() -> None:
    source = (ROOT / "sandbox" / "cells.py").read_text()
    main = "import sys; names = {'__name__': 'cells'}; exec(compile(sys.argv[1], '<cells>', 'exec'), names)\n"
    requests, replies = os.pipe(), os.pipe()
    command = [sys.executable, "-c", main + f"names['serve']({requests[0]}, {replies[1]})", source]
    with subprocess.Popen(command, pass_fds=(requests[0], replies[1]), stdout=subprocess.PIPE) as process:
        os.close(requests[0])
        os.close(replies[1])
        for code, value in (("print('out'); x = 'ä'", None), ("x * 2", "'ää'"), ("1 / 0", None)):
            os.write(requests[1], struct.pack(">I", len(code.encode())) + code.encode())
            (length,) = struct.unpack(">I", os.read(replies[0], 4))
            assert json.loads(os.read(replies[0], length))["value"] == value
        os.close(requests[1])
        assert process.stdout is not None
        assert process.stdout.read() == b"out\n"
    assert process.returncode == 0
    os.close(replies[0])

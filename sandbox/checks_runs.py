"""Checks of what runs return: how they ended, what they wrote, what they were given; each yields what is wrong."""

import asyncio
from collections.abc import AsyncIterator

from ..errors import ProgramError, UnknownNameError
from .base import Sandbox
from .checks_judge import differs, wrong_fields
from .job import WORK_FOLDER
from .languages import LANGUAGES
from .limits import Limits
from .results import ExecResult

_HELLO = {
    "python": ("import sys; print('hi', sys.stdin.read()); sys.exit(3)", "def f(:"),
    "bash": ("echo hi $(cat); exit 3", "if then ("),
    "cpp": (
        '#include <iostream>\nint main() { std::string s; std::cin >> s; std::cout << "hi " << s << "\\n"; return 3; }',
        "int main( {",
    ),
    "javascript": ("console.log('hi ' + require('fs').readFileSync(0)); process.exitCode = 3", "function (("),
}


async def check_endings(sandbox: Sandbox) -> AsyncIterator[str]:
    """Each way to end is told apart, with its exit code or signal."""
    cases: tuple[tuple[str, dict[str, object]], ...] = (
        ("print('x')", {"ended": "ok", "exit_code": 0, "signal": None, "out": b"x\n", "err": b""}),
        ("import sys; sys.exit(7)", {"ended": "nonzero", "exit_code": 7, "signal": None}),
        ("import os; os._exit(255)", {"ended": "nonzero", "exit_code": 255}),
        ("raise SystemExit('why')", {"ended": "nonzero", "exit_code": 1, "err": b"why\n"}),
        ("raise SystemExit(None)", {"ended": "ok", "exit_code": 0}),
        ("import os; os.abort()", {"ended": "signal", "signal": 6, "exit_code": None}),
        ("import os; os.kill(os.getpid(), 9)", {"ended": "signal", "signal": 9, "exit_code": None}),
    )
    for code, wanted in cases:
        result = await sandbox.run(code)
        for message in [*differs(code, result, **wanted), *wrong_fields(result, Limits(), sandbox.tier)]:
            yield message
    failed = await sandbox.run("def f():\n    return 1 / 0\nf()")
    if failed.exit_code != 1 or b"ZeroDivisionError" not in failed.err or b"line 2" not in failed.err:
        yield f"an error wants exit code 1 and its traceback, got {failed.exit_code} and {failed.err[-300:]!r}"


async def check_output(sandbox: Sandbox) -> AsyncIterator[str]:
    """Both streams are kept byte for byte up to the limit, and cut there, which is told."""
    every = bytes(range(256)) * 4
    code = "import os\nfor fd in (1, 2): os.write(fd, bytes(range(256)) * 4)"
    for message in differs("all bytes", await sandbox.run(code), ended="ok", out=every, err=every):
        yield message
    named = await sandbox.run("echo o > /dev/stdout; echo e > /dev/stderr", language="bash")
    for message in differs("streams by their names", named, ended="ok", out=b"o\n", err=b"e\n"):
        yield message
    limits = Limits(output_bytes=1000)
    for size in (999, 1000, 1001, 300_000):
        result = await sandbox.run(f"import sys; sys.stdout.write('o' * {size}); sys.stderr.write('e')", limits=limits)
        out, is_cut = b"o" * min(size, 1000), size > 1000
        wanted = {"ended": "ok", "out": out, "err": b"e", "is_out_truncated": is_cut, "is_err_truncated": False}
        for message in differs(f"{size} bytes where 1000 are kept", result, **wanted):
            yield message


async def check_input(sandbox: Sandbox) -> AsyncIterator[str]:
    """Stdin comes byte for byte and ends; a program need not read it."""
    given = bytes(range(256)) * 8192
    code = "import sys, zlib; data = sys.stdin.buffer.read(); print(len(data), zlib.crc32(data))"
    wanted = f"{len(given)} 4071163044\n".encode()
    for message in differs("2 MiB of stdin", await sandbox.run(code, stdin=given), ended="ok", out=wanted):
        yield message
    for message in differs("no stdin", await sandbox.run(code), ended="ok", out=b"0 0\n"):
        yield message
    for message in differs("unread stdin", await sandbox.run("print('x')", stdin=given), ended="ok", out=b"x\n"):
        yield message


async def check_files(sandbox: Sandbox) -> AsyncIterator[str]:
    """Files given lie in the work folder byte for byte, and programs may change them."""
    files = {"a.bin": bytes(range(256)), "deep/er/b.txt": "é\r\n".encode(), "empty": b"", "sp ace": b"1"}
    code = (
        "import os; print([(p, open(p, 'rb').read()) for p in ('a.bin', 'deep/er/b.txt', 'empty', "
        "'sp ace')] == " + repr(list(files.items())) + ")\n"
        "open('a.bin', 'ab').write(b'x'); open('deep/new', 'w').write('x'); os.unlink('empty'); print('changed')"
    )
    result = await sandbox.run(code, files=files)
    for message in differs("four files", result, ended="ok", out=b"True\nchanged\n"):
        yield message
    shell = await sandbox.run(argv=["bash", "-c", "cat a.bin | wc -c"], files=files)
    for message in differs("files of a command", shell, ended="ok", out=b"256\n"):
        yield message


async def check_work_folder(sandbox: Sandbox) -> AsyncIterator[str]:
    """Programs of every kind start in the work folder, and may run what they put there."""
    here = f"{WORK_FOLDER}\n".encode()
    script = {"run.sh": b"#!/bin/bash\npwd\n"}
    for what, result in (
        ("Python", await sandbox.run("import os; print(os.getcwd())")),
        ("bash", await sandbox.run("pwd", language="bash")),
        ("a command", await sandbox.run(argv=["pwd"])),
        ("a script of its own", await sandbox.run("chmod +x run.sh; ./run.sh", language="bash", files=script)),
    ):
        for message in differs(f"{what} in its work folder", result, ended="ok", out=here):
            yield message


async def check_commands(sandbox: Sandbox) -> AsyncIterator[str]:
    """A command gets its words as they are."""
    words = ["a b", "", "$HOME", "*", "é", "--", "x\ny", "'\""]
    result = await sandbox.run(argv=["bash", "-c", 'printf "%s|" "$0" "$@"; exit 9', *words])
    wanted = "".join(f"{word}|" for word in words).encode()
    for message in differs("words of a command", result, ended="nonzero", exit_code=9, out=wanted):
        yield message
    missing = await sandbox.run(argv=["no-such-command"])
    for message in differs("a command that is not there", missing, ended="nonzero", exit_code=127):
        yield message
    files = {"sub/tool": b"#!/bin/sh\necho ran $1\n", "other": b"#!/bin/sh\n"}
    own = await sandbox.run(argv=["./sub/tool", "it"], files=files)
    for message in differs("a command that is one of its files", own, ended="ok", out=b"ran it\n"):
        yield message
    beside = await sandbox.run(argv=["bash", "-c", "test ! -x other"], files=files)
    for message in differs("a file that no command names", beside, ended="ok"):
        yield message


async def check_amounts(sandbox: Sandbox) -> AsyncIterator[str]:
    """Wall time, CPU time and memory are those of the program, where they are known."""
    slept = await sandbox.run("import time; time.sleep(0.4)")
    if not 0.4 <= slept.wall_s < 30.0:
        yield f"a program that sleeps for 0.4 s took {slept.wall_s:.3f} s"
    if slept.cpu_s is not None and slept.cpu_s > 0.35:
        yield f"a program that sleeps used {slept.cpu_s:.3f} CPU seconds"
    spin = "import time\nwhile time.process_time() < {}: pass"
    for what, code in (
        ("a program that computes for 0.3 s", spin.format("0.3")),
        (
            "a child that computes for 0.3 s",
            f"import os\nif os.fork() == 0:\n    exec({spin.format('0.3')!r}); os._exit(0)\nos.wait()",
        ),
    ):
        result = await sandbox.run(code)
        if result.cpu_s is not None and not 0.25 <= result.cpu_s < 1.5:
            yield f"{what} used {result.cpu_s:.3f} CPU seconds"
    large = await sandbox.run("x = bytearray(b'1') * (100 << 20)", limits=Limits(memory_bytes=400 << 20))
    if large.peak_memory_bytes is not None and not 95 << 20 < large.peak_memory_bytes <= 400 << 20:
        yield f"a program that holds 100 MiB had a peak of {large.peak_memory_bytes >> 20} MiB"


async def check_languages(sandbox: Sandbox) -> AsyncIterator[str]:
    """Each language reads, prints, fails and tells a syntax error; others are refused by name."""
    if missing := {"python", "bash"} - sandbox.languages:
        yield f"{', '.join(sorted(missing))} cannot be run"
    limits = Limits(wall_s=30.0)
    for language in sorted(sandbox.languages):
        if language not in _HELLO:
            continue
        good, bad = _HELLO[language]
        result = await sandbox.run(good, language=language, stdin=b"you", limits=limits)
        for message in differs(language, result, ended="nonzero", exit_code=3, out=b"hi you\n"):
            yield message
        wrong = await sandbox.run(bad, language=language, limits=limits)
        if wrong.ended != "nonzero" or not wrong.err:
            yield f"a syntax error in {language} ended as {wrong.ended!r} and said {wrong.err[-100:]!r}"
    for language, kind in [("cobol-60", UnknownNameError), *((name, ProgramError) for name in LANGUAGES)]:
        if language in sandbox.languages:
            continue
        try:
            await sandbox.run("x", language=language)
            yield f"{language} was run and is not among {sorted(sandbox.languages)}"
        except (ProgramError, UnknownNameError) as error:
            if not isinstance(error, kind):
                yield f"{language} is refused as {type(error).__name__}, not {kind.__name__}"


async def check_concurrency(sandbox: Sandbox) -> AsyncIterator[str]:
    """A hundred runs at once are all answered, each with its own answer, though half of them never end."""

    async def run(index: int) -> ExecResult:
        endless = "\nimport signal; signal.signal(15, signal.SIG_IGN)\nwhile True: pass"
        code = f"print({index}, flush=True){endless if index % 2 else ''}"
        return await sandbox.run(code, limits=Limits(wall_s=0.25 if index % 2 else 10.0))

    results = await asyncio.gather(*map(run, range(100)))
    for index, result in enumerate(results):
        ended = "timeout" if index % 2 else "ok"
        # Two hundred and fifty milliseconds may pass on a busy machine before anything is printed.
        out = result.out if index % 2 and not result.out else f"{index}\n".encode()
        for message in differs(f"run {index} of 100", result, ended=ended, out=out):
            yield message

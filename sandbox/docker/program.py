"""The source text of what runs in the container, and the command that takes it in."""

import inspect
import json
import struct
from functools import cache
from importlib import resources

from .. import cells
from . import inside
from .inside.interpreter import READY

_PACKAGE = "turngym_inside"
_MODULES = ("frames", "spawn", "loop", "memory", "program", "interpreter", "files", "runner")  # each after its needs

BOOTSTRAP = f"""
import json, os, struct, sys, types
def read(n):
    data = b""
    while len(data) < n:
        chunk = os.read(0, n - len(data))
        if not chunk:
            sys.exit("the supervisor left before it had sent the runner")
        data += chunk
    return data
package = sys.modules["{_PACKAGE}"] = types.ModuleType("{_PACKAGE}")
package.__path__ = []
for name, source in json.loads(read(*struct.unpack(">I", read(4)))):
    module = sys.modules["{_PACKAGE}." + name] = types.ModuleType("{_PACKAGE}." + name)
    module.__package__ = "{_PACKAGE}"
    setattr(package, name, module)
    exec(compile(source, "<" + name + ">", "exec"), module.__dict__)
module.main()
"""


@cache
def runner_source() -> bytes:
    """Return what the bootstrap reads: a length and the modules."""
    sources = [(name, (resources.files(inside) / f"{name}.py").read_text()) for name in _MODULES]
    text = json.dumps(sources).encode()
    return struct.pack(">I", len(text)) + text


def interpreter_argv(language: str, python: str, requests: int, replies: int) -> list[str]:
    """Return the command of a session's interpreter, which takes cells at one descriptor and answers at another."""
    if language == "bash":
        loop = cells.SHELL_LOOP.format(requests=requests, replies=replies, scratch=replies + 1)
        return ["bash", "--norc", "--noprofile", "-c", f"printf '{READY}\\0' >&{replies}\n{loop}"]
    source = inspect.getsource(cells)
    steps = (
        "import os, signal",
        "signal.signal(signal.SIGINT, signal.SIG_IGN)",  # until the cells handle it
        "names = {'__name__': 'cells'}",
        f"exec(compile({source!r}, '<cells>', 'exec'), names)",
        f"os.write({replies}, b'{READY}\\0')",
        f"names['serve']({requests}, {replies})",
    )
    return [python, "-c", "; ".join(steps)]

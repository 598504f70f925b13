"""The source that is sent into containers."""

import ast
import json
import struct
from pathlib import Path

import pytest

from turngym.sandbox.docker.program import runner_source

SANDBOX = Path(__file__).resolve().parents[3] / "sandbox"
SENT = [SANDBOX / "cells.py", *sorted((SANDBOX / "docker" / "inside").glob("*.py"))]
OWN = {"frames", "spawn", "loop", "memory", "program", "interpreter", "files", "runner"}


@pytest.mark.parametrize("file", SENT, ids=lambda file: file.stem)
def test_what_is_sent_is_python_3_8_without_other_packages(file: Path) -> None:
    tree = ast.parse(file.read_text(), feature_version=(3, 8))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            assert node.level == 1
            assert {node.module or alias.name for alias in node.names} <= OWN
    if file.stem != "__init__":
        assert "from __future__ import annotations" in file.read_text()


def test_every_module_is_sent_after_what_it_imports() -> None:
    source = runner_source()
    (length,) = struct.unpack(">I", source[:4])
    modules = json.loads(source[4:])
    assert length == len(source) - 4
    assert {name for name, _ in modules} == OWN == {file.stem for file in SENT} - {"cells", "__init__"}
    sent: set[str] = set()
    for name, text in modules:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert {node.module or alias.name for alias in node.names} <= sent
        sent.add(name)

"""Tells files written for OpenRLHF from others, without running them."""

import ast
from pathlib import Path


def is_agent_file(path: str) -> bool:
    """Whether a Python file binds `AgentExecutor` at its top level, as OpenRLHF wants it; False where unreadable."""
    try:
        body = ast.parse(Path(path).expanduser().read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return False  # who loads it says what is wrong
    return any("AgentExecutor" in _bound(statement) for statement in body)


def _bound(statement: ast.stmt) -> list[str]:
    """Return the names that a statement binds."""
    match statement:
        case ast.ClassDef(name=name):
            return [name]
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return [alias.asname or alias.name for alias in names]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.If(body=body, orelse=other) | ast.Try(body=body, orelse=other):
            return [name for inner in (*body, *other) for name in _bound(inner)]
    return []

"""What the runner makes of the kernel's counts."""

from pathlib import Path

import pytest

from turngym.sandbox.docker.inside import memory


@pytest.mark.parametrize(
    ("version", "counts", "peak", "cause"),
    [
        (2, (0, 0), 64 << 20, None),
        (2, (0, 3), 64 << 20, None),
        (2, (1, 1), 10 << 20, "memory"),
        (2, (1, 0), 64 << 20, "lost"),
        (1, (0, None), 64 << 20, None),
        (1, (1, None), (64 << 20) - 4096, "memory"),
        (1, (1, None), 40 << 20, "lost"),
    ],
)
def test_the_machines_want_of_memory_is_told_from_the_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, counts, peak: int, cause: str | None
) -> None:
    files = {name: tmp_path / name for name in ("counts", "peak", "limit")}
    monkeypatch.setattr(memory, "_COUNTS", (str(tmp_path / "missing"), str(files["counts"])))
    monkeypatch.setattr(memory, "_PEAKS", (str(files["peak"]),))
    monkeypatch.setattr(memory, "_LIMITS", (str(files["limit"]),))

    def write(kills: int, at_limit: int | None) -> None:
        first = "oom_kill_disable 0\nunder_oom 0\n" if version == 1 else f"max 9\noom {at_limit}\n"
        files["counts"].write_text(f"{first}oom_kill {kills}\n")

    files["peak"].write_text(f"{peak}\n")
    files["limit"].write_text(f"{64 << 20}\n")
    write(0, 0)
    before = memory.kill_count()
    write(*counts)
    assert memory.kill_cause(before) == cause
    assert memory.kill_cause(None) is None

"""How the checks look at results: what every result must be, and how one differs from what was wanted."""

from collections.abc import Iterator
from dataclasses import dataclass

from .limits import Limits
from .results import CellResult, ExecResult

_LATE_S = 20.0  # a kill on a busy machine
_CPUS_AT_ONCE = 256


@dataclass(frozen=True)
class Problem:
    """Something that a sandbox did not do as it must."""

    check: str
    """The check's name, or the hostile program's."""
    message: str


def wrong_fields(result: ExecResult, limits: Limits, tier: str) -> Iterator[str]:
    """Yield how a result contradicts itself or its limits."""
    has_code, has_signal = result.exit_code is not None, result.signal is not None
    ended_itself = result.ended in ("ok", "nonzero")
    if has_code != ended_itself or (has_signal and ended_itself) or (result.ended == "signal" and not has_signal):
        yield f"ended as {result.ended!r} with exit code {result.exit_code} and signal {result.signal}"
    if ended_itself and (result.exit_code == 0) != (result.ended == "ok"):
        yield f"exit code {result.exit_code} counts as {result.ended!r}"
    if result.exit_code is not None and not 0 <= result.exit_code <= 255:
        yield f"exit code {result.exit_code} is not one of 0 to 255"
    for name, written, is_truncated in (
        ("out", result.out, result.is_out_truncated),
        ("err", result.err, result.is_err_truncated),
    ):
        if len(written) > limits.output_bytes:
            yield f"{len(written)} bytes of {name} were kept, and {limits.output_bytes} was the limit"
        if is_truncated and len(written) < limits.output_bytes:
            yield f"{name} counts as truncated with {len(written)} of {limits.output_bytes} bytes kept"
    if result.tier != tier:
        yield f"its tier is {result.tier!r}, the sandbox's {tier!r}"
    yield from _wrong_amounts(result, limits)


def _wrong_amounts(result: ExecResult, limits: Limits) -> Iterator[str]:
    if not 0 <= result.wall_s < limits.wall_s + _LATE_S:
        yield f"it took {result.wall_s:.2f} s at a limit of {limits.wall_s:g} s"
    if result.ended == "timeout" and limits.cpu_s is None and result.wall_s < 0.9 * limits.wall_s:
        yield f"it was ended as late after {result.wall_s:.2f} of {limits.wall_s:g} s"
    if result.cpu_s is not None and not 0 <= result.cpu_s <= (result.wall_s + 0.1) * _CPUS_AT_ONCE:
        yield f"{result.cpu_s} CPU seconds in {result.wall_s:.2f} s"
    if result.peak_memory_bytes is not None and result.peak_memory_bytes < 0:
        yield f"a peak memory of {result.peak_memory_bytes} bytes"


def differs(what: str, result: ExecResult | CellResult, **wanted: object) -> Iterator[str]:
    """Yield for each named field how it differs from what was wanted, with what the program said of it."""
    said = f"; it wrote {result.out[-100:]!r} and {result.err[-200:]!r}"
    if isinstance(result, CellResult) and result.error:
        said += f", error {result.error[-200:]!r}"
    for name, value in wanted.items():
        came = getattr(result, name)
        if came != value:
            yield f"{what}: wanted {name} {value!r:.100}, got {came!r:.100}{said}"

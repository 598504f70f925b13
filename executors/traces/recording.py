"""What RUN names: a run folder, its trajectories or one file; the episodes in it and the run's configuration."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...registry import nearest
from ..episodes.trajectory import EndReason, FailureKind, Trajectory
from ..store.parts import parts_in, step_of
from ..store.store import Complain, StoredTrajectory, read_part
from .options import Selection

SPLITS = ("train", "eval")


@dataclass(frozen=True)
class Recorded:
    """An episode; `split` is the folder it was found in, empty where that is none of a run's."""

    split: str
    stored: StoredTrajectory

    @property
    def trajectory(self) -> Trajectory:
        """The episode itself."""
        return self.stored.trajectory

    @property
    def id(self) -> str:
        """STEP/TASK/ATTEMPT; a step that holds a task twice has it twice."""
        return f"{self.stored.step}/{self.trajectory.task.id}/{self.trajectory.attempt}"


@dataclass(frozen=True)
class Part:
    """One file of a store."""

    split: str
    path: Path


@dataclass(frozen=True)
class Recording:
    """All that was recorded."""

    run: Path
    parts: tuple[Part, ...]

    def episodes(self, selection: Selection, complain: Complain) -> Iterator[Recorded]:
        """Yield the episodes that are selected, in the order they were written in."""
        for part in self.selected_parts(selection):
            yield from episodes_of(part, selection, complain)

    def selected_parts(self, selection: Selection) -> list[Part]:
        """Return the files that may hold what is selected."""
        first, last = _steps(selection)
        kept = [part for part in self.parts if selection.split in (None, part.split)]
        return [part for part in kept if (step := step_of(part.path)) is None or first <= step <= last]

    def config(self) -> Mapping[str, Any]:  # Any: YAML
        """Return the options of the run this belongs to; empty where no config.yaml is near."""
        import yaml

        folder = self.run.resolve()
        for place in [folder, *folder.parents][:4]:
            file = place / "config.yaml"
            if not file.is_file():
                continue
            try:
                content = yaml.safe_load(file.read_text())
            except (yaml.YAMLError, UnicodeDecodeError) as error:
                raise ConfigError(f"{str(file)!r} is not YAML: {' '.join(str(error).split())}") from error
            if not isinstance(content, dict):
                raise ConfigError(f"{str(file)!r} holds a {type(content).__name__}; wanted a mapping of options")
            return content
        return {}


def open_recording(run: Path) -> Recording:
    """Find the files of a run.

    Raises:
        ConfigError: There are none.
    """
    if run.is_file():
        return Recording(run, (Part(_split_of(run.parent), run),))
    if not run.is_dir():
        raise ConfigError(f"there is no {str(run)!r}; wanted a run folder, its trajectories folder or one file of it")
    root = run / "trajectories" if (run / "trajectories").is_dir() else run
    folders = [root, *sorted((folder for folder in root.iterdir() if folder.is_dir()), key=_place)]
    parts = [Part(_split_of(folder), path) for folder in folders for path in parts_in(folder)]
    if not parts:
        raise ConfigError(
            f"{str(run)!r} holds no trajectories; wanted a run folder (--ckpt.output_dir) after its first step, its "
            "trajectories folder or one file of it (--logger.trajectories_per_step 0 keeps none)"
        )
    return Recording(run, tuple(parts))


def episodes_of(part: Part, selection: Selection, complain: Complain) -> Iterator[Recorded]:
    """Yield what is selected of one file."""
    for stored in read_part(part.path, complain):
        episode = Recorded(part.split, stored)
        if matches(episode, selection):
            yield episode


def matches(episode: Recorded, selection: Selection) -> bool:
    """Say whether an episode is selected."""
    trajectory, failure = episode.trajectory, episode.trajectory.failure
    first, last = _steps(selection)
    ends = {trajectory.end_reason.value} | ({failure.kind.value} if failure else set())
    return (
        selection.id in (None, episode.id)
        and first <= episode.stored.step <= last
        and (selection.task is None or selection.task in trajectory.task.id)
        and (not selection.failed or failure is not None)
        and (selection.end_reason is None or selection.end_reason in ends)
        and selection.engine in (None, trajectory.engine)
        and _pays(trajectory, selection.min_reward, selection.max_reward)
        and (selection.contains is None or _holds(trajectory, selection.contains))
    )


def check_selection(selection: Selection) -> None:
    """Refuse an id or an end that cannot be.

    Raises:
        ConfigError: It has another form, or a name is not known.
    """
    ends = [end.value for end in (*EndReason, *FailureKind)]
    if selection.end_reason is not None and selection.end_reason not in ends:
        raise ConfigError(f"--end_reason: unknown {selection.end_reason!r}.{nearest(selection.end_reason, ends)}")
    if selection.id is None:
        return
    step, _, rest = selection.id.partition("/")
    task, _, attempt = rest.rpartition("/")
    if not (step.isdecimal() and task and attempt.isdecimal()):
        raise ConfigError(f"an episode is named STEP/TASK/ATTEMPT, such as 12/Guess/train/7/0; got {selection.id!r}")


def none_selected(recording: Recording, selection: Selection) -> ConfigError:
    """Return the error that says that nothing was selected, and what is near."""
    if selection.id is None:
        return ConfigError(f"no episode in {str(recording.run)!r} is as selected; leave some of the filters out")
    step = int(selection.id.partition("/")[0])
    near = Selection(steps=(step, step), split=selection.split)
    ids = {episode.id for episode in recording.episodes(near, lambda complaint: None)}
    if ids:
        return ConfigError(f"there is no episode {selection.id!r}.{nearest(selection.id, ids)}")
    steps = sorted({found for part in recording.parts if (found := step_of(part.path)) is not None})
    return ConfigError(f"there is no episode {selection.id!r}: nothing of step {step} is kept; steps: {steps}")


def texts_of(trajectory: Trajectory) -> Iterator[str]:
    """Yield the texts of all messages."""
    for message in trajectory.messages:
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"text": content or ""}]
        yield from (str(part.get("text", "")) for part in parts)


def _pays(trajectory: Trajectory, least: float | None, most: float | None) -> bool:
    if least is None and most is None:
        return True
    if not trajectory.is_valid:
        return False
    return (least is None or trajectory.reward >= least) and (most is None or trajectory.reward <= most)


def _holds(trajectory: Trajectory, text: str) -> bool:
    failure = trajectory.failure.message if trajectory.failure else ""
    return any(text.casefold() in found.casefold() for found in (*texts_of(trajectory), failure))


def _steps(selection: Selection) -> tuple[float, float]:
    if selection.id is not None:
        step = int(selection.id.partition("/")[0])
        return step, step
    return selection.steps or (float("-inf"), float("inf"))


def _split_of(folder: Path) -> str:
    name = folder.resolve().name
    return name if name in SPLITS else ""


def _place(folder: Path) -> tuple[int, str]:
    return (SPLITS.index(folder.name) if folder.name in SPLITS else len(SPLITS)), folder.name

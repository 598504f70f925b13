"""`turngym traces rescore`: another reward function over recorded episodes, old rewards against new ones."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ...agents.tokenizer import Codec, load_tokenizer
from ...envs.rewards import AnyReward, load_reward, reward_of
from ...errors import ConfigError, TurnGymError
from ..episodes.failures import Stage, failure_of
from ..episodes.trajectory import EndReason, Trajectory
from ..store.store import Complain, TrajectoryStore
from .options import RescoreOptions, Selection
from .progress import Progress
from .recording import Part, Recorded, Recording, check_selection, episodes_of, none_selected, open_recording
from .reward_texts import Reading, read_environment, reading_of
from .run_settings import model_of
from .terminal import console, one_line

MOST_AT_ONCE = 64
MOST_CHANGES = 10


@dataclass(frozen=True)
class Pair:
    """What one episode was worth, and is now; None where the new function failed."""

    id: str
    old: float
    new: float | None


@dataclass
class Tally:
    """What came of all episodes."""

    pairs: list[Pair]
    num_left_alone: int = 0
    first_failure: str = ""


def rescore(run: Path, selection: Selection, options: RescoreOptions, complain: Complain) -> int:
    """Score what is selected anew, print old against new, and write new episodes if asked to; 1 if no reward came.

    Raises:
        ConfigError: There is nothing, or an option cannot be.
    """
    check_selection(selection)
    recording = open_recording(run)
    out = None if options.out is None else _new_folder(options.out, recording)
    reward = load_reward(options.remote_url, timeout_s=options.timeout_s)
    config = recording.config()
    codec, agent = Codec(load_tokenizer(model_of(config, options.model))), config.get("agent")
    tally = Tally([])
    parts = recording.selected_parts(selection)
    with Progress("scoring", len(parts)) as progress:
        for part in parts:
            episodes = list(episodes_of(part, selection, complain))
            for episode in episodes:
                if "label" in (episode.stored.inexact or ()):
                    complain(f"{episode.id}: its label was nothing JSON has a form for, and is scored in another")
            scored = asyncio.run(_scored(episodes, agent, reward, codec, tally))
            if out is not None and scored:
                _write(out, part, scored)
            progress.advance()
    if not tally.pairs and not tally.num_left_alone:
        raise none_selected(recording, selection)
    _print(tally)
    if out is not None:
        console().print(f"written to {out}", markup=False)
    return 1 if tally.pairs and all(pair.new is None for pair in tally.pairs) else 0


async def _scored(
    episodes: Sequence[Recorded], agent: str | None, reward: AnyReward, codec: Codec, tally: Tally
) -> list[Recorded]:
    """Return the episodes with their new rewards; those without a completion to score as they are.

    Args:
        episodes: All of one file.
        agent: What `--agent` said, where an episode does not know.
        reward: The new function.
        codec: The model's tokenizer.
        tally: Is added to.
    """
    limit = asyncio.Semaphore(MOST_AT_ONCE)

    async def one(episode: Recorded) -> Trajectory:
        async with limit:
            reading = reading_of(episode.stored.env or agent)
            return await rescored(episode.trajectory, reward, codec, reading)

    todo = [place for place, episode in enumerate(episodes) if _is_scorable(episode.trajectory)]
    new = dict(zip(todo, await asyncio.gather(*(one(episodes[place]) for place in todo)), strict=True))
    tally.num_left_alone += len(episodes) - len(todo)
    for place, trajectory in new.items():
        old, failure = episodes[place], trajectory.failure
        tally.pairs.append(Pair(old.id, old.trajectory.reward, None if failure else trajectory.reward))
        tally.first_failure = tally.first_failure or (failure.message if failure else "")
    return [
        replace(episode, stored=replace(episode.stored, trajectory=new.get(place, episode.trajectory)))
        for place, episode in enumerate(episodes)
    ]


async def rescored(
    trajectory: Trajectory, reward: AnyReward, codec: Codec, reading: Reading = read_environment
) -> Trajectory:
    """Return an episode with a new reward, on its last turn, or as failed; `reading` says what the function sees."""
    shown = reading(trajectory, codec)
    last = trajectory.num_turns - 1
    try:
        new = await reward_of(reward, trajectory.task, shown.answer, shown.prompt, shown.query)
    except TurnGymError as error:
        failure = failure_of(error, Stage.ENV, last)
        return replace(
            trajectory,
            rewards_per_turn=np.zeros(last),
            end_reason=EndReason.FAILED,
            failure=failure,
            score=None,
            extra_logs={},
        )
    per_turn = np.zeros(last + 1)
    per_turn[last] = new.reward
    return replace(trajectory, rewards_per_turn=per_turn, score=new.score, extra_logs=dict(new.extra_logs))


def _is_scorable(trajectory: Trajectory) -> bool:
    return trajectory.is_valid and trajectory.num_turns > 0 and bool(trajectory.sequences)


def _new_folder(name: str, recording: Recording) -> Path:
    """Return the folder to write to.

    Raises:
        ConfigError: It holds something, or lies among the episodes that are read.
    """
    folder = Path(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"--out {name!r} holds something already; name a new folder")
    for part in recording.parts:
        home = part.path.resolve().parent
        home = home.parent if home.parent.name == "trajectories" else home
        if folder.resolve().is_relative_to(home):
            raise ConfigError(f"--out {name!r} lies among the episodes that are read; name a folder elsewhere")
    return folder


def _write(out: Path, part: Part, episodes: Sequence[Recorded]) -> None:
    store = TrajectoryStore(out / part.split)
    for step in sorted({episode.stored.step for episode in episodes}):
        store.copy(step, [episode.stored for episode in episodes if episode.stored.step == step])


def _print(tally: Tally) -> None:
    def say(line: str) -> None:
        console().print(line, markup=False)

    scored = [(pair, pair.new) for pair in tally.pairs if pair.new is not None]
    changed = [(pair, new) for pair, new in scored if new != pair.old]
    say(f"{len(scored)} episodes scored anew, {len(changed)} of them changed")
    if len(scored) < len(tally.pairs):
        why = one_line(tally.first_failure)
        say(f"{len(tally.pairs) - len(scored)} without a reward, left out of all that follows; the first: {why}")
    if tally.num_left_alone:
        say(f"{tally.num_left_alone} left alone, since the attempt failed when it was played")
    if not scored:
        return
    old, new_rewards = np.array([pair.old for pair, _ in scored]), np.array([new for _, new in scored])
    say(f"mean reward {old.mean():.6g} before, {new_rewards.mean():.6g} now")
    varies = len(scored) > 1 and np.ptp(old) > 0 and np.ptp(new_rewards) > 0
    correlation = f"{np.corrcoef(old, new_rewards)[0, 1]:.4f}" if varies else "not defined: one side is constant"
    say(f"correlation {correlation}")
    if changed:
        say("largest changes:")
    for pair, new in sorted(changed, key=lambda each: -abs(each[1] - each[0].old))[:MOST_CHANGES]:
        say(f"  {pair.old:>10.4g} -> {new:<10.4g} {one_line(pair.id)}")

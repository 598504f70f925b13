"""`turngym traces replay`: recorded completions against the environment as it is now."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...agents.base import StopReason
from ...agents.chat import ChatAgent, agent_for
from ...agents.images import image_reader_of
from ...agents.template_kwargs import parse_template_kwargs
from ...agents.tokenizer import Codec, load_tokenizer
from ...envs.factory import EnvFactory
from ...errors import EngineError
from ...sandbox.registration import close_shared
from ..engines.scripted import Reply, Request, ScriptedEngine
from ..episodes.trajectory import Trajectory, TurnEnd
from ..options import RolloutOptions
from ..own_agents.agent_file import AgentFileExecutor, make_executor
from ..pools.env_pool import EnvPool
from ..store.store import Complain
from .compare import Decode, Difference, first_difference
from .options import ReplayOptions, Selection
from .progress import Progress
from .recording import Recorded, check_selection, none_selected, open_recording
from .run_settings import EpisodeSettings, environment, episode_settings, group, model_of
from .terminal import console, one_line, shown
from .turns import turns_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MOST_AT_ONCE = 32
MOST_DIFFERENCES = 20

_STOP_REASONS: dict[TurnEnd | None, StopReason] = {
    TurnEnd.STOP: StopReason.STOP,
    TurnEnd.ABORT: StopReason.ABORT,
}  # all others are limits
_ASKS_FOR_MORE = (
    "its execute asks for more completions than were kept; those that it threw away are not in the recording, and such "
    "an episode cannot be replayed"
)


@dataclass(frozen=True)
class Replay:
    """An episode, how it goes now, and where that first differs."""

    recorded: Recorded
    now: Trajectory
    difference: Difference | None


class Tape:
    """Gives the recorded completions one after the other, and says when it was asked for more."""

    def __init__(self, trajectory: Trajectory) -> None:
        self._turns = turns_of(trajectory)[1:]
        self.ran_out = False

    def __call__(self, request: Request) -> Reply:
        """Answer a request."""
        if request.index >= len(self._turns):
            self.ran_out = True
            raise EngineError(f"the recording ends after turn {len(self._turns) - 1}")
        turn = self._turns[request.index]
        return Reply(turn.token_ids, turn.logprobs, turn.versions, _STOP_REASONS.get(turn.end, StopReason.LENGTH))


class Player:
    """Plays recorded episodes anew, as a rollout actor would."""

    def __init__(
        self,
        agent: ChatAgent,
        env: EnvFactory,
        settings: EpisodeSettings,
        tokenizer: "PreTrainedTokenizerBase",
        decode: Decode,
    ) -> None:
        self._settings = settings
        self._decode = decode
        self._pool = EnvPool(settings.num_env_threads)
        self._executor = make_executor(agent, env, self._pool, settings.limits, tokenizer)
        self._limit = asyncio.Semaphore(MOST_AT_ONCE)

    async def play(self, recorded: Recorded) -> Replay:
        """Play one episode and compare."""
        old = recorded.trajectory
        tape = Tape(old)
        engine = ScriptedEngine(tape, max_context=self._settings.max_context)
        async with self._limit:
            now = await self._executor.run(old.task, old.attempt, engine, self._settings.sampling)
        difference = first_difference(old, now, self._decode, ran_out=tape.ran_out)
        if difference is not None and tape.ran_out and isinstance(self._executor, AgentFileExecutor):
            difference = replace(difference, now=_ASKS_FOR_MORE)
        return Replay(recorded, now, difference)

    async def play_all(self, episodes: Sequence[Recorded], progress: Progress) -> list[Replay]:
        """Play many beside each other; the order stays."""

        async def one(recorded: Recorded) -> Replay:
            replayed = await self.play(recorded)
            progress.advance()
            return replayed

        try:
            return await asyncio.gather(*map(one, episodes))
        finally:
            self._pool.close()
            await close_shared()


def replay(run: Path, selection: Selection, options: ReplayOptions, complain: Complain) -> int:
    """Replay what is selected and say where it first differs; 1 if anything does.

    Raises:
        ConfigError: There is nothing, or an option cannot be.
    """
    check_selection(selection)
    recording = open_recording(run)
    tree = recording.config()
    env = environment(tree, options)
    episodes = list(recording.episodes(selection, complain))
    if not episodes:
        raise none_selected(recording, selection)
    if not tree:
        complain("no config.yaml is near the episodes: limits are the defaults of turngym train")
    model = model_of(tree, options.model)
    tokenizer = load_tokenizer(model)
    codec, rollout = Codec(tokenizer), group(tree, "rollout", RolloutOptions())
    player = Player(
        agent_for(
            tokenizer,
            template_kwargs=parse_template_kwargs(rollout.chat_template_kwargs),
            tool_parser=rollout.tool_parser,
            reasoning_parser=rollout.reasoning_parser,
            images=image_reader_of(model),
        ),
        env,
        episode_settings(tree),
        tokenizer,
        lambda ids: codec.decode(np.asarray(ids, np.int32)),
    )
    with Progress("replaying", len(episodes)) as progress:
        replays = asyncio.run(player.play_all(episodes, progress))
    for each in episodes:
        if each.stored.inexact:
            names = " and ".join(each.stored.inexact)
            complain(f"{each.id}: its task's {names} held what JSON has no form for, and came back in another")
    if selection.id is not None:
        for one in replays:
            _print_one(one)
    else:
        _print_summary(replays)
    return 1 if any(one.difference for one in replays) else 0


def _print_one(replay: Replay) -> None:
    out, difference, now = console(), replay.difference, replay.now
    name = one_line(f"{replay.recorded.split} {replay.recorded.id}".strip())
    if difference is None:
        end = f"failed as before, {now.failure.kind.value}" if now.failure else f"reward {now.reward:.6g}"
        out.print(f"{name}: equal in all {replay.recorded.trajectory.num_turns} turns, {end}", markup=False)
        return
    place = "before the first turn" if difference.turn < 0 else f"in turn {difference.turn}"
    out.print(f"{name}: differs first {place}: {difference.what}", markup=False)
    for side, text in (("recorded", difference.recorded), ("now", difference.now)):
        lines = shown(text).split("\n")
        out.print(f"  {side:<9} {lines[0]}", markup=False)
        for line in lines[1:]:
            out.print(f"  {'':<9} {line}", markup=False)


def _print_summary(replays: Sequence[Replay]) -> None:
    out = console()
    different = [(one, one.difference) for one in replays if one.difference is not None]
    out.print(f"{len(replays) - len(different)} of {len(replays)} episodes are equal", markup=False)
    for what, count in Counter(difference.what for _, difference in different).most_common():
        out.print(f"  {count} differ first in: {what}", markup=False)
    for one, difference in different[:MOST_DIFFERENCES]:
        was, became = one_line(difference.recorded, 60), one_line(difference.now, 60)
        place = f"turn {difference.turn}, {difference.what}"
        out.print(f"{one_line(one.recorded.id)}: {place}: {was!r} -> {became!r}", markup=False)
    if len(different) > MOST_DIFFERENCES:
        out.print(f"... and {len(different) - MOST_DIFFERENCES} more", markup=False)

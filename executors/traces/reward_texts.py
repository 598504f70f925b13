"""What a run showed its reward function of an episode, taken again from what was kept of it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...agents.frameworks.factory import KINDS
from ...agents.tokenizer import Codec
from ...envs.openrlhf.recognise import is_agent_file
from ..episodes.trajectory import Trajectory
from ..own_agents.branch_texts import texts


@dataclass(frozen=True)
class Texts:
    """What `envs.rewards.reward_of` takes.

    Attributes:
        answer: The model's last words, without special tokens.
        prompt: What stands before them.
        query: Both, special tokens kept.
    """

    answer: str
    prompt: str
    query: str


Reading = Callable[[Trajectory, Codec], Texts]


def reading_of(agent: str | None) -> Reading:
    """Return how the texts of an episode are taken, by what `--agent` said of it; None for what is not known."""
    kind, _, spec = (agent or "").partition(":")
    if kind == "func" and is_agent_file(spec):
        return read_agent_file
    return read_agent if kind in KINDS else read_environment


def read_environment(trajectory: Trajectory, codec: Codec) -> Texts:
    """Return what the environment `Prompt` shows: all text up to the end of the last completion."""
    last = trajectory.num_turns - 1
    spoken = [s for s in trajectory.sequences if (s.is_action & (s.turn == last)).any()]
    sequence = spoken[0] if spoken else trajectory.sequences[-1]
    places = np.flatnonzero(sequence.is_action & (sequence.turn == last))
    if len(places):
        end, said = int(places[-1]) + 1, sequence.token_ids[places]
    else:  # nothing was sampled: the answer is empty
        end, said = int(np.count_nonzero(sequence.turn < last)), sequence.token_ids[:0]
    query = codec.decode(sequence.token_ids[:end])
    return Texts(codec.decode(said, skip_special_tokens=True), query.removesuffix(codec.decode(said)), query)


def read_agent_file(trajectory: Trajectory, codec: Codec) -> Texts:
    """Return what OpenRLHF's executor of one turn shows: the prompt is the dataset's text, its images not expanded."""
    shown, prompt = read_environment(trajectory, codec), trajectory.task.prompt
    is_whole = trajectory.num_turns == 1 and isinstance(prompt, str)
    return Texts(shown.answer, str(prompt), shown.query) if is_whole else shown


def read_agent(trajectory: Trajectory, codec: Codec) -> Texts:
    """Return what `AgentEpisodes` shows of a user's own agent: what was said between prompt and answer is left out."""
    said = [message.get("content") for message in trajectory.messages if message["role"] == "assistant"]
    return Texts(str((said or [""])[-1] or ""), *texts(trajectory.sequences, codec))

"""What kind of thing --agent names; torch-free."""

from pathlib import Path

from ...agents.frameworks.factory import KINDS
from ...envs.openrlhf.recognise import is_agent_file
from ..run.settings import TrainSettings


def has_prompt_env(s: TrainSettings) -> bool:
    """Whether episodes are those of the environment Prompt."""
    return s.agent in (None, "env:Prompt")


def has_agent_file(s: TrainSettings) -> bool:
    """Whether episodes are those of a file written for OpenRLHF; one that is not there will be refused as such."""
    kind, _, path = (s.agent or "").partition(":")
    return kind == "func" and (is_agent_file(path) or not Path(path).expanduser().exists())


def has_user_agent(s: TrainSettings) -> bool:
    """Whether episodes are those of an agent of the user's own, which is no environment."""
    return s.agent is not None and s.agent.partition(":")[0] in KINDS and not has_agent_file(s)

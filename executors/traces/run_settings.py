"""What a run's config.yaml says of its environment, model and limits, as far as episodes depend on it."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ...agents.base import Sampling
from ...agents.frameworks.factory import KINDS
from ...envs.factory import EnvFactory
from ...envs.openrlhf.env import agent_file
from ...envs.openrlhf.recognise import is_agent_file
from ...envs.options import DataOptions, EnvPoolOptions, RewardOptions
from ...envs.resolution import resolve
from ...errors import ConfigError
from ..episodes.limits import Limits
from ..options import RolloutOptions
from ..own_agents.run_agent import asks_server
from .options import ReplayOptions

Options = TypeVar("Options")
Tree = Mapping[str, Any]  # Any: YAML

PROMPT = "env:Prompt"


@dataclass(frozen=True)
class EpisodeSettings:
    """What an executor and its engine were made with."""

    limits: Limits
    sampling: Sampling
    max_context: int
    num_env_threads: int


def environment(tree: Tree, options: ReplayOptions) -> EnvFactory:
    """Return the run's environment, or another that is asked for.

    Raises:
        ConfigError: Nothing says which, or it cannot be.
    """
    own = (tree.get("agent") or PROMPT) if tree else None
    agent = options.agent or own
    if agent is None:
        raise ConfigError("no config.yaml is near the episodes to say what was played; give --agent env:NAME")
    kind, _, spec = agent.partition(":")
    is_file = kind == "func" and _may_be_agent_file(spec)
    if kind in KINDS and (not is_file or asks_server(str(Path(spec).expanduser().resolve()))):
        raise ConfigError(
            f"--agent {agent} is an agent of its user's own: it asks for completions as it likes, and no environment "
            "answers them, so it cannot be replayed; `turngym traces rescore` scores its episodes anew"
        )
    if is_file:
        arguments = dict(tree.get("agent_args") or {}) if agent == own else {}
        return agent_file(spec, {**arguments, **options.agent_args})
    if kind != "env" or not spec:
        raise ConfigError(f"--agent {agent!r}: wanted env:NAME, env:module:Class, env:path/to/file.py:Class")
    arguments = dict(tree.get("agent_args") or {}) if agent == own else {}
    if agent == PROMPT and tree:
        reward, data = group(tree, "reward", RewardOptions()), group(tree, "data", DataOptions())
        given = {"remote_url": reward.remote_url, "timeout_s": reward.timeout_s}
        arguments = {**given, "apply_chat_template": data.apply_chat_template, **arguments}
    elif agent == own and (url := group(tree, "reward", RewardOptions()).remote_url) is not None:
        # It was allowed only for an environment that takes it.
        arguments = {"remote_url": url, "timeout_s": group(tree, "reward", RewardOptions()).timeout_s, **arguments}
    return resolve(spec, {**arguments, **options.agent_args})


def _may_be_agent_file(path: str) -> bool:
    """Whether a file is one for OpenRLHF; one that is not there is refused as such."""
    return is_agent_file(path) or (path.endswith(".py") and not Path(path).expanduser().exists())


def model_of(tree: Tree, given: str | None) -> str:
    """Return the model whose tokenizer read the tokens.

    Raises:
        ConfigError: Nothing says which.
    """
    actor = tree.get("actor")
    model = given or (actor.get("model_name_or_path") if isinstance(actor, dict) else None)
    if not isinstance(model, str):
        raise ConfigError(
            "no config.yaml is near the episodes to say whose tokens these are; give --actor.model_name_or_path FOLDER"
        )
    return model


def episode_settings(tree: Tree) -> EpisodeSettings:
    """Return what the run's episodes might use; where the configuration is silent, the defaults of `turngym train`."""
    rollout, data = group(tree, "rollout", RolloutOptions()), group(tree, "data", DataOptions())
    pool, reward = group(tree, "env_pool", EnvPoolOptions()), group(tree, "reward", RewardOptions())
    env_timeout_s = pool.timeout_s if reward.remote_url is None else max(pool.timeout_s, reward.timeout_s)
    limits = Limits(
        max_turns=rollout.max_turns,
        max_turn_tokens=rollout.max_new_tokens,
        max_episode_tokens=rollout.max_episode_tokens,
        max_context=data.max_len,
        max_seconds=rollout.max_seconds,
        env_timeout_s=env_timeout_s,
        generate_timeout_s=rollout.generate_timeout_s,
    )
    return EpisodeSettings(limits, Sampling(rollout.max_new_tokens or data.max_len), data.max_len, pool.num_threads)


def group(tree: Tree, name: str, defaults: Options) -> Options:
    """Return a group of options as the configuration has it; options that this version does not know are left out."""
    content = tree.get(name)
    if not isinstance(content, dict):
        return defaults
    known = {field.name for field in dataclasses.fields(defaults)}  # type: ignore[arg-type]
    return dataclasses.replace(defaults, **{key: value for key, value in content.items() if key in known})  # type: ignore[type-var]

"""What a run is about: environment, tasks and model, found and checked before anything is loaded."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...agents.frameworks.factory import KINDS, AgentFactory, resolve_agent
from ...envs.factory import EnvFactory
from ...envs.openrlhf.recognise import is_agent_file
from ...envs.resolution import resolve, takes_remote_url
from ...envs.task import Task
from ...errors import ConfigError, DataError
from ...executors.pools.from_options import parse_resources, parse_weights
from ...registry import nearest
from ..option_checks.agent import has_agent_file
from ..option_checks.branches import check_can_fork
from ..option_checks.determinism import check_sides
from ..option_checks.pairs import check_pairs, complaints
from ..option_checks.ranges import check_ranges
from .batch_plan import plan_batches
from .settings import TrainSettings


@dataclass(frozen=True)
class Inputs:
    """What a run is about: checked, and nothing loaded yet."""

    env: EnvFactory | AgentFactory
    tasks: Sequence[Task]
    eval_tasks: Sequence[Task]
    fingerprint: str
    model: str
    complaints: tuple[str, ...]  # what is doubtful about options and tasks


def check_inputs(settings: TrainSettings) -> Inputs:
    """Find environment, tasks and model, and check that the numbers fit each other."""
    check_ranges(settings)
    check_pairs(settings)
    world_size = (settings.actor.num_gpus_per_node or 1) * settings.actor.num_nodes
    plan_batches(settings.rollout, settings.train, settings.algo.advantage, world_size)
    _check_names(settings)
    weights = parse_weights(settings.env_pool.weights)
    parse_resources(settings.env_pool.resources)
    model = check_model(settings.actor.model_name_or_path, "--actor.model_name_or_path")
    env = _environment(settings)
    check_can_fork(settings, env)
    if isinstance(env, EnvFactory):
        check_sides(settings, env)
    _check_weights(weights, env)
    tasks = _tasks(settings, env)
    if settings.data.max_samples < len(tasks):
        tasks = tasks[: settings.data.max_samples]
    if not len(tasks):
        raise DataError("there is no task to train on")
    doubts = (*complaints(settings), *_complaints(env, tasks))
    return Inputs(env, tasks, _eval_tasks(settings, env), _fingerprint(settings, env, tasks), model, doubts)


def check_eval_inputs(settings: TrainSettings) -> Inputs:
    """Find environment, held-out tasks and model of an evaluation, which learns from nothing; as `check_inputs`."""
    check_ranges(settings)
    check_pairs(settings)
    _check_names(settings)
    parse_resources(settings.env_pool.resources)
    model = check_model(settings.actor.model_name_or_path, "--actor.model_name_or_path")
    env = _environment(settings)
    _check_weights(parse_weights(settings.env_pool.weights), env)
    tasks = _held_out(settings, env)
    if not len(tasks):
        raise DataError("there is no task to evaluate on: the environment has none of its own; give --eval.dataset")
    return Inputs(env, (), tasks, _fingerprint(settings, env, tasks), model, tuple(_complaints(env, tasks)))


def _check_names(settings: TrainSettings) -> None:
    """Look up what is chosen by name, and refuse what cannot be honoured."""
    from ..advantages import ESTIMATORS, check_credit
    from ..losses.choice import aggregation_choice, correction_choice, policy_options
    from ..losses.kl_controller import KlController
    from ..steps.filtering import check_filtering
    from ..steps.pass_at_k import check_tries

    advantage, rollout, kl = settings.algo.advantage, settings.rollout, settings.algo.kl
    ESTIMATORS[advantage.estimator]
    check_credit(advantage.estimator, advantage.credit, advantage.gamma, advantage.lambd)
    check_filtering(settings.algo)
    check_tries(settings.eval.pass_at, settings.eval.n_samples_per_prompt)
    policy_options(settings.actor)
    aggregation_choice(settings)
    correction_choice(advantage)
    KlController(kl.init_coef, kl.target, kl.horizon)
    if rollout.top_p != 1:
        raise ConfigError(
            f"--rollout.top_p {rollout.top_p}: the engine samples among the likeliest tokens and normalises over them, "
            "the learner over all, so every importance ratio would be the kept share instead of 1; "
            "use 1.0 (--rollout.temperature narrows the distribution on both sides)"
        )
    if rollout.temperature <= 0:
        raise ConfigError(
            f"--rollout.temperature {rollout.temperature}: attempts at a task would not differ; use a positive one"
        )


def _check_weights(weights: Mapping[str, float], env: EnvFactory | AgentFactory) -> None:
    for name in weights if env.members else ():
        if name not in env.members:
            raise ConfigError(
                f"--env_pool.weights: the mixture has no member {name!r}.{nearest(name, env.members)} "
                f"It has: {', '.join(env.members)}"
            )


def check_model(path: str | None, option: str) -> str:
    """Return the model's folder or hub name, once it looks like one.

    Raises:
        ConfigError: It does not.
    """
    if path is None:
        raise ConfigError(f"{option} is missing: a Hugging Face folder or hub name")
    folder = Path(path).expanduser()
    looks_like_path = path.startswith((".", "/", "~")) or path.count("/") != 1
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(f"{option}: {path!r} is a folder without config.json, so no model")
        if not any(file.suffix in (".safetensors", ".bin") for file in folder.iterdir()):
            raise ConfigError(f"{option}: {path!r} has no weights (*.safetensors or *.bin)")
        return model_place(path)
    if looks_like_path or folder.exists():
        raise ConfigError(f"{option}: there is no model folder {path!r}")
    return path


def model_place(path: str) -> str:
    """Return a folder by its whole path, which holds in every process, and a hub name as it is."""
    folder = Path(path).expanduser()
    return str(folder.resolve()) if folder.is_dir() else path


def _environment(settings: TrainSettings) -> EnvFactory | AgentFactory:
    agent, url = settings.agent, settings.reward.remote_url
    if agent is None:
        if url is None and settings.reward.model_name_or_path is None and settings.teacher.model_name_or_path is None:
            raise ConfigError(
                "nothing says what to train on: give --agent env:NAME ('turngym envs list' shows them), or "
                "--data.prompt_dataset with --reward.remote_url FILE.py, --reward.model_name_or_path or "
                "--teacher.model_name_or_path"
            )
        return resolve("Prompt", _prompt_arguments(settings, url))
    kind, _, spec = agent.partition(":")
    if kind == "func" and is_agent_file(spec):
        return _agent_file(settings, spec)
    if kind in KINDS:
        return resolve_agent(agent, settings.agent_args, remote_url=url, reward_timeout_s=settings.reward.timeout_s)
    if kind != "env" or not spec:
        raise ConfigError(
            f"--agent {agent!r}: wanted env:NAME, env:module:Class, env:path/to/file.py:Class, func:path/to/file.py, "
            "command:'PROGRAM ARGUMENTS' or framework:NAME"
        )
    given = _prompt_arguments(settings, url) if spec == "Prompt" else {}
    if url is not None and spec != "Prompt":
        if not takes_remote_url(spec):
            raise ConfigError(
                f"--reward.remote_url is for environments that give no reward, and --agent {agent!r} gives its own; "
                "leave one of them out"
            )
        given = {"remote_url": url, "timeout_s": settings.reward.timeout_s}
    return resolve(spec, given | dict(settings.agent_args))


def _agent_file(settings: TrainSettings, path: str) -> EnvFactory:
    """Return the agent of a file written for OpenRLHF, which is shown how the run samples."""
    from ...envs.openrlhf.env import agent_file

    if settings.reward.remote_url is not None:
        raise ConfigError(
            f"--reward.remote_url is for environments that give no reward, and the agent of {path!r} gives its own; "
            "leave one of them out"
        )
    rollout = settings.rollout
    sampling = {
        "temperature": rollout.temperature,
        "top_p": rollout.top_p,
        "max_tokens": rollout.max_new_tokens,
        "stop": list(rollout.stop),
    }
    return agent_file(path, {"sampling": sampling} | dict(settings.agent_args))


def _complaints(env: EnvFactory | AgentFactory, tasks: Sequence[Task]) -> Sequence[str]:
    return env.complaints() if isinstance(env, AgentFactory) else env().complaints(tasks)


def _prompt_arguments(settings: TrainSettings, url: str | None) -> dict[str, object]:
    return {
        "remote_url": url,
        "apply_chat_template": settings.data.apply_chat_template,
        "timeout_s": settings.reward.timeout_s,
    }


def _tasks(settings: TrainSettings, env: EnvFactory | AgentFactory) -> Sequence[Task]:
    data, given = settings.data, None
    if data.prompt_dataset is not None:
        given = _load(settings, data.prompt_dataset, data.prompt_split, data.prompt_probs)
    return env.tasks("train", settings.train.seed, given)


def _eval_tasks(settings: TrainSettings, env: EnvFactory | AgentFactory) -> Sequence[Task]:
    options = settings.eval
    return _held_out(settings, env) if options.at_start or options.at_end or options.steps > 0 else []


def _held_out(settings: TrainSettings, env: EnvFactory | AgentFactory) -> Sequence[Task]:
    options = settings.eval
    if options.dataset is None and settings.data.prompt_dataset is not None:
        raise ConfigError("--eval.* asks for evaluation, and --eval.dataset names no held-out tasks")
    given = None if options.dataset is None else _load(settings, options.dataset, options.split, None)
    return env.tasks("eval", settings.train.seed, given)[: options.max_samples]


def _fingerprint(settings: TrainSettings, env: EnvFactory | AgentFactory, tasks: Sequence[Task]) -> str:
    """Tell one set of tasks from another; an environment's own are told by its arguments, not by making them all."""
    known = ""
    if settings.data.prompt_dataset is not None or env.members:
        from ...envs.datasets import fingerprint

        known = fingerprint(tasks)
        if not env.members:
            return known
    content = repr((env.target, sorted(env.kwargs.items()), settings.train.seed, len(tasks)))
    return hashlib.sha256((content + known).encode()).hexdigest()


def _load(settings: TrainSettings, dataset: str, split: str, probs: str | None) -> Sequence[Task]:
    from ...envs.datasets import load_tasks

    data = settings.data
    tasks = load_tasks(
        dataset,
        split=split,
        input_key=data.input_key,
        label_key=data.label_key,
        image_key=data.image_key,
        max_images=data.max_images_per_prompt,
        input_template=data.input_template,
        probs=probs,
        max_samples=data.max_samples,
        seed=settings.train.seed,
    )
    if not has_agent_file(settings):
        return tasks
    from ...agents.prompt_text import with_text_prompts
    from ...agents.template_kwargs import parse_template_kwargs

    model = check_model(settings.actor.model_name_or_path, "--actor.model_name_or_path")
    template_kwargs = parse_template_kwargs(settings.rollout.chat_template_kwargs)
    return with_text_prompts(tasks, model if data.apply_chat_template else None, template_kwargs)


def count_steps(settings: TrainSettings, num_tasks: int) -> int:
    """Return the steps of the run."""
    all_steps = math.ceil(num_tasks * settings.train.num_episodes / settings.rollout.batch_size)
    return all_steps if settings.train.max_steps < 0 else min(all_steps, settings.train.max_steps)

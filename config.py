"""The whole configuration of a run: every folder's options in one tree, from the command line or a YAML file."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import tyro

from .envs.options import DataOptions, EnvPoolOptions, RewardOptions
from .errors import ConfigError
from .executors.options import EvalOptions, RolloutOptions, VllmOptions
from .learner.openrlhf.translate import Translation, translate_serve, translate_train
from .learner.options import (
    ActorOptions,
    AlgoOptions,
    CriticOptions,
    DsOptions,
    RefOptions,
    TeacherOptions,
    TrainOptions,
)
from .learner.rewards.serve_options import ServeRmOptions
from .learner.run.options import CkptOptions, LoggerOptions
from .registry import nearest

T = TypeVar("T")
R = TypeVar("R", bound="TrainConfig")


@dataclass(frozen=True)
class TrainConfig:
    """Train a language model in an environment."""

    agent: str | None = None
    """What is trained: env:NAME, env:module:Class, env:path/to/file.py:Class, env:COLLECTION/NAME, or an agent of
    your own: func:path/to/file.py (also one with an AgentExecutor as OpenRLHF has it), command:"PROGRAM ARGUMENTS",
    framework:NAME."""
    agent_args: Annotated[dict[str, Any], tyro.conf.Suppress] = field(default_factory=dict)
    """Its own arguments, given as --agent_args.KEY VALUE."""
    actor: ActorOptions = field(default_factory=ActorOptions)
    """The model that is trained."""
    critic: CriticOptions = field(default_factory=CriticOptions)
    """The model that estimates values."""
    data: DataOptions = field(default_factory=DataOptions)
    """Tasks from a dataset."""
    reward: RewardOptions = field(default_factory=RewardOptions)
    """Rewards."""
    rollout: RolloutOptions = field(default_factory=RolloutOptions)
    """Episodes."""
    train: TrainOptions = field(default_factory=TrainOptions)
    """The loop."""
    algo: AlgoOptions = field(default_factory=AlgoOptions)
    """The algorithm."""
    eval: EvalOptions = field(default_factory=EvalOptions)
    """Held-out tasks."""
    vllm: VllmOptions = field(default_factory=VllmOptions)
    """Engines."""
    ds: DsOptions = field(default_factory=DsOptions)
    """DeepSpeed."""
    ref: RefOptions = field(default_factory=RefOptions)
    """The reference model."""
    teacher: TeacherOptions = field(default_factory=TeacherOptions)
    """The model to distil from."""
    env_pool: EnvPoolOptions = field(default_factory=EnvPoolOptions)
    """Synchronous environments."""
    ckpt: CkptOptions = field(default_factory=CkptOptions)
    """What is kept on disk."""
    logger: LoggerOptions = field(default_factory=LoggerOptions)
    """What is logged."""


@dataclass(frozen=True)
class EvalConfig(TrainConfig):
    """Score a language model on held-out tasks.

    Takes the options of `turngym train`, so that a run's config.yaml serves; those of learning have no effect.
    """

    output_dir: str = "runs/eval"
    """Folder for episodes, summary and picture; an earlier evaluation's are written over."""


def parse_train(arguments: Sequence[str]) -> TrainConfig:
    """Return the configuration that `turngym train ARGUMENTS` means, or OpenRLHF's command; --help prints and exits.

    Raises:
        ConfigError: An option is unknown, and the nearest is named; or it is one of OpenRLHF's that cannot be honoured,
            and what to give is. tyro itself exits with 2 for a value it cannot read.
    """
    return _parsed_run(arguments, TrainConfig(), "turngym train")


def parse_eval(arguments: Sequence[str]) -> EvalConfig:
    """Return what `turngym eval ARGUMENTS` means; as `parse_train`."""
    return _parsed_run(arguments, EvalConfig(), "turngym eval")


def parse_serve_rm(arguments: Sequence[str]) -> ServeRmOptions:
    """Return what `turngym serve-rm ARGUMENTS` means; as `parse_train`."""
    return _parse(_ours(translate_serve(arguments)), ServeRmOptions(), "turngym serve-rm")


def option_names(options: Any, prefix: str = "") -> list[str]:
    """Return the dotted names of all options in a tree of dataclasses."""
    names: list[str] = []
    for f in fields(options):
        value = getattr(options, f.name)
        names += option_names(value, f"{prefix}{f.name}.") if is_dataclass(value) else [prefix + f.name]
    return names


def read_yaml(path: str, defaults: T) -> T:
    """Return `defaults` with what a YAML file says, nested or with dotted keys.

    Raises:
        ConfigError: The file is missing or no mapping, or a key is unknown; names the nearest.
    """
    import yaml

    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"--config: there is no file {path!r}")
    try:
        content = yaml.safe_load(file.read_text()) or {}
    except yaml.YAMLError as error:
        raise ConfigError(f"--config: {path!r} is not YAML: {_one_line(error)}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"--config: {path!r} holds a {type(content).__name__}; wanted a mapping of options")
    return _merged(defaults, content, path, "")


def to_yaml(config: TrainConfig) -> str:
    """Return a configuration as text that `read_yaml` reads back."""
    import yaml

    return yaml.safe_dump(_plain(asdict(config)), sort_keys=False)


def _parsed_run(arguments: Sequence[str], defaults: R, command: str) -> R:
    words, agent_args, files = _split(arguments)
    for path in files:
        defaults = read_yaml(path, defaults)
    defaults = replace(defaults, agent_args={**defaults.agent_args, **agent_args})
    return _parse(_ours(translate_train(words)), defaults, command)


def _parse(words: Sequence[str], defaults: T, command: str) -> T:
    config, unknown = tyro.cli(
        type(defaults),
        args=words,
        default=defaults,
        prog=command,
        use_underscores=True,
        return_unknown_args=True,
    )
    for word in unknown:
        name = word.split("=")[0]
        hint = nearest(name.removeprefix("--"), option_names(defaults)) if name.startswith("--") else ""
        raise ConfigError(
            f"unknown option {name!r}.{hint.replace(chr(39), chr(39) + '--', 1)} '{command} --help' lists all"
        )
    return config


def _ours(translation: Translation) -> list[str]:
    """Return the words, and tell the user what was said otherwise."""
    for note in translation.notes:
        print(f"turngym: {note}", file=sys.stderr)
    return translation.words


def _split(arguments: Sequence[str]) -> tuple[list[str], dict[str, Any], list[str]]:
    """Take --agent_args.KEY and --config out of the words, since no dataclass knows the former's names."""
    import yaml

    rest: list[str] = []
    agent_args: dict[str, Any] = {}
    files: list[str] = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if not (name == "--config" or name.startswith("--agent_args.")):
            rest.append(word)
            continue
        if not equals:
            if not words or words[0].startswith("--"):
                raise ConfigError(f"{name} needs a value")
            value = words.pop(0)
        if name == "--config":
            files.append(value)
        else:
            try:
                agent_args[name.removeprefix("--agent_args.")] = yaml.safe_load(value)
            except yaml.YAMLError as error:
                raise ConfigError(
                    f"{name}: {value!r} is no YAML value ({_one_line(error)}); text with such signs needs quotes of "
                    f"its own: {name} '\"...\"'"
                ) from error
    return rest, agent_args, files


def _merged(options: T, content: dict[str, Any], path: str, prefix: str) -> T:
    known = {f.name: getattr(options, f.name) for f in fields(options)}  # type: ignore[arg-type]
    hints = get_type_hints(type(options))
    changes: dict[str, Any] = {}
    for key, value in content.items():
        name, dot, rest = str(key).partition(".")
        if name not in known:
            raise ConfigError(f"{path}: unknown option {prefix + str(key)!r}.{nearest(name, known)}")
        if is_dataclass(known[name]) and name != "agent_args":
            inner = {rest: value} if dot else value
            if not isinstance(inner, dict):
                raise ConfigError(f"{path}: {prefix + name!r} is a group of options; wanted a mapping, got {value!r}")
            changes[name] = _merged(changes.get(name, known[name]), inner, path, f"{prefix}{name}.")
        elif dot and isinstance(known[name], dict):
            changes[name] = {**changes.get(name, known[name]), rest: value}
        else:
            changes[name] = _typed(value, hints[name], f"{path}: {prefix}{name}")
    return replace(options, **changes)  # type: ignore[type-var]


def _typed(value: Any, hint: Any, name: str) -> Any:
    """Return a YAML value as its option has it: lists become tuples, whole numbers floats; refuse what does not fit."""
    kinds = get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)
    for kind in kinds:
        fitted = _fitted(value, kind)
        if fitted is not None or (value is None and kind is NoneType):
            return fitted
    names = [str(kind) if get_origin(kind) else "null" if kind is NoneType else kind.__name__ for kind in kinds]
    raise ConfigError(f"{name}: wanted {' or '.join(names).replace('typing.', '')}, got {value!r}")


def _fitted(value: Any, kind: Any) -> Any:
    """Return the value as this kind, or None."""
    if get_origin(kind) is Literal:
        return value if value in get_args(kind) else None
    if get_origin(kind) is tuple and isinstance(value, list | tuple):
        inner = get_args(kind)
        kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else list(inner)
        items = [_fitted(item, item_kind) for item, item_kind in zip(value, kinds, strict=False)]
        return tuple(items) if len(value) == len(kinds) and None not in items else None
    if kind is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            return float(value)  # YAML reads 1e-5 as text
        except ValueError:
            return None
    if kind is int and isinstance(value, bool):
        return None
    plain = get_origin(kind) or kind
    return value if isinstance(plain, type) and isinstance(value, plain) else None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value

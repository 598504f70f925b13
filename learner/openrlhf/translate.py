"""Reads a command line as OpenRLHF would, of any of its generations, and says it in this project's options."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...errors import ConfigError
from ..advantages import NEEDS_VALUES
from .foreign import FOREIGN, FOREIGN_TO_SERVE, VALUES, Foreign
from .names import FOR_BOTH, OLDER_NAMES, OLDER_SERVE_NAMES
from .other_commands import OF_OTHER_COMMANDS, OLDER_OTHER_NAMES

CORRECTION = "algo.advantage.is_correction_"


@dataclass
class Given:
    """One option on the command line, as it was written, with the words up to the next one."""

    name: str  # without dashes
    values: list[str]
    written: str
    is_joined: bool = False  # as --name=value, which may begin with dashes

    def words(self) -> list[str]:
        """Return it as words again."""
        if self.is_joined:
            return [f"--{self.name}={self.values[0]}", *self.values[1:]]
        return [f"--{self.name}", *self.values]


@dataclass(frozen=True)
class Translation:
    """What a command line says in our options, and lines for the user about what was said otherwise."""

    words: list[str]
    notes: list[str]


def translate_train(words: Sequence[str]) -> Translation:
    """Translate `train_ppo_ray`'s options; what is ours passes as it is.

    Raises:
        ConfigError: Options cannot be honoured; names all of them, with reasons and what to give instead.
    """
    first, given = _split(words)
    notes: list[str] = []
    given = _renamed_dtype(given, notes)
    _sum_lengths(given, notes)
    given = [new for option in given for new in _renamed(option, given, notes)]
    given = _enabled_correction(given, notes)
    given = _colocated(given, notes)
    _name_agent(given)
    return Translation([*first, *_words(_ours(given, {**FOREIGN, **VALUES, **OF_OTHER_COMMANDS}, notes))], notes)


def translate_serve(words: Sequence[str]) -> Translation:
    """Translate `serve_rm`'s options; as `translate_train`."""
    first, given = _split(words)
    notes: list[str] = []
    for option in given:
        _rename(option, OLDER_SERVE_NAMES, notes)
    return Translation([*first, *_words(_ours(given, FOREIGN_TO_SERVE, notes))], notes)


def _split(words: Sequence[str]) -> tuple[list[str], list[Given]]:
    """Return the words before the first option, and the options."""
    first: list[str] = []
    given: list[Given] = []
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            given.append(Given(name, [value] if equals else [], f"--{name}", bool(equals)))
        else:
            (given[-1].values if given else first).append(word)
    return first, given


def _words(given: Sequence[Given]) -> list[str]:
    return [word for option in given for word in option.words()]


def _rename(option: Given, names: Mapping[str, str], notes: list[str]) -> None:
    if (new := names.get(option.name)) is not None:
        option.name = new
        notes.append(f"{option.written} is now --{'agent func:FILE.py' if new == 'train.agent_func_path' else new}")


def _renamed(option: Given, given: Sequence[Given], notes: list[str]) -> Iterator[Given]:
    """Yield an option by its present name, and what else its older name stood for."""
    older = option.name
    _rename(option, {**OLDER_NAMES, **OLDER_OTHER_NAMES}, notes)
    yield option
    if older in FOR_BOTH and _has_critic(given):
        name = option.name.replace("actor.", "critic.")
        notes[-1] += f" and --{name}"
        yield Given(name, option.values, option.written)
    has_reward_model = any(other.name in ("reward.model_name_or_path", "reward_pretrain") for other in given)
    if older == "ref_reward_offload" and has_reward_model:
        yield Given("reward.offload", [], option.written)


def _has_critic(given: Sequence[Given]) -> bool:
    names = ("algo.advantage.estimator", "advantage_estimator")
    return any(option.name in names and option.values[-1:] and option.values[-1] in NEEDS_VALUES for option in given)


def _renamed_dtype(given: Sequence[Given], notes: list[str]) -> list[Given]:
    for option in given:
        if option.name in ("bf16", "fp16") and not option.values:
            notes.append(f"{option.written} is now --ds.param_dtype {option.name}")
            option.name, option.values = "ds.param_dtype", [option.name]
    return list(given)


def _sum_lengths(given: Sequence[Given], notes: list[str]) -> None:
    """Let two older bounds, of prompts and of answers, be the one of both together that there is now."""
    bounds = {option.name: option for option in given}
    prompt = bounds.get("prompt_max_len")
    answer = bounds.get("generate_max_len") or bounds.get("max_new_tokens") or bounds.get("rollout.max_new_tokens")
    if prompt is None or answer is None or not (prompt.values + answer.values) or "max_len" in bounds:
        return
    if all(len(o.values) == 1 and o.values[0].isdecimal() for o in (prompt, answer)):
        total = int(prompt.values[0]) + int(answer.values[0])
        notes.append(
            f"{prompt.written} {prompt.values[0]} and {answer.written} {answer.values[0]} are now "
            f"--data.max_len {total} and --rollout.max_new_tokens {answer.values[0]}"
        )
        prompt.name, prompt.values = "data.max_len", [str(total)]


def _enabled_correction(given: Sequence[Given], notes: list[str]) -> list[Given]:
    """Let the correction that had to be enabled be the one that was its default, where no other is named."""
    names = {option.name for option in given}
    kept: list[Given] = []
    for option in given:
        if option.name == "use_icepop":
            option.name, option.values = f"{CORRECTION}type", ["icepop"]
            notes.append(f"{option.written} is now --{CORRECTION}type icepop")
        elif option.name == f"{CORRECTION}enable":
            if names & {f"{CORRECTION}type", f"{CORRECTION}level", "use_icepop"}:
                notes.append(f"{option.written}: it is on unless --{CORRECTION}level off")
                continue
            option.name, option.values = f"{CORRECTION}type", ["tis"]
            notes.append(f"{option.written} is now --{CORRECTION}type tis; without it the level is token, not off")
        kept.append(option)
    return kept


def _colocated(given: Sequence[Given], notes: list[str]) -> list[Given]:
    """Let the reference share the actor's ranks, as it does unless it is given some."""
    asked = next((option for option in given if option.name == "train.colocate_actor_ref"), None)
    if asked is None:
        return list(given)
    notes.append(f"{asked.written}: the reference shares the actor's ranks where --ref.num_gpus_per_node is not given")
    return [o for o in given if o.name not in ("train.colocate_actor_ref", "ref.num_nodes", "ref.num_gpus_per_node")]


def _name_agent(given: Sequence[Given]) -> None:
    for option in given:
        if option.name != "train.agent_func_path":
            continue
        if any(other.name == "agent" for other in given):
            raise ConfigError(f"{option.written} names the agent, and so does --agent; give one of them")
        option.name, option.values = "agent", [f"func:{value}" for value in option.values]


def _ours(given: Sequence[Given], foreign: Mapping[str, Foreign], notes: list[str]) -> list[Given]:
    """Take out what is not ours and asks for what holds anyway; refuse the rest of it."""
    kept: list[Given] = []
    refused: list[str] = []
    for option in given:
        rule = foreign.get(option.name)
        value = " ".join(option.values)
        if rule is None:
            kept.append(option)
        elif value in rule.granted:
            if option.name in VALUES:
                kept.append(option)
            else:
                notes.append(f"{option.written} {value}".rstrip() + f": {rule.why.removesuffix('; leave it out')}")
        else:
            refused.append(f"{option.written} {value}".rstrip() + f": {rule.why}")
    if refused:
        what = "an option" if len(refused) == 1 else f"{len(refused)} options"
        raise ConfigError(f"{what} of OpenRLHF cannot be honoured. " + ". ".join(dict.fromkeys(refused)))
    return kept

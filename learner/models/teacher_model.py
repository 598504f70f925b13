"""What a model must be like to read another's tokens: the same ones by the same ids, and room for every sequence."""

from typing import Any

from ...agents.tokenizer import load_tokenizer
from ...errors import ConfigError
from .attention import check_context

ACTOR_OPTION = "--actor.model_name_or_path"
_OPTION = "--teacher.model_name_or_path"


def check_teacher(teacher: str, actor: str, max_len: int) -> None:
    """Refuse a teacher that cannot score what the actor samples.

    Raises:
        ConfigError: It is no model, its ids mean other tokens, or its context is too short.
    """
    teacher_config, actor_config = model_config(teacher, _OPTION), model_config(actor, ACTOR_OPTION)
    # The engine scores a sequence as a prompt, and wants room for one token after it.
    try:
        check_context(teacher_config, max_len + 1)
    except ConfigError as error:
        longest = teacher_config.get_text_config().max_position_embeddings
        raise ConfigError(
            f"{_OPTION}: {teacher!r} was made for {longest} tokens, and a sequence of --data.max_len {max_len} takes "
            f"one more to score; give --data.max_len {longest - 1} or less"
        ) from error
    check_ids(teacher, teacher_config, actor, actor_config, _OPTION)


def check_ids(other: str, other_config: Any, actor: str, actor_config: Any, option: str) -> None:
    """Refuse a model that cannot read every id that the actor may sample.

    Raises:
        ConfigError: It has fewer ids, or an id means another token to it.
    """
    known, sampled = other_config.get_text_config().vocab_size, actor_config.get_text_config().vocab_size
    if sampled > known:
        raise ConfigError(
            f"{option}: the actor may sample ids up to {sampled - 1}, and {other!r} knows only those below {known}; "
            "choose a model of the actor's family"
        )
    check_vocabulary(load_tokenizer(other).get_vocab(), load_tokenizer(actor).get_vocab(), other, option)


def check_vocabulary(other: dict[str, int], actor: dict[str, int], name: str, option: str) -> None:
    """Refuse a model to which an id of the actor's means another token; ids that only the other names do not matter.

    Raises:
        ConfigError: It names the first id that differs.
    """
    theirs = {token_id: token for token, token_id in other.items()}
    for token, token_id in sorted(actor.items(), key=lambda item: item[1]):
        if other.get(token) != token_id:
            means = repr(theirs[token_id]) if token_id in theirs else "nothing"
            raise ConfigError(
                f"{option}: id {token_id} is {token!r} to the actor and {means} to {name!r}; it must have "
                "the actor's vocabulary: choose a model of its family"
            )


def model_config(model: str, option: str) -> Any:  # Any: transformers' configurations are open
    """Read a model's configuration.

    Raises:
        ConfigError: There is none that transformers knows; names the option that gave the model.
    """
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{option}: {model!r} holds no model that transformers knows: {error}") from error

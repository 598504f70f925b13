"""What a model must be like to teach another one: the same tokens by the same ids, and room for every sequence."""

from typing import TYPE_CHECKING

from ..agents.tokenizer import load_tokenizer
from ..errors import ConfigError
from .attention import check_context

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_OPTION = "--teacher.model_name_or_path"


def check_teacher(teacher: str, actor: str, max_len: int) -> None:
    """Refuse a teacher that cannot score what the actor samples.

    Raises:
        ConfigError: It is no model, its ids mean other tokens, or its context is too short.
    """
    teacher_config, actor_config = _config(teacher), _config(actor)
    # The engine scores a sequence as a prompt, and wants room for one token after it.
    try:
        check_context(teacher_config, max_len + 1)
    except ConfigError as error:
        longest = teacher_config.get_text_config().max_position_embeddings
        raise ConfigError(
            f"{_OPTION}: {teacher!r} was made for {longest} tokens, and a sequence of --data.max_len {max_len} takes "
            f"one more to score; give --data.max_len {longest - 1} or less"
        ) from error
    known, sampled = teacher_config.get_text_config().vocab_size, actor_config.get_text_config().vocab_size
    if sampled > known:
        raise ConfigError(
            f"{_OPTION}: the actor may sample ids up to {sampled - 1}, and {teacher!r} knows only those below {known}; "
            "choose a teacher of the actor's family"
        )
    check_vocabulary(load_tokenizer(teacher).get_vocab(), load_tokenizer(actor).get_vocab(), teacher)


def check_vocabulary(teacher: dict[str, int], actor: dict[str, int], name: str) -> None:
    """Refuse a teacher to whom an id of the actor's means another token; ids that only the teacher names do not matter.

    Raises:
        ConfigError: It names the first id that differs.
    """
    theirs = {token_id: token for token, token_id in teacher.items()}
    for token, token_id in sorted(actor.items(), key=lambda item: item[1]):
        if teacher.get(token) != token_id:
            means = repr(theirs[token_id]) if token_id in theirs else "nothing"
            raise ConfigError(
                f"{_OPTION}: id {token_id} is {token!r} to the actor and {means} to {name!r}; the teacher must have "
                "the actor's vocabulary: choose one of its family"
            )


def _config(model: str) -> "PretrainedConfig":
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{model!r} holds no model that transformers knows: {error}") from error

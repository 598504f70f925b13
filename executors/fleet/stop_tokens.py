"""Which tokens end a completion, whatever a request asks for besides."""


def stop_token_ids(model: str, end_of_turn_ids: tuple[int, ...]) -> tuple[int, ...]:
    """Return the ids that end a completion: the template's first end-of-turn token and the model's own list."""
    from transformers import GenerationConfig

    ids = list(end_of_turn_ids[:1])
    try:
        own = GenerationConfig.from_pretrained(model).eos_token_id
    except OSError:  # many folders have none; the engine then knows the tokenizer's
        own = None
    ids += own if isinstance(own, list) else [] if own is None else [own]
    return tuple(dict.fromkeys(ids))

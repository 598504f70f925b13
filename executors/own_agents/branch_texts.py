"""What a reward function is shown of an episode whose agent asked a server, taken from its tokens."""

import numpy as np

from ...agents.sequence import Sequence
from ...agents.tokenizer import Codec


def texts(sequences: tuple[Sequence, ...], codec: Codec) -> tuple[str, str]:
    """Return the first prompt of the branch that holds the last answer, and it with that answer behind it.

    What tools said in between is left out, for nobody to take it for the model's; special tokens are kept.
    """
    number = max(turn for sequence in sequences for turn in sequence.samplings)
    last = root = next(sequence for sequence in sequences if number in sequence.samplings)
    length = len(last)
    while root.parent is not None:  # where a template rewrote the beginning, the prompt is what it kept of it
        length = min(length, root.parent[1])
        root = sequences[root.parent[0]]
    answered = np.flatnonzero(root.turn >= 0)
    length = min(length, int(answered[0])) if len(answered) else length
    prompt = codec.decode(last.token_ids[:length])
    return prompt, prompt + codec.decode(last.token_ids[last.is_action & (last.turn == number)])

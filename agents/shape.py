"""What shapes a completion beyond temperature and truncation: a grammar, penalties, biases, words that may not come.

An engine's logprobs are those of the shaped distribution, the learner's those of the model's own: `Sampling` tells
the two apart, and tokens of a shaped turn stay out of importance ratios.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ..errors import ConfigError

Json = Any  # what `json.loads` gives
_MOST_BIAS = 100.0


class GrammarKind(StrEnum):
    """What a grammar is written in."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    CHOICE = "choice"
    EBNF = "ebnf"
    TAGS = "tags"  # formats within one another, as xgrammar's structural tags have them


@dataclass(frozen=True)
class Grammar:
    """What the whole text of a completion must be.

    Attributes:
        kind: What `text` is written in.
        text: A schema, a list of choices or tags as JSON; an expression; EBNF; empty for any JSON object.
    """

    kind: GrammarKind
    text: str = ""

    def __post_init__(self) -> None:
        kind = GrammarKind(self.kind)
        object.__setattr__(self, "kind", kind)
        if kind is GrammarKind.JSON_OBJECT:
            if self.text:
                raise ConfigError(f"a grammar of any JSON object takes no text, got {self.text!r:.100}")
        elif not self.text:
            raise ConfigError(f"a grammar of kind {kind.value!r} needs a text, got none")
        if kind in (GrammarKind.JSON_SCHEMA, GrammarKind.TAGS) and not isinstance(self.value, dict):
            raise ConfigError(f"a grammar of kind {kind.value!r} needs a JSON object, got {self.text!r:.100}")
        if kind is GrammarKind.CHOICE and not _is_choice(self.value):
            raise ConfigError(f"choices are a list of texts, none empty, got {self.text!r:.100}")

    @property
    def value(self) -> Json:
        """What the JSON in `text` holds."""
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"a grammar of kind {self.kind.value!r} needs JSON: {error}") from error

    @classmethod
    def json_schema(cls, schema: Mapping[str, Json]) -> "Grammar":
        """Return the grammar of JSON that a schema describes."""
        return cls(GrammarKind.JSON_SCHEMA, _dumped(schema))

    @classmethod
    def json_object(cls) -> "Grammar":
        """Return the grammar of any JSON object."""
        return cls(GrammarKind.JSON_OBJECT)

    @classmethod
    def regex(cls, pattern: str) -> "Grammar":
        """Return the grammar of texts that an expression matches as a whole."""
        return cls(GrammarKind.REGEX, pattern)

    @classmethod
    def choice(cls, texts: Sequence[str]) -> "Grammar":
        """Return the grammar of these texts alone."""
        return cls(GrammarKind.CHOICE, _dumped(list(texts)))

    @classmethod
    def ebnf(cls, rules: str) -> "Grammar":
        """Return a grammar written out; its first rule is named root."""
        return cls(GrammarKind.EBNF, rules)

    @classmethod
    def tags(cls, form: Mapping[str, Json]) -> "Grammar":
        """Return the grammar of one of xgrammar's formats, such as {"type": "sequence", "elements": [...]}."""
        return cls(GrammarKind.TAGS, _dumped({"type": "structural_tag", "format": form}))


@dataclass(frozen=True)
class Shape:
    """What shapes the distribution of each token of a completion.

    Attributes:
        grammar: What its text must be; None for anything.
        presence_penalty, frequency_penalty: Taken from the logits of tokens that it holds, once and as often; 0 is off.
        repetition_penalty: Divides the logits of tokens that prompt or completion hold (negative ones are multiplied);
            1 is off.
        logit_bias: Pairs of a token id and what is added to its logit, -100 to 100.
        bad_words: Texts that may not come.
        min_tokens: How many tokens come before one that ends it may.
    """

    grammar: Grammar | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[str, ...] = ()
    min_tokens: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.grammar, Mapping):  # as it comes out of JSON
            object.__setattr__(self, "grammar", Grammar(**self.grammar))
        object.__setattr__(self, "logit_bias", tuple((int(id_), float(bias)) for id_, bias in self.logit_bias))
        object.__setattr__(self, "bad_words", tuple(self.bad_words))
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2 <= getattr(self, name) <= 2:
                raise ConfigError(f"{name} must lie in [-2, 2], got {getattr(self, name)}")
        if not (math.isfinite(self.repetition_penalty) and self.repetition_penalty > 0):
            raise ConfigError(f"repetition_penalty must be positive, got {self.repetition_penalty}")
        wrong = [(id_, bias) for id_, bias in self.logit_bias if id_ < 0 or not abs(bias) <= _MOST_BIAS]
        if wrong:
            raise ConfigError(f"logit_bias takes token ids and numbers from -100 to 100, got {wrong[0]}")
        if not all(isinstance(word, str) and word for word in self.bad_words):
            raise ConfigError(f"bad_words are texts, none empty, got {self.bad_words!r:.100}")
        if self.min_tokens < 0:
            raise ConfigError(f"min_tokens must not be negative, got {self.min_tokens}")

    @property
    def is_none(self) -> bool:
        """Whether it leaves the distribution as it is."""
        return self == _NONE


_NONE = Shape()


def _is_choice(value: Json) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, str) and each for each in value)


def _dumped(value: Json) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"a grammar takes what JSON can say, got {value!r:.100}: {error}") from error

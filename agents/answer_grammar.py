"""The grammar of a whole answer: what a client wants of its text, with room for a thought before it, and for calls.

A grammar holds from the first token on. One of the text alone would keep a model from thinking where its format has it
think, and from calling where it may.
"""

from collections.abc import Sequence
from typing import Any

from ..envs.tools.calls import ForcesCalls, FramesText, Schema
from .answer_reader import AnswerReader
from .base import RequestRefusedError
from .reasoning import PAIRS, FramesThoughts
from .shape import Grammar, GrammarKind

Form = dict[str, Any]  # one of xgrammar's formats; Any: it is JSON

_CHANNELS = ("muse_glimmer",)  # parsers of formats whose answers stand in channels that have no form here
_GAP: Form = {"type": "regex", "pattern": "\\n{0,2}"}


def answer_grammar(
    reader: AnswerReader,
    template: str,
    said: Grammar | None,
    tools: Sequence[Schema] = (),
    *,
    must_call: bool = False,
    is_parallel: bool = True,
) -> Grammar | None:
    """Return what an answer must be; None for anything.

    Args:
        reader: Takes such answers apart.
        template: The model's chat template, which shows whether it may think first.
        said: What the text of an answer must be that is no call.
        tools: What may be called.
        must_call: Whether one of them must be.
        is_parallel: Whether an answer may have several calls.

    Raises:
        RequestRefusedError: The model's format cannot be written as a grammar here.
    """
    if not must_call and said is None:
        return None
    thoughts, parser = reader.names
    if thoughts in _CHANNELS:
        raise RequestRefusedError(
            f"answers that {thoughts!r} reads stand in channels, of which no grammar is known here; "
            "leave the format out, and tool_choice at 'auto'"
        )
    if tools:
        calls = reader.calls
        form = calls.call_form(tools, is_parallel=is_parallel) if isinstance(calls, ForcesCalls) else None
        if form is None:
            raise RequestRefusedError(
                f"no grammar is known of calls that {parser!r} reads: leave tool_choice at 'auto' or 'none', and leave "
                "the format out where there are tools"
            )
        body = form if must_call or said is None else {"type": "or", "elements": [form, _text_form(reader, said)]}
    else:
        assert said is not None  # calls need tools
        body = _text_form(reader, said)
    if isinstance(reader.thoughts, FramesThoughts):
        return Grammar.tags(reader.thoughts.answer_form(body))
    thought = _thought(reader.opened, template)
    if thought is None:
        return said if not tools else Grammar.tags(body)
    behind = {"type": "sequence", "elements": [thought, _GAP, body]}
    return Grammar.tags(behind if thought["begin"] == "" else {"type": "or", "elements": [behind, body]})


def _thought(opened: str, template: str) -> Form | None:
    """Return the form of a thought: from its beginning on, or of what is left where the prompt has begun it."""
    for opening, closing in PAIRS:
        is_begun = opening in opened and closing not in opened
        if is_begun or (opening in template and closing in template):
            begin = "" if is_begun else opening
            return {"type": "tag", "begin": begin, "content": {"type": "any_text"}, "end": closing}
    return None


def _text_form(reader: AnswerReader, said: Grammar) -> Form:
    """Return the form of an answer that is no call, with the marks that the model's format has around it."""
    form = _form(said)
    for parser in (reader.thoughts, reader.calls):
        if isinstance(parser, FramesText):
            return parser.text_form(form)
    return form


def _form(grammar: Grammar) -> Form:
    kind = grammar.kind
    if kind is GrammarKind.CHOICE:
        return {"type": "or", "elements": [{"type": "const_string", "value": text} for text in grammar.value]}
    if kind is GrammarKind.REGEX:
        return {"type": "regex", "pattern": grammar.text}
    if kind is GrammarKind.EBNF:
        return {"type": "grammar", "grammar": grammar.text}
    if kind is GrammarKind.TAGS:
        form: Form = grammar.value["format"]
        return form
    schema = {"type": "object"} if kind is GrammarKind.JSON_OBJECT else grammar.value
    return {"type": "json_schema", "json_schema": schema}

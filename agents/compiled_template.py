"""A chat template as transformers compiles it, rendered without what costs as much as the template itself."""

import inspect
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from jinja2.exceptions import TemplateError as JinjaError
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

if TYPE_CHECKING:
    from jinja2 import Template
    from transformers import PreTrainedTokenizerBase

# What the sandbox asks about an object's attribute has one answer for these: only what begins with _ is unsafe.
_HARMLESS = frozenset({LoopContext, str})


class CompiledTemplate:
    """What `apply_chat_template` renders in the end; at every turn its checks cost as much as the template.

    Args:
        template: As it was compiled.
        constants: Names that each rendering knows.
    """

    def __init__(self, template: "Template", constants: Mapping[str, Any]) -> None:
        self._template = template
        self._constants = {**template.globals, **constants}

    def render(self, names: Mapping[str, Any]) -> str:
        """Return the template's text, with these names beside the constant ones."""
        template = self._template
        # Which names are global matters only to templates that are imported, and to find that out takes its time.
        context = Context(template.environment, {**self._constants, **names}, template.name, template.blocks)
        return template.environment.concat(template.root_render_func(context))


def compiled_template(
    tokenizer: "PreTrainedTokenizerBase", kwargs: Mapping[str, Any], tools: list[dict[str, Any]] | None
) -> CompiledTemplate | None:
    """Return the template that a tokenizer renders, compiled; None where it does more than to render it."""
    from transformers import PreTrainedTokenizerBase

    apply = PreTrainedTokenizerBase.apply_chat_template
    has_own_way = type(tokenizer).apply_chat_template is not apply
    if has_own_way or not kwargs.keys().isdisjoint(inspect.signature(apply).parameters):
        return None
    if not all(isinstance(tool, dict) for tool in tools or ()):
        return None  # functions become schemas on the way
    try:
        template = _compiled(tokenizer.get_chat_template(tools=tools))
    except (JinjaError, ValueError):
        return None  # the first rendering fails in the same way, and says so
    return CompiledTemplate(template, {"tools": tools, "documents": None, **tokenizer.special_tokens_map, **kwargs})


class _Sandbox(ImmutableSandboxedEnvironment):
    """The same sandbox; it does not ask thirty questions at each `loop.first` and `content.strip`."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Say whether a template may see an attribute."""
        if type(obj) in _HARMLESS:
            return not attr.startswith("_")
        return super().is_safe_attribute(obj, attr, value)


@lru_cache
def _compiled(source: str) -> "Template":
    from transformers.utils.chat_template_utils import _compile_jinja_template

    template: Template = _compile_jinja_template(source)
    if type(template.environment) is not ImmutableSandboxedEnvironment:
        return template
    sandbox = template.environment.overlay()  # with the filters, tests and functions of transformers
    sandbox.__class__ = _Sandbox
    return sandbox.from_string(source)

"""The chat agent: messages to token ids with the model's chat template, and never back.

Sampled tokens stay as they were sampled. Each turn the template renders the whole conversation as
text; where that text begins with what the model has read and written, only the new part is
tokenised. Where it does not, the template has rewritten history, and a new sequence begins.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Any

from ..envs.tools.calls import Schema
from .answer_reader import AnswerReader, AnswerReaders
from .conversation import MOST_END_TOKENS, ChatConversation
from .images import ImageReader
from .picture_text import PictureText
from .template import ChatTemplate
from .template_kwargs import check_template_kwargs
from .tokenizer import Codec
from .tool_chat import ToolConversation, ToolTemplates

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ANY_TOOL: Schema = {
    "type": "function",
    "function": {"name": "zqToolqz", "description": "Any.", "parameters": {"type": "object", "properties": {}}},
}


class ChatAgent:
    """Starts conversations; one agent serves all episodes of a process.

    Args:
        tokenizer: The model's.
        template_kwargs: What the chat template takes beside messages, such as `enable_thinking`.
        apply_chat_template: False sends every observation as it is, tokenised without special
            tokens (as OpenRLHF does: a prompt that needs a BOS token must contain it).
        tools: JSON schemas of functions that the template describes to the model.
        tool_parser: Name of the parser that reads the model's calls (`agents.tool_calls`); by default the one that the
            chat template suggests.
        reasoning_parser: Likewise of the one that reads its thoughts (`agents.reasoning`).
        images: The model's processor, where it reads images too.

    Raises:
        ConfigError: The tokenizer has no chat template, or there is no parser of this name.
        TemplateError: The template cannot render a question and an answer.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        template_kwargs: Mapping[str, Any] | None = None,
        apply_chat_template: bool = True,
        tools: Seq[dict[str, Any]] | None = None,
        tool_parser: str | None = None,
        reasoning_parser: str | None = None,
        images: ImageReader | None = None,
    ) -> None:
        self._codec = Codec(tokenizer)
        self.template_kwargs = dict(template_kwargs or {})
        self.readers = AnswerReaders(tokenizer, tool_parser, reasoning_parser)
        self._tool_templates = ToolTemplates(tokenizer, template_kwargs, self.readers)
        self._template = (
            ChatTemplate(tokenizer, template_kwargs=template_kwargs, tools=tools) if apply_chat_template else None
        )
        self.images = images
        self._pictures: PictureText | None = None
        if self._template is not None and images is not None:
            self._pictures = PictureText(self._codec, self._template, images)

    @property
    def end_of_turn_ids(self) -> tuple[int, ...]:
        """Special tokens with which the template ends an answer; empty where it uses none.

        A model whose own configuration does not stop at the first of them needs it among the
        `stop_token_ids` of its Sampling.
        """
        if self._template is None:
            return ()
        last, before_user = self._template.shape.ends
        ids = self._codec.encode(last or before_user)
        return tuple(ids[: self._codec.num_special(ids, MOST_END_TOKENS)].tolist())

    @property
    def codec(self) -> Codec:
        """The model's tokenizer."""
        return self._codec

    @property
    def opens_thought(self) -> bool:
        """Whether the generation prompt has begun a thought when the model begins to write."""
        opened = self._template.shape.opened if self._template else ""
        return bool(opened) and "</" not in opened

    def check_tools(self) -> None:
        """Make what would read calls once; whether a parser fits does not depend on which tools there are.

        Raises:
            ConfigError: It is not made for this tokenizer.
            MissingPackageError: It is vLLM's, which is not installed.
            TemplateError: The template cannot tell of tools.
        """
        self.reader([_ANY_TOOL])

    def reader(self, tools: Seq[dict[str, Any]] = ()) -> AnswerReader:
        """Return what takes the answers of conversations with these tools apart."""
        return self._tool_templates.of(tools, self._template).reader

    def begin(self, tools: Seq[dict[str, Any]] | None = None) -> ChatConversation:
        """Return a new, empty conversation; its actions hold the calls of these tools, which the model is told of."""
        if not tools:
            return ChatConversation(self._codec, self._template, self._pictures)
        return ToolConversation(self._codec, self._tool_templates.of(tools, self._template), self._pictures)


def agent_for(
    tokenizer: "PreTrainedTokenizerBase",
    *,
    template_kwargs: Mapping[str, Any] | None = None,
    tool_parser: str | None = None,
    reasoning_parser: str | None = None,
    images: ImageReader | None = None,
) -> ChatAgent:
    """Return the agent of a model: with its chat template, or for a base model without one, text as it is.

    Raises:
        ConfigError: The template does not read one of `template_kwargs`.
    """
    check_template_kwargs(tokenizer, template_kwargs or {})
    return ChatAgent(
        tokenizer,
        template_kwargs=template_kwargs,
        apply_chat_template=bool(tokenizer.chat_template),
        tool_parser=tool_parser,
        reasoning_parser=reasoning_parser,
        images=images,
    )

"""Messages as clients send them: in the form that templates read, and in the form that two of them are compared in."""

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from ...envs.images import image_in
from ...envs.messages import Message
from ...envs.tools.json_calls import is_shallow

Form = bytes  # equal for messages that say the same
Json = Any  # what `json.loads` gives

_ROLES = {"developer": "system", "function": "tool"}  # few templates know these; an unknown role is often dropped
_TEXT_PARTS = ("text", "input_text", "output_text")
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")


def chat_messages(given: Sequence[Mapping[str, Json]]) -> list[Message]:
    """Return a client's messages in the form that templates read; fields that none knows are dropped.

    Raises:
        ImageError: An image is not one, or has to be fetched.
    """
    names: dict[str, str] = {}  # of the functions, by the ids of their calls
    messages: list[Message] = []
    for each in given:
        role = str(each["role"])
        message = Message(role=_ROLES.get(role, role), content=_content(each))  # type: ignore[typeddict-item]
        calls = [_call(call) for call in _given_calls(each)]
        names |= {call["id"]: call["function"]["name"] for call in calls if "id" in call}
        if calls:
            message["tool_calls"] = calls
        thought = next((each[key] for key in _THOUGHTS if isinstance(each.get(key), str) and each[key]), None)
        if thought:
            message["reasoning_content"] = thought
        call_id = each.get("tool_call_id")
        name = each.get("name") or names.get(str(call_id))
        if call_id:
            message["tool_call_id"] = call_id
        if name:
            message["name"] = name
        messages.append(message)
    return messages


def form_of(message: Message) -> Form:
    """Return what a message says, whatever its ids, the order of keys in its arguments, its thought.

    Whitespace is of no account within an answer, which clients write anew and whose tokens stay as they were sampled;
    in what the model is to read it is only at the ends.
    """
    content, role = message["content"], message["role"]
    text = content if isinstance(content, str) else ""
    other = None if isinstance(content, str) else content
    said = _squeezed(text) if role == "assistant" else text.strip()
    return _digest([role, said, other, _call_forms(message.get("tool_calls", []))])


def answer_form(text: str, calls: Sequence[tuple[str, Json]]) -> Form:
    """Return the form of an answer, of its text and the names and arguments of its calls."""
    return _digest(["assistant", _squeezed(text), None, [[name, _argument_form(value)] for name, value in calls]])


def tools_form(tools: Sequence[Json] | None) -> Form:
    """Return what a list of tools says."""
    return _digest(["tools", list(tools or [])])


def clean(text: str) -> str:
    """Return text without halves of surrogate pairs, which JSON can spell and UTF-8 cannot say."""
    return text.encode(errors="replace").decode()


def _content(message: Mapping[str, Json]) -> str | list[Json]:
    content = message.get("content")
    if content is None:
        return str(message.get("refusal") or "")
    if isinstance(content, str):
        return content
    parts = [{"type": "text", "text": part["text"]} if _is_text(part) else _other(part) for part in content]
    return "".join(part["text"] for part in parts) if all(map(_is_text, parts)) else parts


def _other(part: Mapping[str, Json]) -> Json:
    image = image_in(part, is_trusted=False)
    return dict(part) if image is None else {"type": "image", "image": image}


def _is_text(part: Mapping[str, Json]) -> bool:
    return part.get("type") in _TEXT_PARTS and isinstance(part.get("text"), str)


def _given_calls(message: Mapping[str, Json]) -> list[Mapping[str, Json]]:
    if not message.get("tool_calls") and message.get("function_call"):
        return [{"function": message["function_call"]}]
    return list(message.get("tool_calls") or [])


def _call(call: Mapping[str, Json]) -> dict[str, Json]:
    function = call["function"]
    arguments = function.get("arguments")
    made = {"type": "function", "function": {"name": function["name"], "arguments": _parsed(arguments)}}
    return {"id": call["id"], **made} if call.get("id") else made


def _parsed(arguments: Json) -> Json:
    """Return arguments as an object, which templates want; what is no JSON object, or a deep one, stays text."""
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    try:
        value = json.loads(arguments or "{}")
        if "\\u" in arguments:  # half a surrogate pair may be spelled so
            value = json.loads(clean(json.dumps(value, ensure_ascii=False)))
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) and is_shallow(value) else arguments


def _call_forms(calls: Sequence[Mapping[str, Json]]) -> list[Json]:
    return [[call["function"]["name"], _argument_form(call["function"]["arguments"])] for call in calls]


def _argument_form(value: Json) -> Json:
    """Return arguments as they compare: 1.0 is 1, as for a client that reads numbers as JavaScript does."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {str(key): _argument_form(item) for key, item in value.items()}
    return [_argument_form(item) for item in value] if isinstance(value, list) else value


def _squeezed(text: str) -> str:
    return " ".join(text.split())


def _digest(said: Json) -> Form:
    text = json.dumps(said, sort_keys=True, default=repr)
    return blake2b(text.encode(), digest_size=16).digest()

"""Responses that a session keeps: to go on from, to be had again by their ids, and to be deleted."""

from collections.abc import Mapping
from dataclasses import dataclass

from .api_errors import ApiError
from .kept import Kept
from .replies import Json

_MOST_ITEMS = 100  # of one page; OpenAI's limit


@dataclass(frozen=True)
class StoredResponse:
    """One response.

    Attributes:
        whole: As it was given.
        history: All messages up to it, its own among them, in the form of chat completions.
        given: What was put in, as items without ids.
    """

    whole: Json
    history: Kept
    given: Kept

    def items(self) -> list[Json]:
        """Return what was put in, as items with ids."""
        end = self.whole["id"].removeprefix("resp_")
        return [_item(item, f"{end}_in_{place}") for place, item in enumerate(self.given.values())]


def stored(responses: Mapping[str, StoredResponse], response_id: str, param: str | None = None) -> StoredResponse:
    """Return a response by its id.

    Raises:
        ApiError: There is none.
    """
    if response_id not in responses:
        raise ApiError(
            f"there is no response {response_id!r:.100} in this session",
            404,
            param=param,
            code=param and "previous_response_not_found",
        )
    return responses[response_id]


def retrieve(responses: Mapping[str, StoredResponse], response_id: str, query: Mapping[str, str]) -> Json:
    """`GET /v1/responses/ID`."""
    if query.get("stream") == "true":
        raise ApiError("a stored response is given as a whole; leave stream out", param="stream")
    return stored(responses, response_id).whole


def delete(responses: dict[str, StoredResponse], response_id: str, query: Mapping[str, str]) -> Json:
    """`DELETE /v1/responses/ID`: nothing goes on from its id any more; the tokens stay in the session's record."""
    stored(responses, response_id)
    del responses[response_id]
    return {"id": response_id, "object": "response", "deleted": True}


def input_items(responses: Mapping[str, StoredResponse], response_id: str, query: Mapping[str, str]) -> Json:
    """`GET /v1/responses/ID/input_items`: a page of what was put in, by default the last first."""
    items = stored(responses, response_id).items()
    items = items if query.get("order") == "asc" else items[::-1]
    ids = [item["id"] for item in items]
    if (after := query.get("after")) is not None:
        if after not in ids:
            raise ApiError(f"there is no item {after!r:.100} in this response", param="after")
        items = items[ids.index(after) + 1 :]
    limit = query.get("limit", "20")
    if not limit.isdecimal() or not 1 <= int(limit[:9]) <= _MOST_ITEMS:
        raise ApiError(f"limit is a number from 1 to {_MOST_ITEMS}, got {limit!r:.100}", param="limit")
    page = items[: int(limit)]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return {"object": "list", "data": page, **ends, "has_more": len(page) < len(items)}


def _item(item: Json, end: str) -> Json:
    kind = item.get("type") or "message"
    made = {"type": kind, "id": f"{'msg' if kind == 'message' else 'item'}_{end}", **item}
    if kind == "message":
        if isinstance(made.get("content"), str):
            made["content"] = [{"type": _text_type(made), "text": made["content"], **_extras(made)}]
        made.setdefault("status", "completed")
    return made


def _text_type(item: Json) -> str:
    return "output_text" if item.get("role") == "assistant" else "input_text"


def _extras(item: Json) -> Json:
    return {"annotations": [], "logprobs": []} if item.get("role") == "assistant" else {}

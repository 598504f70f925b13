r"""Reading mathematical answers as text: the final answer of a response, its lists, brackets and units.

No algebra here. Splitting lists and tuples before parsing keeps `\{1, 2\}`, `(1, 2)` and `[1, 2)` apart.
"""

import re
from dataclasses import dataclass

from .math_units import split_unit

# Longer or deeper than any answer a person would write: such text is unreadable, not worth seconds of parsing.
MAX_ANSWER_CHARS = 1000
MAX_NESTING = 12

_PAIRS = {"(": ")", "[": "]"}
_LOOKALIKES = str.maketrans("\u2212\u2013\uff0c\u00a0", "--, ")  # minus sign, en dash, full-width comma, fixed space
_UNICODE = str.maketrans(
    {
        "\u00d7": r"\times ",
        "\u222a": r"\cup ",
        "·": r"\cdot ",
        "÷": "/",
        "π": r"\pi ",
        "∞": r"\infty ",
        "≤": r"\le ",
        "≥": r"\ge ",
        "≠": r"\neq ",
        "±": r"\pm ",
        "∩": r"\cap ",
        "∈": r"\in ",
        "∅": r"\emptyset ",
        "°": r"^\circ ",
        "²": "^2",
        "³": "^3",
        "½": r"\frac{1}{2}",
    }
)
_REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"√\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"√\s*(\w+)", r"\\sqrt{\1}"),
        (r"\\(?:left|right|bigl|bigr|big|Big|displaystyle)(?![A-Za-z])\.?", ""),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\(?:lbrace)(?![A-Za-z])", r"\\{"),
        (r"\\(?:rbrace)(?![A-Za-z])", r"\\}"),
        (r"\\(?:lbrack)(?![A-Za-z])", "["),
        (r"\\(?:rbrack)(?![A-Za-z])", "]"),
        (r"\\langle(?![A-Za-z])", "("),
        (r"\\rangle(?![A-Za-z])", ")"),
        (r"\\leq?(?:slant)?(?![A-Za-z])", r"\\le "),
        (r"\\geq?(?:slant)?(?![A-Za-z])", r"\\ge "),
        (r"<=", r"\\le "),
        (r">=", r"\\ge "),
        (r"(?<=\d)(?:\\[,!;: ]|\{,\}|~)\s*(?=\d{3}(?!\d))", ""),  # thousands in TeX
        (r"\\[,!;:]|~|\\q?quad(?![A-Za-z])|\\ (?=\s|\S)", " "),
        (r",?\s*\\(?:text|mathrm|textrm|mbox)\s*\{\s*(?:,?\s*)(?:and|or)\s*\}", ","),
        (r",?(?<![A-Za-z\\])\s*\b(?:and|or)\b(?![A-Za-z])", ","),
        (r"\s+", " "),
    ]
]
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d|,\d)")
_SPACED_THOUSANDS = re.compile(r"^([+-]?\d{1,3})((?: \d{3})+)(\.\d+)?$")
_NAMED = re.compile(r"^(?:[A-Za-z](?:_\w|\([a-z]\))?|\([A-Za-z](?:, ?[A-Za-z])+\))\s*(?:=|\\in(?![A-Za-z]))\s*(.+)$")


@dataclass(frozen=True)
class Scalar:
    """One expression, relation or set that holds no list at its top."""

    text: str
    unit: str | None = None


@dataclass(frozen=True)
class Listing:
    """Several answers; `brackets` is "" for a bare list, else its opening and closing bracket."""

    items: "tuple[Scalar | Listing, ...]"
    brackets: str
    text: str


def is_readable(text: str) -> bool:
    """Say whether the text is short and shallow enough to be an answer."""
    depth = deepest = 0
    for char in text:
        depth += (char in "([{") - (char in ")]}")
        deepest = max(deepest, depth)
    return len(text) <= MAX_ANSWER_CHARS and deepest <= MAX_NESTING


def read(text: str) -> Scalar | Listing:
    """Split what `clean` returned into lists and scalars with units."""
    text = text.strip()
    while text.startswith("{") and _closing(text, 1) == len(text):
        text = text[1:-1].strip()
    named = _NAMED.match(text)
    if named and isinstance(value := read(named[1]), Listing) and value.brackets:
        return value
    parts = split_top(_join_thousands(text))
    if len(parts) > 1:
        return Listing(tuple(read(part) for part in parts if part), "", text)
    text = _SPACED_THOUSANDS.sub(lambda match: match[0].replace(" ", ""), parts[0])
    brackets, content = _unwrap(text)
    if brackets == "()" and len(split_top(content)) == 1:
        return read(content)
    if brackets:
        items = tuple(read(part) for part in split_top(content) if part)
        return Listing(items, brackets, text)
    if re.search(r"\\(?:pm|mp)(?![A-Za-z])", text):
        return Listing(tuple(read(_signed(text, sign)) for sign in "+-"), "{}", text)
    return Scalar(*split_unit(text))


def clean(text: str) -> str:
    """Return an answer or label without delimiters, spacing commands and other dress."""
    text = text.strip().strip("*`").strip()
    if "\\boxed" in text or "\\fbox" in text:
        text = last_box(text) or ""
    text = re.sub(r"\\\$", "\ue000", text)  # an escaped dollar is money, a plain one a delimiter
    if text.count("$") == 1:
        text = text.replace("$", "\ue000")
    text = re.sub(r"(?<!\\)\\[()\[\]]|\$", " ", text).translate(_LOOKALIKES).translate(_UNICODE)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return re.sub(r"^\ue000", r"\\$", text.strip()).replace("\ue000", "").rstrip(".,; ").strip()


def final_text(response: str) -> str | None:
    """Return what follows the model's thinking; None if the thinking never ended."""
    head, separator, tail = response.rpartition("</think>")
    if separator:
        return tail
    return None if "<think>" in head + tail else response


def last_box(text: str) -> str | None:
    r"""Return what the last `\boxed{}` holds; boxes joined by nothing but ", and or" are one list.

    None if there is no closed box; boxes inside the last one are dissolved.
    """
    boxes: list[tuple[int, int, str]] = []
    for match in re.finditer(r"\\(?:boxed|fbox)\s*(?:\{|(-?[\w.]+))", text):
        if boxes and match.start() < boxes[-1][1]:
            continue  # inside the box before
        end = match.end() if match[1] else _closing(text, match.end())
        if end is not None:
            boxes.append((match.start(), end, match[1] or text[match.end() : end - 1]))
    if not boxes:
        return None
    contents = [boxes[-1][2]]
    for (_, end, content), (start, _, _) in zip(reversed(boxes[:-1]), reversed(boxes), strict=False):
        if not re.fullmatch(r"(?:\s|[,;$]|\\[()\[\]]|\\text\{\s*(?:and|or)\s*\}|and\b|or\b)*", text[end:start]):
            break
        if content.strip() not in (known.strip() for known in contents):
            contents.insert(0, content)
    return re.sub(r"\\(?:boxed|fbox)", "", ", ".join(contents))


def compact(text: str) -> str:
    """Return cleaned text without spaces, except between digits, for telling whether two texts are the same."""
    text = re.sub(r"(?<!\d) | (?!\d)", "", text)
    return re.sub(r"\^\{(\w)\}", r"^\1", text)


def split_top(text: str) -> list[str]:
    """Split at commas and semicolons that stand outside all brackets and environments."""
    parts, depth, start = [], 0, 0
    for match in re.finditer(r"\\begin|\\end|[(\[{]|[)\]}]|[,;]", text):
        token = match[0]
        if token in ",;":
            if depth == 0:
                parts.append(text[start : match.start()].strip())
                start = match.end()
        else:
            depth += 1 if token in ("\\begin", "(", "[", "{") else -1
    return [*parts, text[start:].strip()]


def _closing(text: str, start: int) -> int | None:
    depth = 1
    for match in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.end()
    return None


def _unwrap(text: str) -> tuple[str, str]:
    """Return ("[)", content) where one pair of brackets encloses the whole text, else ("", text)."""
    opening = "\\{" if text.startswith("\\{") else text[:1]
    closing = "\\}" if text.endswith("\\}") else text[-1:]
    if opening not in ("(", "[", "\\{") or closing not in (")", "]", "\\}") or len(text) < 2:
        return "", text
    if (opening == "\\{") != (closing == "\\}"):
        return "", text
    content = text[len(opening) : len(text) - len(closing)]
    depth = 0
    for char in content:
        depth += (char in "([{") - (char in ")]}")
        if depth < 0:
            return "", text
    if opening + closing not in ("()", "[]", "\\{\\}") and len(split_top(content)) != 2:
        return "", text
    return (opening + closing).replace("\\", ""), content


def _join_thousands(text: str) -> str:
    def join(match: re.Match[str]) -> str:
        before = text[: match.start()]
        depth = sum(before.count(opening) - before.count(closing) for opening, closing in _PAIRS.items())
        depth += before.count("\\{") - before.count("\\}")
        return match[0] if depth else match[0].replace(",", "")  # within brackets a comma separates

    return _THOUSANDS.sub(join, text)


def _signed(text: str, sign: str) -> str:
    other = "-" if sign == "+" else "+"
    return re.sub(r"\\mp(?![A-Za-z])", f" {other} ", re.sub(r"\\pm(?![A-Za-z])", f" {sign} ", text))

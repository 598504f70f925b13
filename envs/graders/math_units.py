"""Units at the end of an answer: split off, and told apart where both sides name one."""

import re

_UNITS = {
    "km": "km kilometer kilometers kilometre kilometres",
    "m": "m meter meters metre metres",
    "cm": "cm centimeter centimeters centimetre centimetres",
    "mm": "mm millimeter millimeters",
    "inch": "in inch inches",
    "foot": "ft foot feet",
    "yard": "yd yard yards",
    "mile": "mi mile miles",
    "kg": "kg kilogram kilograms",
    "g": "g gram grams",
    "mg": "mg milligram milligrams",
    "pound": "lb lbs pound pounds",
    "second": "s sec second seconds",
    "minute": "min mins minute minutes",
    "hour": "h hr hrs hour hours",
    "day": "day days",
    "week": "week weeks",
    "month": "month months",
    "year": "yr yrs year years",
    "l": "l liter liters litre litres",
    "ml": "ml milliliter milliliters",
    "dollar": "dollar dollars usd",
    "cent": "cent cents",
    "degree": "degree degrees deg",
    "radian": "radian radians rad",
    "km/h": "km/h kmh kph",
    "m/s": "m/s",
    "mph": "mph",
    "unit": "unit units",
    "%": "percent percentage pct",
}
_CANONICAL = {word: unit for unit, words in _UNITS.items() for word in words.split()}
_TEX = re.compile(r"\\(?:text|mathrm|textrm|mbox|textbf|operatorname)\s*\{([^{}\\]*)\}\s*(?:\^\{?([23])\}?)?$")
_BARE = re.compile(r"(?<=[\d})])(\s*)((?:(?:square|sq|cubic|cu)\.? )?[A-Za-z/]+)(?:\^\{?([23])\}?)?$")
_WORD = re.compile(r"(?<=\d) ([A-Za-z]{4,})$")
_DEGREE = re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ)\s*(?:[CF])?$")
_BASE = re.compile(r"^([+-]?[0-9A-F]+)_\{?(\d+)\}?$")


def split_unit(text: str) -> tuple[str, str | None]:
    """Return the text without its unit, and the unit's usual name ("" for words that are no known unit)."""
    if text.startswith("\\$"):
        return text[2:].strip(), "dollar"
    if text.endswith("%"):
        return text[:-1].rstrip("\\ "), "%"
    if match := _BASE.match(text):
        return match[1], f"base {match[2]}"
    if (match := _DEGREE.search(text)) and text[: match.start()].strip():
        return text[: match.start()].strip(), "degree"
    if (match := _TEX.search(text)) and re.search(r"[\d})]\s*$", text[: match.start()]):
        words = match[1].strip()
        if re.fullmatch(r"[A-Za-z/ .]+", words) and not re.search(r"\b(?:or|and|to|not)\b", words):
            return text[: match.start()].strip(), _name(words, match[2])
    if match := _WORD.search(text):
        return text[: match.start()].strip(), _name(match[1], None)
    if match := _BARE.search(text):
        unit = _name(match[2], match[3])
        if unit and (match[1] or len(match[2]) > 1):  # "5m" may be a product, "5 m" and "5cm" are not
            return text[: match.start()].strip(), unit
    return text, None


def units_differ(one: str | None, other: str | None) -> bool:
    """Say whether both name a known unit and not the same one; a unit left out differs from none."""
    return bool(one) and bool(other) and one != other


def _name(words: str, power: str | None) -> str:
    words = words.lower().strip(" .")
    for prefix, implied in (("square ", "2"), ("sq ", "2"), ("sq. ", "2"), ("cubic ", "3"), ("cu ", "3")):
        if words.startswith(prefix):
            words, power = words.removeprefix(prefix), implied
    unit = _CANONICAL.get(words, "")
    return f"{unit}^{power}" if unit and power else unit

r"""From answer text to SymPy, through math-verify's LaTeX parser, with its known misreadings kept out.

The parser reads `2(3)` and `2 3` as 5, `10\,000` as 0 and `1e-9` as e-9: such text is rewritten first or
refused. Decimals become exact rationals that remember how many digits were written. Nothing is swallowed:
running out of memory or stack is a failure of the grader, not a wrong answer.
"""

import re
from dataclasses import dataclass
from decimal import Context, Decimal
from math import log2
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import (
    NormalizationConfig,
    latex2sympy,
    normalize_latex,
)
from latex2sympy2_extended.logic import And
from math_verify.grader import should_treat_as_complex
from math_verify.parser import (
    ExprExtractionConfig,
    LatexExtractionConfig,
    get_extraction_regexes,
)

from ...errors import GraderError
from .math_text import is_readable

Expression = Any  # SymPy is untyped: an expression, relation, set or matrix

MAX_BITS = 200_000  # numbers up to 60,000 digits are computed, larger ones are not
_MAX_FACTORIAL = 20_000
_EXACT = Context(prec=MAX_BITS)  # of our own: others set the process's precision, some task generators among them
_TAIL_CHARS = 2000  # a final answer without a box is looked for at the end of the response

_NORMALIZATION = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
)
_FUNCTIONS = "sqrt|sin|cos|tan|log|ln|exp|pi|infty|alpha|beta|theta"
_REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"\*\*", "^"),
        (r"\\mathrm\s*\{([a-z])\}", r"\1"),
        (rf"(?<![A-Za-z\\])({_FUNCTIONS})(?![A-Za-z])", r"\\\1"),
        (r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"^([+-]?)\s*(\d+) (\d+)/(\d+)$", r"\1(\2+\\frac{\3}{\4})"),  # a mixed number
        (r"^([+-]?\d+) (?=\\frac\s*\{\d+\}\s*\{\d+\}$)", r"\1"),
        (r"(?<![\w.^}])(\d+(?:\.\d+)?)[eE]([+-]?\d{1,4})(?!\w)", r"\1\\cdot 10^{\2}"),
        (r"(?<![\d.^_])(\d+(?:\.\d+)?)\s*\(", r"\1\\cdot("),
        (r"(?<=\))\s*(?=\d)", r"\\cdot "),
        (r"(?<![\d])\.(?=\d)", "0."),
        (r"\\%|%", r"\\cdot\\frac{1}{100}"),
    ]
]
_REPEATING = re.compile(r"(\d+)\.(\d*)\\overline\s*\{(\d+)\}")
_ADJACENT_NUMBERS = re.compile(r"(?<![\d_])\d+(?:\.\d+)?\s+\d|\d\s*\\(?:ldots|dots)")


class UnreadableError(ValueError):
    """The text is no mathematics that can be parsed."""


class TooLargeError(GraderError):
    """A number has too many digits to be computed."""

    def __init__(self, expression: Expression) -> None:
        super().__init__("a number in the answer or label has too many digits to be compared")
        self.is_tower = _is_tower(expression)


@dataclass(frozen=True)
class Parsed:
    """An expression without floats, and the fewest significant digits of a decimal in it (None: it is exact)."""

    expression: Expression
    num_digits: int | None = None


def parse(text: str) -> Parsed:
    """Parse one scalar.

    Raises:
        UnreadableError: It is not mathematics, too long or too deep.
        TooLargeError: It holds a number of more than `MAX_BITS` bits.
    """
    if not text or not is_readable(text) or _ADJACENT_NUMBERS.search(latex := _rewrite(text)):
        raise UnreadableError(f"cannot read {text[:80]!r}")
    latex = normalize_latex(latex, config=_NORMALIZATION)
    is_complex = should_treat_as_complex(latex)
    try:
        expression = latex2sympy(latex, is_real=not is_complex, convert_degrees=False, normalization_config=None)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # the parser raises bare Exception for a syntax error
        raise UnreadableError(f"cannot parse {text[:80]!r}") from error
    if expression is None or isinstance(expression, str | list):
        raise UnreadableError(f"cannot parse {text[:80]!r}")
    if is_complex and not expression.has(sympy.Sum, sympy.Product):
        expression = expression.subs(sympy.Symbol("i", real=False), sympy.I)
    return _evaluated(expression)


def final_answer(text: str) -> str | None:
    """Return the final answer of a response without a box, where math-verify's patterns find it."""
    text = text[-_TAIL_CHARS:]
    targets = (LatexExtractionConfig(boxed_match_priority=-1), ExprExtractionConfig())
    found = [
        (priority, -match.end(), match.start(), match)
        for patterns, _ in get_extraction_regexes(targets)
        for pattern, priority in patterns
        for match in pattern.finditer(text)
    ]
    if not found:
        return None
    groups = min(found, key=lambda entry: entry[:3])[3].groupdict()
    latex = [value for name, value in groups.items() if "latex" in name and value]
    if latex:
        return ", ".join(latex) + (r"\%" if groups.get("first_percent") else "")
    number = "".join(value for name, value in groups.items() if name.startswith(("integer", "decimal")) and value)
    return groups.get("expr") or number + (r"\%" if groups.get("percent") else "")


def _rewrite(text: str) -> str:
    text = _REPEATING.sub(_repeating_fraction, text)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return text


def _repeating_fraction(match: re.Match[str]) -> str:
    whole, fixed, period = match.groups()
    numerator = int(whole + fixed + period) - int(whole + fixed)
    return rf"\frac{{{numerator}}}{{{(10 ** len(period) - 1) * 10 ** len(fixed)}}}"


def _evaluated(expression: Expression) -> Parsed:
    """Replace floats by the rationals they were written as, bound the size of numbers, then evaluate."""
    floats = expression.atoms(sympy.Float)
    written = {number: str(number) for number in floats}
    num_digits = min((_significant_digits(text) for text in written.values()), default=None)
    exact = {number: sympy.Rational(text) for number, text in written.items()}
    return Parsed(_exact(expression, exact), num_digits)


def _exact(expression: Expression, exact: dict[Expression, Expression]) -> Expression:
    if isinstance(expression, sympy.Rel):  # as it stands: evaluated, 2 + 3 = 5 would be nothing but true
        return expression.func(_exact(expression.lhs, exact), _exact(expression.rhs, exact), evaluate=False)
    if isinstance(expression, And):
        return And(*(_exact(part, exact) for part in _links(expression)), evaluate=False)
    expression = expression.xreplace(exact)
    try:
        _check_size(expression)
    except OverflowError as error:
        raise TooLargeError(expression) from error
    return expression.doit()


def _links(chain: Expression) -> list[Expression]:
    return list(chain._unsorted_args)  # in the order written, which SymPy's own order forgets


def _significant_digits(number: str) -> int:
    return len(Decimal(number).normalize(_EXACT).as_tuple().digits)


def _check_size(expression: Expression) -> None:
    for part in sympy.preorder_traversal(expression):
        if isinstance(part, sympy.Pow | sympy.factorial | sympy.Mul) and part.is_number:
            _bits(part)


def _bits(expression: Expression) -> float:
    """Bound the bits of a number's numerator and denominator from above, without computing it."""
    if isinstance(expression, sympy.Rational):
        return max(log2(abs(expression.p) or 1), log2(expression.q)) + 1
    if isinstance(expression, sympy.Pow):
        bits = _bits(expression.base) * max(1.0, abs(_small(expression.exp)))
    elif isinstance(expression, sympy.factorial):
        size = abs(_small(expression.args[0]))
        if size > _MAX_FACTORIAL:
            raise OverflowError(f"more than {MAX_BITS} bits")
        bits = size * log2(size + 1) + 1
    else:
        bits = sum(_bits(part) for part in expression.args if isinstance(part, sympy.Basic)) + 1
    if bits > MAX_BITS:
        raise OverflowError(f"more than {MAX_BITS} bits")
    return bits


def _small(expression: Expression) -> float:
    """Return an exponent's value as a float; one that is no small real number cannot be bounded."""
    if _bits(expression) > 64 and not isinstance(expression, sympy.Rational):
        raise OverflowError(f"more than {MAX_BITS} bits")
    value = sympy.N(expression.doit(), 15)
    if value.is_real is False:
        return float(abs(value))
    if not value.is_Float or abs(value) > MAX_BITS:
        raise OverflowError(f"more than {MAX_BITS} bits")
    return float(value)


def _is_tower(expression: Expression) -> bool:
    """Say whether it is built of powers and factorials of integers above 1 alone, so that it is huge for sure."""
    if isinstance(expression, sympy.Integer):
        return bool(expression > 1)
    is_growing = isinstance(expression, sympy.Pow | sympy.factorial | sympy.Mul)
    return is_growing and all(_is_tower(part) for part in expression.args)

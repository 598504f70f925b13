"""Whether two answers are the same: exactly where both are exact, to the digits written where one is a decimal."""

from decimal import Decimal
from typing import Any

import sympy

from .math_parse import Expression, Parsed, TooLargeError, UnreadableError, parse
from .math_text import Listing, Scalar
from .math_units import units_differ

# A decimal of at least this many significant digits stands for numbers within one unit in its last place.
_MIN_DIGITS, _MAX_DIGITS = 6, 15
_RELATIVE_CAP = sympy.Rational(1, 10**6)

Node = Scalar | Listing


def same_answer(gold: Node, answer: Node) -> bool:
    """Compare two answers read by `math_text.read`.

    Raises:
        UnreadableError: One of them cannot be parsed.
        TooLargeError: A number in it is too large to be computed.
    """
    if isinstance(gold, Listing) and isinstance(answer, Listing):
        return _same_listing(gold, answer)
    if isinstance(gold, Scalar) and isinstance(answer, Scalar):
        return _same_scalar(gold, answer)
    for one, other in ((gold, answer), (answer, gold)):
        if isinstance(one, Listing) and len(one.items) == 1 and one.brackets in ("", "{}", "[]"):
            return same_answer(*((one.items[0], other) if one is gold else (other, one.items[0])))
    return _same_set(_as_set(gold), _as_set(answer))


def _same_listing(gold: Listing, answer: Listing) -> bool:
    if len(gold.items) != len(answer.items):
        return False
    brackets = {gold.brackets, answer.brackets}
    if brackets <= {"", "{}"}:
        return _same_bag(list(gold.items), list(answer.items))
    if len(brackets) == 1 or brackets == {"", "()"}:
        return all(map(same_answer, gold.items, answer.items))
    return False


def _same_bag(gold: list[Node], answers: list[Node]) -> bool:
    """Match each gold item to an answer of its own; equality is transitive enough for a greedy match."""
    for item in gold:
        match = next((index for index, answer in enumerate(answers) if same_answer(item, answer)), None)
        if match is None:
            return False
        answers.pop(match)
    return True


def _same_scalar(gold: Scalar, answer: Scalar) -> bool:
    if gold.text == answer.text and not units_differ(gold.unit, answer.unit) and "%" not in (gold.unit, answer.unit):
        parse(gold.text)  # it must still be mathematics
        return True
    if "%" in (gold.unit, answer.unit) and gold.unit != answer.unit:
        return _same_percentage(gold, answer)
    if units_differ(gold.unit, answer.unit):
        return False
    gold_value = parse(gold.text)
    try:
        answer_value = parse(answer.text)
    except TooLargeError as error:
        if error.is_tower and gold_value.expression.is_number:
            return False  # it is beyond every number that can be computed
        raise
    return _same_value(gold_value, answer_value)


def _same_percentage(gold: Scalar, answer: Scalar) -> bool:
    """Compare 50% with 0.5, and with 50 where the sign was left out (numbers up to 1 are never read so)."""
    if gold.unit not in ("%", None) or answer.unit not in ("%", None):
        return False
    gold_value, answer_value = parse(gold.text), parse(answer.text)
    bare = answer_value if gold.unit else gold_value
    if _same_value(_scaled(gold_value, gold.unit), _scaled(answer_value, answer.unit)):
        return True
    is_above_one = bare.expression.is_number and bool(abs(bare.expression) > 1)
    return is_above_one and _same_value(gold_value, answer_value)


def _scaled(value: Parsed, unit: str | None) -> Parsed:
    return Parsed(value.expression / 100, value.num_digits) if unit else value


def _same_value(gold: Parsed, answer: Parsed) -> bool:
    one, other = gold.expression, answer.expression
    if any(expression.has(sympy.nan, sympy.zoo) for expression in (one, other)):
        return False
    if one == other:
        return True
    if _is_relation(one) != _is_relation(other):
        one, other = _assigned(one), _assigned(other)
    if _is_relation(one) and _is_relation(other):
        return _same_relation(one, other)
    if isinstance(one, sympy.Set) or isinstance(other, sympy.Set):
        return _same_set(_set_of(one), _set_of(other))
    if isinstance(one, sympy.MatrixBase) or isinstance(other, sympy.MatrixBase):
        return _same_matrix(gold, answer)
    if not (isinstance(one, sympy.Expr) and isinstance(other, sympy.Expr)):
        return False
    if one.is_number and other.is_number:
        return _same_number(Parsed(one, gold.num_digits), Parsed(other, answer.num_digits))
    return _same_function(one, other)


def _same_number(gold: Parsed, answer: Parsed) -> bool:
    one, other = gold.expression, answer.expression
    if not (one.is_finite and other.is_finite):
        return bool(one == other)
    is_same = one == other if one.is_Rational and other.is_Rational else is_zero(one - other)
    return is_same or _is_within_digits(gold, answer)


def _is_within_digits(gold: Parsed, answer: Parsed) -> bool:
    units = [_last_place(value) for value in (gold, answer)]
    gap = abs(gold.expression - answer.expression)
    cap = abs(gold.expression) * _RELATIVE_CAP
    return any(unit is not None and bool(gap < unit) for unit in units) and bool(gap <= cap)


def _last_place(value: Parsed) -> Expression | None:
    """Return one unit in the last place of a long decimal; None for what is exact or written with few digits."""
    if value.num_digits is None or value.num_digits < _MIN_DIGITS or not value.expression.is_real:
        return None
    leading = Decimal(str(sympy.N(value.expression, _MAX_DIGITS))).adjusted()
    return sympy.Rational(10) ** (leading - min(value.num_digits, _MAX_DIGITS) + 1)


def is_zero(difference: Expression) -> bool:
    """Say whether an exact number is zero: numerically for a quick no, symbolically for the yes."""
    if _is_surely_nonzero(difference.evalf(30, maxn=200)):
        return False
    if sympy.simplify(difference) == 0:
        return True
    # Nested radicals and the like that no rule proves: the difference must vanish far below every number written.
    digits = 100 + sum(len(str(number)) for number in difference.atoms(sympy.Rational))
    return bool(abs(difference.evalf(digits, maxn=2 * digits)) < sympy.Rational(1, 10**digits))


def _is_surely_nonzero(value: Expression) -> bool:
    """Say whether a part of an evaluated number differs from zero by more than the noise of its evaluation."""
    parts = value.as_real_imag() if value.is_number and value.is_finite else ()
    return any(part.is_Float and part._prec > 1 and part != 0 for part in parts)


def _same_function(one: Expression, other: Expression) -> bool:
    difference = one - other
    symbols = sorted(difference.free_symbols, key=str)
    for attempt in range(3):
        point = {symbol: sympy.Rational(17 + 10 * index, 7 + 4 * attempt) for index, symbol in enumerate(symbols)}
        if _is_surely_nonzero(difference.subs(point).evalf(30)):
            return False
    return bool(sympy.expand(difference) == 0 or sympy.simplify(difference) == 0)


def _same_matrix(gold: Parsed, answer: Parsed) -> bool:
    one, other = gold.expression, answer.expression
    if not (isinstance(one, sympy.MatrixBase) and isinstance(other, sympy.MatrixBase) and one.shape == other.shape):
        return False
    pairs = zip(one.flat(), other.flat(), strict=True)
    return all(_same_value(Parsed(a, gold.num_digits), Parsed(b, answer.num_digits)) for a, b in pairs)


def _is_relation(expression: Expression) -> bool:
    return isinstance(expression, sympy.Rel | sympy.logic.boolalg.BooleanFunction)


def _relations(expression: Expression) -> list[Any]:
    """Return the links of a chain such as a < x < b in the order written."""
    if isinstance(expression, sympy.Rel):
        return [expression]
    return [link for part in getattr(expression, "_unsorted_args", expression.args) for link in _relations(part)]


def _assigned(expression: Expression) -> Expression:
    """Return 5 for x = 5, and for 2 + 3 = 5; what is no assignment stays as it is."""
    links = _relations(expression) if _is_relation(expression) else []
    if not links or not all(isinstance(link, sympy.Eq) for link in links):
        return expression
    first, last = links[0].lhs, links[-1].rhs
    is_name = first.is_Symbol or isinstance(first, sympy.core.function.AppliedUndef)
    if is_name or first.is_number:
        return last
    return first if last.is_Symbol and len(links) == 1 else expression


def _same_relation(gold: Expression, answer: Expression) -> bool:
    one, other = _relations(gold), _relations(answer)
    if len(one) == len(other) and all(map(_same_link, one, other)):
        return True
    if len(one) == len(other) == 2 and all(map(_same_link, one, reversed(other))):
        return True
    has_equation = any(isinstance(link, sympy.Eq) for link in one + other)
    if has_equation or len(gold.free_symbols.union(answer.free_symbols)) != 1:
        return False
    return _same_set(_set_of(gold), _set_of(answer))


def _same_link(one: Any, other: Any) -> bool:
    """Compare two relations up to a factor, which must be positive where the direction counts."""
    (kind, left), (other_kind, right) = _standard(one), _standard(other)
    if kind != other_kind:
        return False
    if left == 0 or right == 0:
        return bool(left == right)
    ratio = sympy.simplify(left / right)
    if not ratio.is_number or not ratio.is_finite:
        return False
    return bool(ratio.is_nonzero) if kind in ("==", "!=") else bool(ratio.is_positive)


def _standard(relation: Any) -> tuple[str, Expression]:
    """Return (operator, expression) so that the relation says: expression operator 0."""
    difference = sympy.expand(relation.lhs - relation.rhs)
    flipped = {"<": ">", "<=": ">="}.get(relation.rel_op)
    return (flipped, -difference) if flipped else (relation.rel_op, difference)


def _as_set(node: Node) -> Expression:
    """Return the set that a node stands for; a tuple of two in round brackets is an open interval."""
    if isinstance(node, Scalar):
        return _set_of(parse(node.text).expression)
    if node.brackets in ("", "{}"):
        return sympy.FiniteSet(*(parse(item.text).expression for item in node.items))
    if len(node.items) != 2:
        raise UnreadableError(f"cannot read {node.text[:80]!r} as a set")
    start, end = (parse(item.text).expression for item in node.items)
    return sympy.Interval(start, end, node.brackets[0] == "(", node.brackets[1] == ")")


def _set_of(expression: Expression) -> Expression:
    if isinstance(expression, sympy.Set):
        return expression
    if _is_relation(expression):
        assigned = _assigned(expression)
        if isinstance(assigned, sympy.Set):
            return assigned
        if len(expression.free_symbols) == 1:
            return expression.as_set()
    return sympy.FiniteSet(expression)


def _same_set(gold: Expression, answer: Expression) -> bool:
    return bool(gold == answer or ((gold - answer).is_empty is True and (answer - gold).is_empty is True))

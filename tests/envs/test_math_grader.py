import asyncio
import decimal
import math
import random
import threading
import time
from collections.abc import Iterator
from fractions import Fraction

import psutil
import pytest

from turngym.envs.graders.math import MathGrader, Verdict, check_label, check_labels, grade
from turngym.errors import GraderError


def is_right(label: str, answer: str) -> bool:
    return grade(rf"Therefore the result is \boxed{{{answer}}}.", label).is_correct


def decide(label: str, answer: str) -> bool:
    """Grade both ways round and in dollars too, which must agree."""
    verdicts = {
        is_right(label, answer),
        is_right(answer, label),
        is_right(f"${label}$", answer),
        grade(f"The final answer is ${answer}$.", label).is_correct,
    }
    assert len(verdicts) == 1, (label, answer)
    return verdicts.pop()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("label", "answer"),
    [
        (r"\frac{1}{2004!}", r"\frac{1}{2006!}"),
        (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}"),
        (r"\frac{2^{2005}+1}{3 \cdot 2^{2006}}", r"\frac{1}{3 \cdot 2^{2006}}"),
        (r"10^{-9}", r"10^{-12}"),
        (r"10^{-9}", "0"),
        (r"\frac{1}{2^{20}}", r"\frac{1}{2^{21}}"),
        (r"1.5 \times 10^{-30}", r"1.6 \times 10^{-30}"),
        (r"\sqrt{2}", r"\sqrt{2}+\frac{1}{2^{400}}"),
        (r"\sqrt{3+2\sqrt{2}}", r"1+\sqrt{2}+\frac{1}{10^{300}}"),
        (r"\pi", r"\pi+10^{-80}"),
    ],
)
def test_numbers_that_differ_by_little_differ(label: str, answer: str) -> None:
    assert not decide(label, answer)


@pytest.mark.slow
def test_rationals_are_equal_in_every_form_and_only_to_themselves() -> None:
    random.seed(0)
    for _ in range(25):
        p = random.randint(-(10 ** random.randint(1, 30)), 10 ** random.randint(1, 30))
        q = random.randint(1, 10 ** random.randint(1, 40))
        k = random.randint(2, 99)
        value = Fraction(p, q)
        forms = [
            rf"\frac{{{p * k}}}{{{q * k}}}",
            f"{p}/{q}",
            rf"{p} \cdot \frac{{1}}{{{q}}}",
            rf"-\frac{{{-p}}}{{{q}}}",
        ]
        label = rf"\dfrac{{{value.numerator}}}{{{value.denominator}}}"
        assert all(is_right(label, form) for form in forms), (label, forms)
        for wrong in (Fraction(p + 1, q), Fraction(p, q + 1), -value, 1 / value if value else Fraction(1)):
            if wrong != value:
                assert not is_right(label, f"{wrong.numerator}/{wrong.denominator}"), (label, wrong)


def test_decimals_equal_the_fractions_that_they_are() -> None:
    random.seed(1)
    for _ in range(25):
        places = random.randint(1, 12)
        digits = random.randint(0, 10 ** (places - 1) - 1)
        decimal = f"{random.randint(0, 99)}.{digits:0{places - 1}d}7"
        value = Fraction(decimal)
        assert is_right(f"{value.numerator}/{value.denominator}", decimal)
        off = value + Fraction(1, 10 ** (len(decimal.partition(".")[2])))
        assert not is_right(f"{off.numerator}/{off.denominator}", decimal), decimal


@pytest.mark.parametrize(
    ("label", "answer", "right"),
    [
        ("3*x-1*y+13=0", "3x + 4y + 14=0", False),
        ("3*x-1*y+13=0", "0", False),
        ("3*x-1*y+13=0", "3x - y + 13 = 0", True),
        ("3*x-1*y+13=0", "y = 3x + 13", True),
        ("3*x-1*y+13=0", "6x - 2y = -26", True),
        ("3*x-1*y+13=0", "0=0", False),
        ("1331 and 1728", "1728", False),
        ("1331 and 1728", "1331, 1728", True),
        ("1331 and 1728", r"1728 \text{ and } 1331", True),
        ("$1331$ and $1728$", "1331, 1728", True),
        ("1331 and 1728", "1331, 1728, 9", False),
    ],
)
def test_labels_without_dollars_keep_all_they_say(label: str, answer: str, right: bool) -> None:
    assert is_right(label, answer) is right


@pytest.mark.parametrize(
    ("label", "answer"),
    [
        (r"\dfrac{9}{7}", r"\dfrac{9}{7}"),
        (r"\dfrac{9}{7}", r"\frac{9}{7}"),
        ("x^2+1", "x^2+1"),
        ("x^2+1", "1 + x^2"),
        (r"\sqrt{2}", r"\sqrt{2}"),
        (r"\sqrt{2}", r"2/\sqrt2"),
        (r"\text{(B)}", "B"),
        ("B", r"\text{(B)}"),
        ("B", r"\textbf{(B) } 12"),
    ],
)
def test_bare_latex_labels_are_read(label: str, answer: str) -> None:
    assert check_label(label) is None
    assert is_right(label, answer)


@pytest.mark.parametrize(
    ("label", "answer"),
    [
        ("2", "1 or 2 or 3"),
        ("2", r"1 \text{ or } 2"),
        ("5", r"5\text{ or maybe 6}"),
        ("5", r"4\ (\text{or } 5)"),
        ("B", "B or C"),
        ("B", "ABCD"),
        ("yes", "yes or no"),
        (r"\{1, 2\}", r"\{1, 2, 3\}"),
        ("5", ""),
        ("5", " "),
        ("5", "k"),
        ("x^2", "y"),
        ("0", r"\frac{0}{0}"),
        ("0", r"0 \cdot \infty"),
        ("5", r"\frac{1}{0}"),
        ("5", r"\text{any number}"),
        ("5", r"\mathbb{R}"),
        ("5", "3x = 5"),
        ("5", "x = 5, y = 6"),
        ("x=5", "y=5"),
        ("god", "dog and god"),
        ("Monday", "Sunday"),
        ("5", "2 3"),
        ("5", "2(3)"),
        ("7", "8 or 7"),
    ],
)
def test_tricks_do_not_pay(label: str, answer: str) -> None:
    assert not is_right(label, answer)


@pytest.mark.parametrize(
    ("label", "answer", "right"),
    [
        ("1/3", "0.333", False),
        ("1/3", "0.333333", True),
        ("2/3", "0.666667", True),
        ("0.333", "1/3", False),
        ("3.14", r"\pi", False),
        ("3.14159", r"\pi", True),
        ("1234567", "1234567.4", False),
        ("12345678.5", "12345678.4", False),
        ("0.30000000000000004", "0.3", True),
        ("2.50", "2.5", True),
        ("1/3", r"0.\overline{3}", True),
        ("1e-9", "10^{-9}", True),
        ("1,234", "1234", True),
        (r"1\,234", "1234", True),
        ("1{,}234{,}567", "1234567", True),
        ("1,2", "12", False),
        ("3 1/2", r"\frac{7}{2}", True),
        ("3 1/2", "2", False),
        ("50%", "0.5", True),
        ("50%", "50", True),
        ("50", r"50\%", True),
        ("0.5", r"50\%", True),
        ("0.5", r"0.5\%", False),
        ("50", "0.5", False),
        ("5", r"5\text{ cm}", True),
        ("5 cm", r"5\text{ cm}", True),
        (r"5\text{ cm}", r"5\text{ m}", False),
        (r"5\text{ cm}^2", r"5\text{ cm}^3", False),
        ("5 dollars", r"\$5", True),
        ("12_{8}", "12_{9}", False),
        ("90", r"90^\circ", True),
    ],
)
def test_decimals_separators_percent_and_units(label: str, answer: str, right: bool) -> None:
    assert is_right(label, answer) is right


@pytest.mark.parametrize(
    ("label", "answer", "right"),
    [
        ("[1,2)", "[1, 2)", True),
        ("[1,2)", "(1,2)", False),
        ("[1,2)", r"1 \le x < 2", True),
        (r"1 \le x < 2", "[1,2]", False),
        (r"1 \le x < 2", r"2 > x \ge 1", True),
        ("(1,2)", "(2,1)", False),
        ("(1,2)", "1,2", True),
        ("(1,2)", r"\{1,2\}", False),
        (r"\{1,2\}", r"\{2,1\}", True),
        (r"\{1,2\}", r"\{2,1,1\}", False),
        (r"\pm 3", "3, -3", True),
        ("3", r"\pm 3", False),
        ("(3,4),(5,6)", "(5,6),(3,4)", True),
        ("(3,4),(5,6)", "(3,6),(5,4)", False),
        (r"(-\infty,3)\cup(4,5]", r"(4,5]\cup(-\infty,3)", True),
        (r"(-\infty,3)\cup(4,5]", r"(4,5)\cup(-\infty,3)", False),
        ("x<3", "3>x", True),
        ("x<3", "-x<-3", False),
        ("x<3", r"x \le 3", False),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix}1\\2\end{bmatrix}", True),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}2\\1\end{pmatrix}", False),
        ("(x+1)(x-1)", "x^2-1", True),
        ("(x+1)(x-1)", "x^2+1", False),
        (r"e^{i\pi}", "-1", True),
        ("y=2x+1", "2x+1", True),
    ],
)
def test_sets_tuples_intervals_and_relations(label: str, answer: str, right: bool) -> None:
    assert is_right(label, answer) is right


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"First \boxed{1}. No: \boxed{2}", "2"),
        (r"\boxed{1} or \boxed{2}", "1, 2"),
        (r"\boxed{2} \boxed{2}", "2"),
        (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{7} and then \boxed{", "7"),
        (r"\boxed{", None),
        (r"\boxed{3} so \boxed{}", None),
        ("<think>it is 5</think>It is 6.", "6"),
        (r"<think>it is \boxed{5}", None),
        ("First 3, then 4.\nThe final answer is $\\frac{1}{2}$. I hope it is correct.", r"\frac{1}{2}"),
        ("3/4", "3/4"),
        ("Adding up.\n#### 42", "42"),
        ("I do not know", None),
    ],
)
def test_the_final_answer_of_a_response(response: str, answer: str | None) -> None:
    assert grade(response, "17").answer == answer


def test_an_unreadable_answer_is_wrong_and_an_unreadable_label_a_failure() -> None:
    assert grade(r"\boxed{x^2 +}", "7") == Verdict(False, "x^2 +", "unreadable")
    with pytest.raises(GraderError, match="label"):
        grade(r"\boxed{7}", "x^2 +")
    with pytest.raises(GraderError, match="no answer"):
        grade(r"\boxed{7}", "$ $")
    assert grade(r"\boxed{x^2 +}", "x^2 +").is_correct


@pytest.mark.parametrize(
    ("label", "problem"),
    [
        ("", "empty"),
        ("x^2+", "cannot be parsed"),
        (r"\frac{1}{", "cannot be parsed"),
        ("The answer is $5$ for all x", "mixes prose and mathematics, only '5'"),
        ("9^{9^{9^9}}", "too large"),
        ("####", "no answer"),
        ("3*x-1*y+13=0", None),
        ("1331 and 1728", None),
        ("12", None),
        ("Paris", None),
        ("Half of it, so 6.\n#### 12", None),
    ],
)
def test_labels_are_checked_before_training(label: str, problem: str | None) -> None:
    found = check_label(label)
    assert found is None if problem is None else problem in (found or "")


@pytest.mark.slow
def test_many_labels_are_checked_in_workers() -> None:
    assert list(check_labels(["1", "x^2+", r"\text{(B)}", ""])) == [1, 3]


DEGENERATE = [
    ("2^{65536}", "$2^{4^{16}}$"),
    ("2^{65536}", "$9^{9^{9}}$"),
    ("7", "$" + r"\frac{1}{" * 2000 + "1" + "}" * 2000 + "$"),
    ("7", "$9^{9^{9}}-9^{9^{9}}+7$"),
    ("7", r"\boxed{\sum_{k=1}^{10^{9}} \sin(k^2)^{k}}"),
    ("7", r"\boxed{" + "(" * 5000 + "7" + ")" * 5000 + "}"),
    ("7", r"\boxed{\ln(\ln(\ln(2^{10^{9}})))!}"),
    ("7", r"\boxed{\binom{10^{9}}{5 \cdot 10^{8}}}"),
]


@pytest.fixture(scope="module")
def grader() -> Iterator[MathGrader]:
    before = set(psutil.Process().children(recursive=True))
    grader = MathGrader(deadline_s=2.0, num_workers=2, memory_bytes=512 << 20)
    yield grader
    grader.close()
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.mark.slow
async def test_degenerate_answers_neither_freeze_nor_spoil_a_batch(grader: MathGrader) -> None:
    batch = [(str(number), rf"\boxed{{{number}}}") for number in range(56)]
    for position, pair in enumerate(DEGENERATE):
        batch.insert(position * 8, pair)
    peak = 0
    is_done = False

    async def watch_memory() -> None:
        nonlocal peak
        while not is_done:
            peak = max(peak, _children_rss())
            await asyncio.sleep(0.05)

    watch = asyncio.create_task(watch_memory())
    start = time.monotonic()
    results = await asyncio.gather(*(grader.grade(r, label) for label, r in batch), return_exceptions=True)
    is_done = True
    await watch
    degenerate = [result for (label, r), result in zip(batch, results, strict=True) if (label, r) in DEGENERATE]
    others = [result for (label, r), result in zip(batch, results, strict=True) if (label, r) not in DEGENERATE]
    assert all(isinstance(result, Verdict) and result.is_correct for result in others)
    assert len(others) == 56
    assert all(
        isinstance(result, GraderError) or (isinstance(result, Verdict) and not result.is_correct)
        for result in degenerate
    )
    assert time.monotonic() - start < 60  # 8 deadlines of 2 s on two workers, and the start
    assert peak < 2 << 30


def _children_rss() -> int:
    total = 0
    for child in psutil.Process().children(recursive=True):
        try:
            total += child.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


@pytest.mark.slow
async def test_a_deadline_is_a_typed_failure_and_the_next_answer_is_judged() -> None:
    grader = MathGrader(deadline_s=1.0, num_workers=1)
    try:
        assert (await grader.grade(r"\boxed{7}", "7")).is_correct
        with pytest.raises(GraderError, match="within 1 s"):
            await grader.grade(r"\boxed{\sum_{k=1}^{10^{9}} \sin(k^2)^{k}}", "7")
        assert (await grader.grade(r"\boxed{\frac{14}{2}}", "7")).is_correct
    finally:
        grader.close()


@pytest.mark.slow
def test_off_the_main_thread(grader: MathGrader) -> None:
    verdicts: list[Verdict] = []
    thread = threading.Thread(target=lambda: verdicts.append(asyncio.run(grader.grade(r"\boxed{x+x}", "2x"))))
    thread.start()
    thread.join(60)
    assert [verdict.is_correct for verdict in verdicts] == [True]


@pytest.mark.slow
async def test_cancelling_leaves_the_grader_usable(grader: MathGrader) -> None:
    call = asyncio.create_task(grader.grade(r"\boxed{\sum_{k=1}^{10^{9}} \sin(k^2)^{k}}", "7"))
    await asyncio.sleep(0.5)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await grader.grade(rf"\boxed{{{math.factorial(20)}}}", "20!")).is_correct


@pytest.mark.slow
def test_somebody_elses_decimal_precision_changes_nothing():
    with decimal.localcontext(prec=3):
        assert is_right("0.30000000000000004", "0.3")
        assert not is_right("0.123456", "0.1235")

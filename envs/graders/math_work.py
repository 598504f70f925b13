"""What the math grader's workers run; importing it loads and warms the algebra that `math` leaves out."""

from ...errors import GraderError
from . import math_equal, math_parse  # noqa: F401  # loaded once in the fork server, not in every worker
from .math import Verdict, check_label, grade

_FUNCTIONS = {function.__name__: function for function in (grade, check_label)}

# The parser builds its tables at first use, which would count against some answer's deadline.
grade(r"Hence $\frac{x}{2} + \sqrt{3}$.", r"\frac{2x + 1}{4}")


def work(name: str, *args: str) -> Verdict | str | None:
    """Run one of the grader's functions by its name.

    Raises:
        GraderError: There is no verdict, whatever the algebra raised: its own exceptions would
            make the parent import it.
    """
    try:
        return _FUNCTIONS[name](*args)
    except MemoryError:
        raise
    except GraderError as error:
        raise GraderError(str(error)) from None
    except Exception as error:
        raise GraderError(f"no verdict: the algebra failed with {type(error).__name__}: {error}") from None

"""Languages that sandboxes run: which file the code becomes, and the commands that compile and run it."""

from dataclasses import dataclass

from ..registry import Registry


@dataclass(frozen=True)
class Language:
    """How source code in a language is run."""

    file_name: str
    """The file in the work folder that holds the code."""
    argv: tuple[str, ...] | None
    """The command that runs it, in the work folder; None: the sandbox's own Python interpreter runs it."""
    needs: tuple[str, ...]
    """Programs that must be in the sandbox."""
    reserves_address_space: bool = False
    """It maps far more memory than it uses, so that only used memory can be limited."""
    compile_argv: tuple[str, ...] | None = None
    """The command that makes `artefact` of the code first; None: the code is run as it is."""
    artefact: str = ""
    """The file in the work folder that `argv` runs, if it is compiled."""


LANGUAGES: Registry[Language] = Registry("language")
for _name, _language in {
    "python": Language("main.py", None, ()),
    "bash": Language("main.sh", ("bash", "main.sh"), ("bash",)),
    "cpp": Language(
        "main.cpp",
        ("./main",),
        ("bash", "g++"),
        compile_argv=("g++", "-std=c++17", "-O1", "-o", "main", "main.cpp"),
        artefact="main",
    ),
    "javascript": Language("main.js", ("node", "main.js"), ("node",), reserves_address_space=True),
}.items():
    LANGUAGES.register(_name)(_language)

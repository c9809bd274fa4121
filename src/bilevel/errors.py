"""Every error the library raises on purpose, each also a builtin that users already catch."""

from __future__ import annotations


class BilevelError(Exception):
    """Base of all errors of this library."""


class InvalidInput(BilevelError, ValueError):
    """An argument has a value that cannot be used; the message names it, shows it and gives the remedy."""


class InvalidType(BilevelError, TypeError):
    """An argument has the wrong type or dtype."""


class EmptySet(InvalidInput):
    """The parameters of a convex set leave no point in it."""


class NotFinite(InvalidInput):
    """A point has NaN or infinite entries; in a run it means divergence."""


class Incompatible(BilevelError, ValueError):
    """Two parts that cannot work together: says what is needed and which parts would do."""


class NotConverged(BilevelError, RuntimeError):
    """An iteration or a solver stopped short of its tolerance; the message gives the residual and the remedy."""


class MissingExtra(BilevelError, ImportError):
    """An optional dependency is absent; the message gives the pip line that installs it."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional part of bilevel: pip install 'bilevel[{extra}]'")


def shown(text: str) -> str:
    """A text for a terminal: control characters, which names and cells of strangers may hold, are shown, not obeyed.

    Examples
    --------
    >>> shown("column 'a\\x1b[2Jb' is\\nempty").splitlines()
    ["column 'a\\\\x1b[2Jb' is", 'empty']
    """
    return "".join(sign if sign.isprintable() or sign == "\n" else repr(sign)[1:-1] for sign in text)

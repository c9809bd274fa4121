"""The errors and warnings of the library; each error is also a builtin exception such as ValueError."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class BilevelError(Exception):
    """Base of all errors of this library.

    Examples
    --------
    >>> import bilevel
    >>> try:
    ...     bilevel.sets.L1Ball(radius=-1.0)
    ... except bilevel.BilevelError as error:
    ...     print(error)
    radius must be at least 0, got -1
    """


class InvalidInputError(BilevelError, ValueError):
    """An argument has a value that cannot be used; the message names it, shows it and gives the remedy.

    Examples
    --------
    >>> import bilevel
    >>> bilevel.hypergradients.Perturbed(radius=-1.0)
    Traceback (most recent call last):
    bilevel.errors.InvalidInputError: radius must be a positive number or "auto", got -1.0; for no smoothing use Exact()
    """


class InvalidTypeError(BilevelError, TypeError):
    """An argument has the wrong type or dtype.

    Examples
    --------
    >>> import bilevel, torch
    >>> bilevel.sets.L1Ball(1.0).project(torch.tensor([1, 2]))
    Traceback (most recent call last):
    bilevel.errors.InvalidTypeError: ...
    """


class EmptySetError(InvalidInputError):
    """The parameters of a convex set leave no point in it.

    Examples
    --------
    >>> import bilevel
    >>> bilevel.sets.Box(lower=1.0, upper=0.0)
    Traceback (most recent call last):
    bilevel.errors.EmptySetError: ...
    """


class NonFiniteError(InvalidInputError):
    """A point has NaN or infinite entries; in a run it means divergence.

    Examples
    --------
    >>> import bilevel, torch
    >>> bilevel.sets.L1Ball(1.0).project(torch.tensor([1.0, float("nan")]))
    Traceback (most recent call last):
    bilevel.errors.NonFiniteError: ...
    """


class IncompatibleError(BilevelError, ValueError):
    """Two parts do not work together; the message says what is needed and which parts are suitable.

    Examples
    --------
    >>> import bilevel, torch
    >>> problem = bilevel.Problem(lambda x, y: y.sum(), lambda x, y: (y - x).square().sum(), bilevel.sets.L2Ball(1.0))
    >>> bilevel.minimize(problem, torch.zeros(2), torch.zeros(2), solver=bilevel.solvers.SIGD())
    Traceback (most recent call last):
    bilevel.errors.IncompatibleError: SIGD cannot use set L2Ball(radius=1, center=0): ...
    """


class NotConvergedError(BilevelError, RuntimeError):
    """An iteration or a solver stopped short of its tolerance; the message gives the residual and the remedy.

    Examples
    --------
    >>> raise NotConvergedError("residual 1e-3 after 100 steps, tol is 1e-6: raise max_steps")
    Traceback (most recent call last):
    bilevel.errors.NotConvergedError: residual 1e-3 after 100 steps, tol is 1e-6: raise max_steps
    """


class MissingExtraError(BilevelError, ImportError):
    """An optional dependency is absent; the message gives the pip line that installs it.

    Parameters
    ----------
    what
        What needs it, as the beginning of a sentence.
    extra
        The name of the extra in pyproject.toml.

    Examples
    --------
    >>> raise MissingExtraError("The command line", "apps")
    Traceback (most recent call last):
    bilevel.errors.MissingExtraError: The command line needs an optional part of bilevel: pip install 'bilevel[apps]'
    """

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional part of bilevel: pip install 'bilevel[{extra}]'")
        self._arguments = what, extra

    def __reduce__(self) -> tuple[type, tuple[str, str]]:  # a worker sends it to its driver
        return type(self), self._arguments


class OutputExistsError(InvalidInputError, FileExistsError):
    """A file exists and may not be replaced."""


class MissingFileError(InvalidInputError, FileNotFoundError):
    """A file or folder does not exist."""


class CorruptFileError(InvalidInputError):
    """The bytes of a file are not those that were written."""


class WriteError(BilevelError, OSError):
    """A file could not be written, for example because the disk is full; an existing file is unchanged."""


class RankError(BilevelError, RuntimeError):
    """A rank failed, or the ranks are inconsistent; every rank raises it, with the cause.

    Examples
    --------
    >>> raise RankError("rank 1, reading its rows: there is no file rows-1.parquet")
    Traceback (most recent call last):
    bilevel.errors.RankError: rank 1, reading its rows: there is no file rows-1.parquet
    """


class RankConnectionError(RankError, ConnectionError):
    """The ranks did not find each other within the time-out.

    Examples
    --------
    >>> issubclass(RankConnectionError, ConnectionError)
    True
    """


class LowerLevelWarning(UserWarning):
    """The lower level was not solved to the given tolerance."""


class LinearSystemWarning(UserWarning):
    """The linear system of a hypergradient was not solved, for example because the lower level is flat."""


class ProblemWarning(UserWarning):
    """f, g or a set violates an assumption: derivatives disagree with finite differences, or values are random."""


class PrecisionWarning(UserWarning):
    """A finite difference that the dtype cannot resolve."""


class AdaptivityWarning(UserWarning):
    """Elementwise steps with a projection that does not act entry by entry: fixed points are not solutions."""


class CheckpointWarning(UserWarning):
    """A checkpoint could not be written, or was damaged and the previous one is used."""


class ObserverWarning(UserWarning):
    """An observer could not write; the run continues without it."""


class LabelWarning(UserWarning):
    """A class loses all its rows, or is never predicted."""


class TrustWarning(UserWarning):
    """No trusted rows were given, so some rows are trusted unchecked."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A suggestion for a message, if a known name is similar; upper and lower case do not matter.

    Examples
    --------
    >>> did_you_mean("DIAGNOSE", ["diagnosis", "age"]), did_you_mean("x", ["diagnosis"])
    (" Did you mean 'diagnosis'?", '')
    """
    spelled = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), list(spelled), 1)
    return f" Did you mean {spelled[near[0]]!r}?" if near else ""


def first_line(error: BaseException) -> str:
    """The first line of the message of an error, or its type without a message."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def escape_control_chars(text: str) -> str:
    """A text for a terminal, with control characters (which untrusted names and cells may contain) escaped.

    Examples
    --------
    >>> escape_control_chars("column 'a\\x1b[2Jb' is\\nempty").splitlines()
    ["column 'a\\\\x1b[2Jb' is", 'empty']
    """
    return "".join(sign if sign.isprintable() or sign == "\n" else repr(sign)[1:-1] for sign in text)

"""Every error the library raises on purpose, each also a builtin that users already catch."""

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


class InvalidInput(BilevelError, ValueError):
    """An argument has a value that cannot be used; the message names it, shows it and gives the remedy.

    Examples
    --------
    >>> import bilevel
    >>> bilevel.Perturbed(radius=-1.0)
    Traceback (most recent call last):
    bilevel.errors.InvalidInput: radius must be positive, got -1.0; for no smoothing use Exact()
    """


class InvalidType(BilevelError, TypeError):
    """An argument has the wrong type or dtype.

    Examples
    --------
    >>> import bilevel, torch
    >>> bilevel.sets.L1Ball(1.0).project(torch.tensor([1, 2]))
    Traceback (most recent call last):
    bilevel.errors.InvalidType: ...
    """


class EmptySet(InvalidInput):
    """The parameters of a convex set leave no point in it.

    Examples
    --------
    >>> import bilevel
    >>> bilevel.sets.Box(lower=1.0, upper=0.0)
    Traceback (most recent call last):
    bilevel.errors.EmptySet: ...
    """


class NotFinite(InvalidInput):
    """A point has NaN or infinite entries; in a run it means divergence.

    Examples
    --------
    >>> import bilevel, torch
    >>> bilevel.sets.L1Ball(1.0).project(torch.tensor([1.0, float("nan")]))
    Traceback (most recent call last):
    bilevel.errors.NotFinite: ...
    """


class Incompatible(BilevelError, ValueError):
    """Two parts that cannot work together: says what is needed and which parts would do.

    Examples
    --------
    >>> import bilevel, torch
    >>> problem = bilevel.Problem(lambda x, y: y.sum(), lambda x, y: (y - x).square().sum(), bilevel.sets.L2Ball(1.0))
    >>> bilevel.minimize(problem, torch.zeros(2), torch.zeros(2), solver=bilevel.SIGD())
    Traceback (most recent call last):
    bilevel.errors.Incompatible: SIGD cannot use set L2Ball(radius=1, center=0): ...
    """


class NotConverged(BilevelError, RuntimeError):
    """An iteration or a solver stopped short of its tolerance; the message gives the residual and the remedy.

    Examples
    --------
    >>> raise NotConverged("residual 1e-3 after 100 steps, 1e-6 was asked for: raise max_steps")
    Traceback (most recent call last):
    bilevel.errors.NotConverged: residual 1e-3 after 100 steps, 1e-6 was asked for: raise max_steps
    """


class MissingExtra(BilevelError, ImportError):
    """An optional dependency is absent; the message gives the pip line that installs it.

    Parameters
    ----------
    what
        Who needs it, as the beginning of a sentence.
    extra
        The name of the extra in pyproject.toml.

    Examples
    --------
    >>> raise MissingExtra("The command line", "apps")
    Traceback (most recent call last):
    bilevel.errors.MissingExtra: The command line needs an optional part of bilevel: pip install 'bilevel[apps]'
    """

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional part of bilevel: pip install 'bilevel[{extra}]'")


def meant(name: str, known: Iterable[str]) -> str:
    """A question for a message, where a known name is much like this one.

    Examples
    --------
    >>> meant("diagnose", ["diagnosis", "age"]), meant("x", ["diagnosis"])
    (" Did you mean 'diagnosis'?", '')
    """
    near = difflib.get_close_matches(name, list(known), 1)
    return f" Did you mean {near[0]!r}?" if near else ""


def shown(text: str) -> str:
    """A text for a terminal: control characters, which names and cells of strangers may hold, are shown, not obeyed.

    Examples
    --------
    >>> shown("column 'a\\x1b[2Jb' is\\nempty").splitlines()
    ["column 'a\\\\x1b[2Jb' is", 'empty']
    """
    return "".join(sign if sign.isprintable() or sign == "\n" else repr(sign)[1:-1] for sign in text)

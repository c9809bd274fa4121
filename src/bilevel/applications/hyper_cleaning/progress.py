"""The progress of training on the screen: what is done, what is left, and the loss on trusted rows held out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .training import Moment

Show = Callable[[Moment], None]


@contextmanager
def shown(verbose: bool, callback: Show | None = None) -> Iterator[Show]:
    """A function that shows a `Moment` on a progress bar if `verbose`, and hands it to `callback`."""
    tell = callback or (lambda moment: None)
    if not verbose:
        yield tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[loss]}"), console=Console(stderr=True),
    )  # fmt: skip
    with bar:
        task = bar.add_task("cleaning", total=None, loss="")

        def show(moment: Moment) -> None:
            loss = "" if math.isnan(moment.loss) else f"held-out loss {moment.loss:.3f}"
            bar.update(task, description=moment.stage, completed=moment.done, total=moment.total, loss=loss)
            tell(moment)

        yield show

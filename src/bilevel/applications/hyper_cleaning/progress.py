"""The progress of training on the screen: what is done, what is left, and the loss on trusted rows held out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...progress import ProgressBar
from .training import Moment

Show = Callable[[Moment], None]


@contextmanager
def shown(verbose: bool, callback: Show | None = None) -> Iterator[Show]:
    """A function that shows a `Moment` on a progress bar if `verbose`, and hands it to `callback`."""
    tell = callback or (lambda moment: None)
    if not verbose:
        yield tell
        return
    with ProgressBar(100, counter="{done:.0f} %") as bar:

        def show(moment: Moment) -> None:
            loss = "" if math.isnan(moment.loss) else f", held-out loss {moment.loss:.4g}"
            bar.show(100 * moment.share, moment.stage + loss)
            tell(moment)

        yield show

"""The progress of training on the screen: what is done, what is left, and the loss on trusted rows held out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

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
    began = time.monotonic()
    bars: list[ProgressBar] = []
    with ExitStack() as stack:

        def show(moment: Moment) -> None:
            if not bars:  # the first moment says how much there is to do
                bars.append(stack.enter_context(ProgressBar(moment.total, began=began)))
            loss = "" if math.isnan(moment.loss) else f", held-out loss {moment.loss:.4g}"
            bars[0].show(moment.done, moment.stage + loss)
            tell(moment)

        yield show

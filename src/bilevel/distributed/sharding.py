"""From a set to the same set of divided vectors."""

from __future__ import annotations

from ..sets.base import ConvexSet
from ..sets.product import ProductSet
from .product import ShardedProduct
from .ranks import Ranks
from .sets import ShardedSet


def sharded(constraint: ConvexSet, ranks: Ranks | None = None) -> ConvexSet:
    """{y : (y_0, y_1, ...) in Y}, of which rank r holds the part y_r: P(z)_r and (H v)_r by sums over ranks.

    The last dimension of a vector is divided: rank r gives and gets the entries that it holds, any number of them, none
    included. Dimensions in front are a batch, the same on every rank, and all of it is projected in the same rounds. A
    DTensor is taken as its placements say, with the process group of its mesh, and the answer has the same placements.
    All ranks must call the same methods in the same order, and `backward` where derivatives are taken; what they pass
    differs, or is not finite on one of them, is an error on all.

    An l1 ball or simplex takes one round for the largest entry and then usually one to three for the threshold, at most
    six for one vector, of 16 kB each; an l2 ball two; a box one.

    Parameters
    ----------
    constraint
        L1Ball, Simplex, L2Ball, Box, NonNegative, LInfBall, FreeSpace, or a `ProductSet` of these. A radius is the same
        on every rank; a center or bound is a number, or this rank's part of the tensor (a rank without entries gives a
        number).
    ranks
        Who holds the parts; default: those of torch.distributed's default group, or this process alone.

    Returns
    -------
    ConvexSet
        The set, with all methods of the plain one.

    References
    ----------
    Held, Wolfe & Crowder (1974); Michelot (1986); the rounds are ours.

    Examples
    --------
    >>> import torch
    >>> from bilevel.sets import L1Ball
    >>> Y = sharded(L1Ball(1.0))  # one rank: all parts are here
    >>> Y.project(torch.tensor([2.0, -1.5, 0.1]))
    tensor([ 0.7500, -0.2500,  0.0000])
    >>> Y.ranks.rounds
    2
    """
    ranks = Ranks() if ranks is None else ranks
    return ShardedProduct(constraint, ranks) if isinstance(constraint, ProductSet) else ShardedSet(constraint, ranks)

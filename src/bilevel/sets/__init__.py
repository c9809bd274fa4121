"""Convex sets: nearest point, derivative of the nearest point, membership."""

from .affine import AffineSet, HalfSpace
from .base import ConvexSet, Face, Membership
from .box import Box, NonNegative
from .free_space import FreeSpace
from .l2_ball import L2Ball
from .product import ProductSet
from .simplex import L1Ball, Simplex

__all__ = [
    "AffineSet",
    "Box",
    "ConvexSet",
    "Face",
    "FreeSpace",
    "HalfSpace",
    "L1Ball",
    "L2Ball",
    "Membership",
    "NonNegative",
    "ProductSet",
    "Simplex",
]

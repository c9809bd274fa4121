"""Convex sets: nearest point, derivative of the nearest point, membership."""

from .affine import AffineSet, HalfSpace, Hyperplane
from .base import ConvexSet, Face, Membership
from .box import Box, LInfBall, NonNegative
from .box_section import BoxSection, CappedSimplex
from .free_space import FreeSpace
from .l2_ball import L2Ball
from .monotone_cone import MonotoneCone
from .permutahedron import Permutahedron
from .product import ProductSet
from .psd_cone import PSDCone
from .second_order_cone import SecondOrderCone
from .simplex import L1Ball, Simplex
from .singular_value_balls import NuclearNormBall, SpectralNormBall

__all__ = [
    "AffineSet",
    "Box",
    "BoxSection",
    "CappedSimplex",
    "ConvexSet",
    "Face",
    "FreeSpace",
    "HalfSpace",
    "Hyperplane",
    "L1Ball",
    "L2Ball",
    "LInfBall",
    "Membership",
    "MonotoneCone",
    "NonNegative",
    "NuclearNormBall",
    "Permutahedron",
    "ProductSet",
    "PSDCone",
    "SecondOrderCone",
    "Simplex",
    "SpectralNormBall",
]

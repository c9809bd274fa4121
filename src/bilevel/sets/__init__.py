"""Convex sets: nearest point, derivative of the nearest point, membership."""

from .affine import AffineSet, HalfSpace, Hyperplane
from .base import ConvexSet, Membership, ProjectionJacobian
from .box import Box, LInfBall, NonNegative
from .box_section import BoxSection, CappedSimplex
from .cones import PSDCone, SecondOrderCone
from .elastic_net_ball import ElasticNetBall
from .free_space import FreeSpace
from .from_cvxpy import from_cvxpy
from .from_projection import from_projection
from .group_l1_ball import GroupL1Ball
from .intersection import Intersection
from .l2_ball import L2Ball
from .monotone_cone import MonotoneCone
from .permutahedron import Permutahedron
from .polyhedron import Polyhedron
from .product import ProductSet
from .proximal import ElasticNetPenalty, GroupL1Penalty, Indicator, L1Penalty, Proximal
from .simplex import L1Ball, Simplex
from .singular_value_balls import NuclearNormBall, SpectralNormBall
from .transformed import Flattened, Scaled, Translated
from .transport_polytope import BirkhoffPolytope, TransportPolytope
from .weighted_l1_ball import WeightedL1Ball

__all__ = [
    "AffineSet",
    "BirkhoffPolytope",
    "Box",
    "BoxSection",
    "CappedSimplex",
    "ConvexSet",
    "ElasticNetBall",
    "ElasticNetPenalty",
    "ProjectionJacobian",
    "Flattened",
    "FreeSpace",
    "from_cvxpy",
    "from_projection",
    "GroupL1Ball",
    "GroupL1Penalty",
    "HalfSpace",
    "Hyperplane",
    "Indicator",
    "Intersection",
    "L1Ball",
    "L1Penalty",
    "L2Ball",
    "LInfBall",
    "Membership",
    "MonotoneCone",
    "NonNegative",
    "NuclearNormBall",
    "Permutahedron",
    "Polyhedron",
    "ProductSet",
    "Proximal",
    "PSDCone",
    "Scaled",
    "SecondOrderCone",
    "Simplex",
    "SpectralNormBall",
    "Translated",
    "TransportPolytope",
    "WeightedL1Ball",
]

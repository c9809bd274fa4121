"""Methods for bilevel problems, one per file."""

from .aipod import AiPOD
from .approx import Approx
from .base import Solver, State, like_x, like_y
from .bic_gaffa import BiCGAFFA
from .dmlcbo import DMLCBO
from .eaipod import EAiPOD
from .ig_al import IGAL
from .implicit import Implicit
from .lv_hba import LVHBA
from .meha import MEHA
from .penalty_momentum import PenaltyMomentum
from .projected_soba import ProjectedSOBA
from .rmd_pcd import RMDPCD
from .sigd import DSBLO, SIGD
from .smoothed_bfgs import SmoothedBFGS
from .vpbgd import VPBGD

__all__ = [
    "DMLCBO",
    "AiPOD",
    "Approx",
    "BiCGAFFA",
    "DSBLO",
    "EAiPOD",
    "IGAL",
    "Implicit",
    "LVHBA",
    "MEHA",
    "PenaltyMomentum",
    "ProjectedSOBA",
    "RMDPCD",
    "SIGD",
    "SmoothedBFGS",
    "VPBGD",
    "Solver",
    "State",
    "like_x",
    "like_y",
]

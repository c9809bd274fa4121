"""Methods for bilevel problems, one per file."""

from .aipod import AiPOD as AiPOD
from .approx import Approx as Approx
from .base import Solver as Solver
from .base import State as State
from .base import like_x as like_x
from .base import like_y as like_y
from .bic_gaffa import BiCGAFFA as BiCGAFFA
from .dmlcbo import DMLCBO as DMLCBO
from .eaipod import EAiPOD as EAiPOD
from .ig_al import IGAL as IGAL
from .implicit import Implicit as Implicit
from .lv_hba import LVHBA as LVHBA
from .meha import MEHA as MEHA
from .penalty_momentum import PenaltyMomentum as PenaltyMomentum
from .projected_soba import ProjectedSOBA as ProjectedSOBA
from .rmd_pcd import RMDPCD as RMDPCD
from .sigd import DSBLO as DSBLO
from .sigd import SIGD as SIGD
from .smoothed_bfgs import SmoothedBFGS as SmoothedBFGS
from .vpbgd import VPBGD as VPBGD

from .known_problems import KnownProblem as KnownProblem
from .sets import SetTestCase as SetTestCase

from .configuration import Configuration as Configuration
from .configuration import load_configuration as load_configuration
from .run_folder import RunRecord as RunRecord
from .store import ResultsStore as ResultsStore
from .store import StoreLockedError as StoreLockedError

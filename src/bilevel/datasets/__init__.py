"""Public sets of data: a catalogue with checksums, and readers for the official files.

data = load("omniglot")                     # from the data folder; `fetch("omniglot")` puts its files there
train = omniglot_split(data, "train")       # images (1200, 20, 1, 28, 28)
"""

from .catalogue import CATALOGUE, data_folder, load
from .cifar100 import Cifar100, fc100_split
from .entry import Dataset, Entry, ImageClasses, RemoteFile, TrainTestRows
from .fetching import DownloadError, FileCheck, fetch, verify
from .omniglot import omniglot_split

__all__ = [
    "CATALOGUE",
    "load",
    "fetch",
    "verify",
    "data_folder",
    "omniglot_split",
    "fc100_split",
    "Dataset",
    "TrainTestRows",
    "ImageClasses",
    "Cifar100",
    "Entry",
    "RemoteFile",
    "FileCheck",
    "DownloadError",
]

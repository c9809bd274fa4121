"""What every test run shares."""

import os

# Before NumPy and torch are imported: one thread per process. Our tensors are small, and the runs are already
# parallel over processes (pytest-xdist).
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("MPLBACKEND", "Agg")  # no test opens a window

import hypothesis  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)

# The same examples in every run, so that a failure can be repeated; no deadline, since machines are busy.
hypothesis.settings.register_profile("bilevel", derandomize=True, deadline=None)
hypothesis.settings.load_profile("bilevel")

"""One flat table of runs: whatever settings they have."""

import pandas as pd

from bilevel.experiments.export import export
from bilevel.experiments.run_folder import RunRecord


def test_settings_of_different_kinds_stand_in_one_column(tmp_path):
    about = {"experiment": "t", "role": "grid", "dataset": "d", "method": "m", "status": "iterations", "seed": 0}
    eta, classes = ("auto", 0.5), (None, [6, 9])
    runs = [
        RunRecord(**about, identity=str(i), settings={"eta": eta[i]}, configuration={"data": {"classes": classes[i]}})
        for i in range(2)
    ]
    for kind, read in (("csv", pd.read_csv), ("parquet", pd.read_parquet)):
        frame = read(export(runs, tmp_path / f"runs.{kind}", kind=kind))
        assert list(frame["settings.eta"]) == ["auto", "0.5"]
        assert frame["configuration.data.classes"][1] == "[6, 9]"
        assert pd.isna(frame["configuration.data.classes"][0])

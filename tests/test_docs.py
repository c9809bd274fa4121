"""What the manual says exists, and what exists is in the manual."""

import re
from pathlib import Path

import bilevel
from bilevel import sets
from bilevel.applications import hyper_cleaning

ROOT = Path(__file__).resolve().parents[1]
HOMES = (bilevel, sets, hyper_cleaning, hyper_cleaning.losses)


def listed(text):
    return set(re.findall(r"^   (\w+)$", text, re.MULTILINE))


def test_the_reference_lists_every_public_name():
    names = listed((ROOT / "docs" / "reference.md").read_text())
    modules = {
        "sets",
        "solvers",
        "smoothing",
        "hypergradients",
        "errors",
        "storage",
        "testing",
        "losses",
        "__version__",
    }
    assert {name for home in HOMES for name in home.__all__} - modules == names


def test_every_public_name_has_a_docstring():
    for name in listed((ROOT / "docs" / "reference.md").read_text()):
        assert next(getattr(home, name) for home in HOMES if hasattr(home, name)).__doc__, name


def test_the_readme_runs():
    """Every Python block of the README, in order, in one namespace."""
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, object] = {}
    exec(blocks[0].replace("steps=2000", "steps=20").replace("progress=True", "progress=False"), names)
    exec(blocks[1], names)
    assert names["state"].step == 100
    assert names["h"].shape == (150,)

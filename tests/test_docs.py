"""What the manual says exists, and what exists is in the manual."""

import re
from pathlib import Path

import bilevel
from bilevel import sets

ROOT = Path(__file__).resolve().parents[1]


def listed(text):
    return set(re.findall(r"^   (\w+)$", text, re.MULTILINE))


def test_the_reference_lists_every_public_name():
    names = listed((ROOT / "docs" / "reference.md").read_text())
    modules = {"sets", "solvers", "smoothing", "hypergradients", "errors", "storage", "testing", "__version__"}
    assert set(bilevel.__all__) - modules | set(sets.__all__) == names


def test_every_public_name_has_a_docstring():
    for name in listed((ROOT / "docs" / "reference.md").read_text()):
        thing = getattr(bilevel, name, None) or getattr(sets, name)
        assert thing.__doc__, name


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

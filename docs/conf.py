"""Settings of the manual: `make docs` builds it with warnings as errors, and needs no network."""

import re
import sys
from pathlib import Path

import torch
from docutils import nodes

import bilevel

sys.path.insert(0, str(Path(__file__).parent / "_ext"))
torch.set_num_threads(1)

project = "bilevel"
author = "The bilevel authors"
copyright = "2026, The bilevel authors"
release = version = bilevel.__version__

extensions = [
    "computed",
    "offline_math",
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
myst_enable_extensions = ["dollarmath", "amsmath", "deflist"]
myst_heading_anchors = 3
autosummary_generate = True
numpydoc_show_class_members = False
exclude_patterns = ["_build", "gallery/README.rst", "gallery/GALLERY_HEADER.rst"]
copybutton_exclude = ".linenos, .gp, .computed-output"

html_title = "bilevel"
html_favicon = "_static/favicon.svg"
html_theme = "pydata_sphinx_theme"
html_theme_options = {
    "show_prev_next": False,
    "navigation_with_keys": False,
    "navbar_align": "left",
    "header_links_before_dropdown": 3,
}
html_sidebars = {"*": []}  # pages of their own have no section to navigate
html_context = {"default_mode": "auto"}  # light or dark, as the reader has it
html_static_path = ["_static"]
html_css_files = ["manual.css"]

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "filename_pattern": "/plot_",
    "download_all_examples": False,
    "show_memory": False,
    "write_computation_times": False,
    "reset_modules": ("matplotlib", "computed.reset_torch"),
    "min_reported_time": 3600,
}


def keep_mathematics(app, what, name, obj, options, lines):
    """Docstrings write |y| and a * b as mathematics does: neither is markup."""
    code = False
    for k, line in enumerate(lines):
        code = line.lstrip().startswith((">>>", "...")) or (code and bool(line.strip()))
        if not code:
            lines[k] = line.replace("|", "\\|").replace("*", "\\*")


def name_thumbnails(app, doctree):
    """Sphinx-Gallery leaves the alternative text of its thumbnails empty."""
    for image in doctree.findall(nodes.image):
        found = re.search(r"sphx_glr_plot_(\w+)_thumb", image["uri"])
        if found and not image.get("alt", "").strip():
            image["alt"] = f"Picture of the example: {found[1].replace('_', ' ')}"


def setup(app):
    # Before numpydoc, which adds markup of its own.
    app.connect("autodoc-process-docstring", keep_mathematics, priority=100)
    app.connect("doctree-read", name_thumbnails)

"""Settings of the manual: `make docs` builds it with warnings as errors, and needs no network."""

import re
import sys
from pathlib import Path

import numpy as np
import torch
from docutils import nodes
from PIL import Image

import bilevel

sys.path.insert(0, str(Path(__file__).parent / "_ext"))
torch.set_num_threads(1)

project = "bilevel"
author = "The bilevel authors"
copyright = "2026, The bilevel authors"
release = version = bilevel.__version__

extensions = [
    "charts",
    "computed",
    "offline_math",
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
myst_enable_extensions = ["dollarmath", "amsmath", "deflist", "colon_fence"]
myst_heading_anchors = 3
default_role = "py:obj"  # `name` in a docstring is a link where there is such a name, and code elsewhere
autosummary_generate = True
templates_path = ["_templates"]
# Signatures: defaults as in the source, types by their last name, one argument per line where they are long.
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
maximum_signature_line_length = 72
toc_object_entries_show_parents = "hide"  # short names in the list "On this page"
numpydoc_show_class_members = False
exclude_patterns = ["_build", "_charts", "gallery/README.rst", "gallery/GALLERY_HEADER.rst"]
copybutton_exclude = ".linenos, .gp, .computed-output"

html_title = f"bilevel {release}"
html_favicon = "_static/favicon.svg"
html_theme = "pydata_sphinx_theme"
html_theme_options = {
    "logo": {
        "text": html_title,
        "alt_text": "bilevel",
        "image_light": "_static/favicon.svg",
        "image_dark": "_static/favicon.svg",
    },
    "show_prev_next": False,
    "navigation_with_keys": False,
    "navbar_align": "left",
    "header_links_before_dropdown": 5,
    "show_toc_level": 2,
    "secondary_sidebar_items": {"**": ["page-toc"], "index": [], "auto_gallery/index": []},
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_show_sourcelink = False
# Pages without a section to navigate.
html_sidebars = {name: [] for name in ("index", "tour", "auto_gallery/*", "genindex", "search")}
html_context = {"default_mode": "auto"}  # light or dark, as the reader has it
html_static_path = ["_static"]
html_css_files = ["manual.css"]

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "backreferences_dir": "_backreferences",  # by these, a page of the reference shows the examples that use its name
    "doc_module": ("bilevel",),
    "filename_pattern": "/plot_",
    "within_subsection_order": "charts.by_topic",
    "download_all_examples": False,
    "show_memory": False,
    "write_computation_times": False,
    "reset_modules": ("matplotlib", "charts.enlarge_text", "computed.reset_torch"),
    "min_reported_time": 3600,
    "thumbnail_size": (560, 392),
}


def keep_mathematics(app, what, name, obj, options, lines):
    """Docstrings write |y| and a * b as mathematics does: neither is markup."""
    code = False
    for k, line in enumerate(lines):
        code = line.lstrip().startswith((">>>", "...")) or (code and bool(line.strip()))
        if not code:
            lines[k] = line.replace("|", "\\|").replace("*", "\\*")


def shorten_defaults(app, what, name, obj, options, signature, returns):
    """A default of many words says nothing in a signature: `rounds: tuple[Round, ...] = ...`."""
    if signature and len(signature) > 300:
        signature = re.sub(r" = \((?:[^()]|\((?:[^()]|\([^()]*\))*\)){20,}\)", " = ...", signature)
    return signature, returns


def name_thumbnails(app, doctree):
    """Sphinx-Gallery leaves the alternative text of its thumbnails empty."""
    for image in doctree.findall(nodes.image):
        found = re.search(r"sphx_glr_plot_(\w+)_thumb", image["uri"])
        if found and not image.get("alt", "").strip():
            image["alt"] = f"Picture of the example: {found[1].replace('_', ' ')}"


def link_short_names(app, env, node, contnode):
    """Link public names that a docstring writes without their module, or with arguments: `SmoothedBFGS()`."""
    if node.get("refdomain") != "py":
        return None
    domain = env.domains["py"]
    name = re.sub(r"\(.*", "", node["reftarget"], flags=re.DOTALL)
    kinds = ("class", "exception", "function", *(["method", "property", "attribute"] if "." in name else []))
    known = [key for key, entry in domain.objects.items() if key.endswith("." + name) and entry.objtype in kinds]
    if not name or not known:
        return None
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", min(known, key=len), node, contnode)


def crop_thumbnails(app):
    """The first columns of panels of a wide figure are legible as a thumbnail."""
    folder = Path(app.srcdir) / "auto_gallery" / "images"
    for thumbnail in folder.glob("thumb/*_thumb.png"):
        source = folder / thumbnail.name.replace("_thumb", "_001")
        example = Path(app.srcdir) / "gallery" / thumbnail.name.replace("sphx_glr_", "").replace("_thumb.png", ".py")
        columns = re.search(r"plt\.subplots\(\d+, (\d+)", example.read_text())
        if columns is None or not source.exists():  # one panel, or not run
            continue
        figure, total = Image.open(source), int(columns[1])
        shown = max(1, round(total * 1.4 * figure.height / figure.width))
        if shown < total:
            figure.crop((0, 0, gap_near(figure, figure.width * shown // total), figure.height)).save(thumbnail)


def gap_near(figure, x):
    """The start of the widest empty part of a figure near x: between two panels."""
    first = x - figure.width // 8
    ink = np.flatnonzero(np.asarray(figure.convert("L"))[:, first : x + figure.width // 16].min(axis=0) < 255)
    return first + int(ink[np.diff(ink).argmax()]) + 4


def setup(app):
    # Before numpydoc, which adds markup of its own.
    app.connect("autodoc-process-docstring", keep_mathematics, priority=100)
    app.connect("autodoc-process-signature", shorten_defaults)
    app.connect("doctree-read", name_thumbnails)
    app.connect("missing-reference", link_short_names)
    app.connect("builder-inited", crop_thumbnails, priority=900)  # after Sphinx-Gallery

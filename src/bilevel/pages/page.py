"""A page that needs nothing else: its style, its script and its pictures are inside, and it forbids itself the network.

Every text is escaped by jinja2; a template of a report extends page.html.j2 and fills `title` and `content`.
"""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from typing import Any

from ..errors import MissingExtra


def render_page(package: str, template: str, **values: Any) -> str:
    """The page as text, from a template beside the modules of `package`; `values` are its variables."""
    try:
        import jinja2
        from markupsafe import Markup
    except ImportError:
        raise MissingExtra("The report", "apps") from None

    def load(name: str) -> str | None:
        homes = (home for home in (package, str(__package__)) if resources.files(home).joinpath(name).is_file())
        return next((_resource(home, name) for home in homes), None)

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(load), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.filters["percent"] = lambda share: f"{100 * share:.1f} %"
    environment.filters["count"] = lambda number: f"{number:,}".replace(",", "\u202f")
    script = _resource(str(__package__), "page.js")
    return environment.get_template(template).render(
        css=Markup(_resource(str(__package__), "page.css")),
        script=Markup(script),
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        **values,
    )


def _resource(package: str, name: str) -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")

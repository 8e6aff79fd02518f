"""Templates and thumbnails of all pages."""

import base64
from collections.abc import Iterable
from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined

from shoal.runs import THUMBNAILS, Run
from shoal.text import shown
from shoal.words import count, duration, number, percent


def data_uris(run: Run, rows: Iterable[int], budget: int) -> dict[int, str]:
    """Return the thumbnails of the first `rows` that fit into `budget` bytes, as data URIs."""
    uri_of: dict[int, str] = {}
    if not run.has(THUMBNAILS):
        return uri_of
    wanted = list(dict.fromkeys(rows))
    for row, picture in zip(wanted, run.thumbnails(wanted), strict=True):
        uri = f"data:image/webp;base64,{base64.b64encode(picture).decode()}"
        budget -= len(uri)
        if budget < 0:
            break
        uri_of[row] = uri
    return uri_of


def render(template: str, **values: object) -> str:
    """Return a page; values are escaped, undefined ones are errors."""
    return _environment().get_template(template).render(values).lstrip()


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("shoal.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.policies["json.dumps_kwargs"] = {
        "allow_nan": False,
        "ensure_ascii": False,
        "separators": (",", ":"),
    }
    made.filters |= {use.__name__: use for use in (count, duration, number, percent, shown)}
    return made


def read_templates(*names: str) -> str:
    """Return style sheets or scripts joined into one."""
    folder = files("shoal.report") / "templates"
    return "".join((folder / name).read_text("utf-8") for name in names)

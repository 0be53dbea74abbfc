"""One record as one HTML page that opens offline: everything is inlined, and a policy in the page
forbids every request.
"""

import base64
import hashlib
import shlex
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from brimful.show.charts import WIDTHS
from brimful.show.headline import headline
from brimful.show.section import Figure
from brimful.show.sections import cut_off, sections
from brimful.show.text import when
from brimful.units import printable
from brimful.values import Record


def render_page(record: Record) -> str:
    """The page of `record` as text, to be written as UTF-8. It escapes what comes from outside
    (commands, names, messages).
    """
    said = headline(record)
    return render_template(
        "page.html.j2",
        record=record,
        program=f"brimful {record.opened.verb}",
        headline=said.sentence,
        tone=said.tone,
        typed=shlex.join(record.opened.brimful_argv),
        cut_off=[sentence for section in cut_off(record) for sentence in section.sentences],
        sections=sections(record),
        started=when(record.opened.started_unix_s) if record.folder else "",
    )


def render_frame(record: Record) -> str:
    """The page of `record` as a part of another one, such as a notebook: in a frame, which keeps
    the styles of both apart. The frame fetches nothing, and is as high as the page, to a limit.
    """
    height = "Math.min(720, this.contentDocument.documentElement.scrollHeight) + 'px'"
    style = "width: 100%; height: 720px; border: 0; resize: vertical"
    return Markup('<iframe srcdoc="{}" onload="{}" style="{}"></iframe>').format(
        render_page(record), f"this.style.height = {height}", style
    )


def render_template(template: str, **content: Any) -> str:
    """A page of any sections: base.html.j2 names the `content` that it needs."""
    script = _template_text("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri "
        "'none'; form-action 'none'"
    )
    content |= {
        "style": Markup(_template_text("page.css")),
        "script": Markup(script),
        "policy": policy,
    }
    return printable(_environment().get_template(template).render(**content))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("brimful.show"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests["address"] = _is_address
    environment.filters["kind"] = lambda section: type(section).__name__
    environment.filters["charts"] = _charts
    return environment


def _charts(figure: Figure) -> list[tuple[str, Markup]]:
    """One drawing for a wide window and one for a narrow one."""
    return [(name, Markup(figure.draw(width))) for name, width in WIDTHS]


def _is_address(text: object) -> bool:
    """Only these become links: a note from elsewhere could name any scheme."""
    return (
        isinstance(text, str)
        and text.startswith(("https://", "http://"))
        and not any(c.isspace() for c in text)
    )


def _template_text(name: str) -> str:
    return resources.files("brimful.show").joinpath("templates", name).read_text(encoding="utf-8")

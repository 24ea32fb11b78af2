"""The dashboard: a static page and its modules, which use the REST API.

The page is served without a token, because it has no data. It queries the API with the token that
the user types in. The modules of the pages of `results.report` draw its charts.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from shadowprice.results.report.inline_assets import asset
from shadowprice.service.problems import ProblemError

router = APIRouter(include_in_schema=False)

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page's content security policy: it only loads files of this service."""

CHARTS: Final = (
    "axes.mjs",
    "charts.mjs",
    "dom.mjs",
    "echarts.LICENSE",
    "echarts.min.js",
    "format.mjs",
    "heat.mjs",
    "kinds.mjs",
    "page.css",
    "tables.mjs",
)
"""Files of the report's pages that the dashboard uses."""

_TYPES: Final[Mapping[str, str]] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "LICENSE": "text/plain; charset=utf-8",
}

_SMALL_BYTES: Final = 1_000  # maximum size of a file that is never compressed


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A served file."""

    media_type: str
    body: bytes
    gzipped: bytes  # empty for small files
    tag: str  # entity tag (ETag)


@cache
def files() -> Mapping[str, StaticFile]:
    """Return all served files, by path."""
    contents: dict[str, bytes] = {}
    folder = resources.files("shadowprice.service.dashboard").joinpath("static")
    for file in folder.iterdir():
        name = "" if file.name == "index.html" else f"assets/{file.name}"
        if file.name.rpartition(".")[2] in _TYPES:
            contents[name] = file.read_bytes()
    for name in CHARTS:
        contents[f"assets/charts/{name}"] = asset(name).encode()
    contents["assets/themes.css"] = themes().encode()
    return {path: _file(path or "index.html", body) for path, body in contents.items()}


def _file(path: str, body: bytes) -> StaticFile:
    media_type = _TYPES[path.rpartition(".")[2]]
    gzipped = gzip.compress(body, 9, mtime=0) if len(body) > _SMALL_BYTES else b""
    return StaticFile(media_type, body, gzipped, f'"{hashlib.sha256(body).hexdigest()[:24]}"')


def themes() -> str:
    """Return a style sheet with the colours of the report for themes that the user chooses.

    The colours are parsed from the report's style sheet, which only follows the browser's setting.
    """
    blocks = re.findall(r":root \{(.*?)\}", asset("page.css"), re.DOTALL)
    light, dark = blocks[0], blocks[1]
    return (
        f':root[data-theme="light"] {{ color-scheme: light; {light} }}\n'
        f':root[data-theme="dark"] {{ color-scheme: dark; {dark} }}\n'
    )


@router.get("/")
async def page(request: Request) -> Response:
    """Send the page."""
    return _send_file(request, files()[""])


@router.get("/assets/{path:path}")
async def assets(path: str, request: Request) -> Response:
    """Send one of the page's files."""
    file = files().get(f"assets/{path}")
    if file is None:
        raise ProblemError("not-found", "the page has no such file")
    return _send_file(request, file)


def _send_file(request: Request, file: StaticFile) -> Response:
    """Return a file, or 304 if the browser has the current version."""
    headers = {
        "Cache-Control": "no-cache",  # cached but revalidated, so that an upgrade shows at once
        "Content-Security-Policy": CONTENT_SECURITY_POLICY,
        "Cross-Origin-Opener-Policy": "same-origin",
        "ETag": file.tag,
        "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
        "Vary": "Accept-Encoding",
    }
    cached_tags = request.headers.get("if-none-match", "")
    if file.tag in {tag.strip().removeprefix("W/") for tag in cached_tags.split(",")}:
        return Response(status_code=304, headers=headers)
    body = file.body
    if file.gzipped and accepts_gzip(request.headers.get("accept-encoding", "")):
        body, headers["Content-Encoding"] = file.gzipped, "gzip"
    return Response(body, headers=headers, media_type=file.media_type)


def accepts_gzip(header: str) -> bool:
    """Return whether an Accept-Encoding header allows gzip; a quality of 0 forbids it."""
    qualities = {}
    for part in header.lower().split(","):
        coding, _, parameter = part.partition(";")
        qualities[coding.strip()] = parameter.replace(" ", "")
    quality = qualities.get("gzip", qualities.get("*", "q=0"))
    return re.fullmatch(r"q=0(\.0*)?", quality) is None

"""Routes of uploads: archives with the files of jobs, by digest."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import Path, Request, Response

from shadowprice import rest
from shadowprice.core.wording import quote_for_display
from shadowprice.service.api.requests import (
    CallerDep,
    ServiceDep,
    api_router,
    problems,
    read_chunk,
    requested_tenant,
)
from shadowprice.service.clock import to_datetime
from shadowprice.service.problems import RETRY_AFTER, ProblemError
from shadowprice.service.uploads import IncomingUpload, StoredUpload
from shadowprice.uploads.archive import MEDIA_TYPE

router = api_router("/v1", "uploads")

WRITE_BYTES: Final = 1 << 20  # bytes that are written together, in a thread
IDLE_TIMEOUT_SECONDS: Final = 60.0  # maximum pause within a body, because a client may hang
MAX_SECONDS: Final = 3_600.0  # maximum duration of a body, because a client may send it slowly
TOKEN_CHECK_SECONDS: Final = 2.0  # between two checks of the caller's token while a body arrives

Digest = Annotated[
    str, Path(pattern="^[0-9a-f]{64}$", description="SHA-256 of the archive, in hexadecimal")
]


def _resource(upload: StoredUpload, tenant: str | None) -> rest.Upload:
    used = to_datetime(upload.used)
    return rest.Upload(digest=upload.digest, tenant=tenant, bytes=upload.size, used=used)


@router.get("/uploads/{digest}", responses=problems(403, 404, 409))
async def get_upload(
    digest: Digest, service: ServiceDep, caller: CallerDep, tenant: str | None = None
) -> rest.Upload:
    """Return an upload of the caller's tenant; an operator may name a `tenant`.

    The request counts as a use, so the upload is kept for at least another hour.
    """
    owner = requested_tenant(caller, tenant)
    upload = service.uploads.use(owner, digest, service.require_writer().clock.now())
    if upload is None:
        raise ProblemError("not-found", f"unknown upload {quote_for_display(digest)}")
    return _resource(upload, owner)


@router.put(
    "/uploads/{digest}",
    responses={201: {"model": rest.Upload}, **problems(400, 403, 409, 413, 415, 422)},
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def put_upload(
    digest: Digest,
    request: Request,
    response: Response,
    service: ServiceDep,
    caller: CallerDep,
    tenant: str | None = None,
) -> rest.Upload:
    """Store an archive: a POSIX tar file without compression, whose digest is in the path.

    The archive has directories, files, and symbolic links within it. After 201 it is on disk. If it
    was stored before (200), the body isn't read. The body may pause for a minute and take an hour,
    as long as the token is valid.
    """
    owner, uploads = requested_tenant(caller, tenant), service.uploads
    now = service.require_writer().clock.now()
    kind = request.headers.get("content-type", MEDIA_TYPE).partition(";")[0].strip().lower()
    if kind != MEDIA_TYPE:
        raise ProblemError(
            "unsupported-media-type", f"expected {MEDIA_TYPE}, got {quote_for_display(kind)}"
        )
    present = uploads.use(owner, digest, now)
    if present is not None:
        return _resource(present, owner)

    def check_token() -> None:
        header = request.headers.get("authorization")
        service.tokens.caller(header, service.require_writer().clock.now())

    with uploads.receive(owner, digest, now, limited=caller.scope is not None) as incoming:
        await _receive(request, incoming, check_token)
        await asyncio.to_thread(incoming.complete, service.require_writer().clock.now())
    stored = uploads.find(owner, digest)
    if stored is None:
        raise ProblemError("storage", "the upload was removed", headers=RETRY_AFTER)
    response.status_code = 201
    return _resource(stored, owner)


async def _receive(
    request: Request, incoming: IncomingUpload, check_token: Callable[[], None]
) -> None:
    """Write the body of a request, in large pieces.

    Raise `ProblemError` if a limit is exceeded, no data come for `IDLE_TIMEOUT_SECONDS`, or the
    client disconnects. ``check_token`` raises it if the caller's token is no longer valid.
    """
    declared = request.headers.get("content-length", "")
    incoming.expect(int(declared) if declared.isdigit() else 0)
    pending: list[bytes] = []
    size = 0
    stream: Any = aiter(request.stream())
    checked = started = time.monotonic()
    while True:
        chunk = await read_chunk(stream, IDLE_TIMEOUT_SECONDS, started, MAX_SECONDS)
        if chunk is None or time.monotonic() - checked >= TOKEN_CHECK_SECONDS:
            check_token()
            checked = time.monotonic()
        if chunk is not None and not declared.isdigit():
            incoming.expect(len(chunk))
        if chunk:
            pending.append(chunk)
            size += len(chunk)
        if pending and (chunk is None or size >= WRITE_BYTES):
            await asyncio.to_thread(incoming.write, b"".join(pending))
            pending, size = [], 0
        if chunk is None:
            return

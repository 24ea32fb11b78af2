"""Uploads: archives of jobs' files, by tenant and digest, as files of the data directory.

    DIR/TENANT/DIGEST.tar    a complete upload; TENANT is a digest of the tenant's name
    DIR/TENANT/*.part        an upload that is arriving; the next start removes it

An upload gets its name after its content is verified and on disk, so every named file is complete.
Its modification time is the time of its last use. A tenant finds only uploads in its own folder.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final

from shadowprice.core.errors import Fault
from shadowprice.core.job_keys import key_digest
from shadowprice.executors.generations.disk import make_private, sync_directory
from shadowprice.service.clock import SECOND
from shadowprice.service.problems import RETRY_AFTER, ProblemError, tenant_limit_problem
from shadowprice.uploads.archive import read_entries

FOLDER: Final = "uploads"  # name of the folder in a data directory
KEEP_SECONDS: Final = 7 * 86_400  # retention of an unused upload, since its last use

MIN_KEEP_SECONDS: Final = 3_600
"""Minimum retention of an unused upload, if the tenant needs its space for another upload.

Above zero, because a job is submitted some time after its upload.
"""

MIN_ACCOUNTED_BYTES: Final = 64 << 10
"""Minimum bytes that an upload counts, so that the tenant's limit also limits their number."""
_SUFFIX: Final = ".tar"
_PARTIAL: Final = ".part"
_OWNER: Final = re.compile("[0-9a-f]{32}")  # name of a tenant's folder
_COMPLETE: Final = re.compile(rf"[0-9a-f]{{64}}{re.escape(_SUFFIX)}")


@dataclass(frozen=True, slots=True)
class StoredUpload:
    """A complete upload; ``used`` is its last use in nanoseconds since 1970."""

    digest: str
    path: Path
    size: int
    used: int


class UploadStore:
    """The uploads of all tenants in a folder. Only the event loop's thread changes it.

    ``max_bytes`` limits each upload, and ``max_tenant_bytes`` all uploads of a tenant, including
    arriving ones. Each upload counts for at least `MIN_ACCOUNTED_BYTES`. ``in_use`` returns the
    tenant and digest of every upload that an open job uses.
    """

    def __init__(
        self,
        folder: Path,
        max_bytes: int,
        max_tenant_bytes: int,
        in_use: Callable[[], Iterable[tuple[str | None, str]]] = tuple,
    ) -> None:
        self.max_bytes = max_bytes
        self._in_use = in_use
        self._folder = folder
        self._max_tenant_bytes = max_tenant_bytes
        # By name of the tenant's folder, and by digest:
        self._stored: defaultdict[str, dict[str, StoredUpload]] = defaultdict(dict)
        self._sizes: Counter[str] = Counter()  # counted bytes of stored uploads, by folder
        self._arriving: Counter[str] = Counter()  # reserved bytes of arriving uploads, by folder

    def open(self) -> None:
        """Find complete uploads, and remove partial uploads; ignore files with other names."""
        self._stored.clear()
        self._sizes.clear()
        make_private(self._folder)
        for owner in self._folder.iterdir():
            if _OWNER.fullmatch(owner.name) and stat.S_ISDIR(owner.lstat().st_mode):
                self._open_owner(owner)

    def _open_owner(self, folder: Path) -> None:
        for file in folder.iterdir():
            status = file.lstat()
            if not stat.S_ISREG(status.st_mode):
                continue
            if file.suffix == _PARTIAL:
                file.unlink()
            elif _COMPLETE.fullmatch(file.name):
                upload = StoredUpload(file.stem, file, status.st_size, status.st_mtime_ns)
                self._add(folder.name, upload)

    def _add(self, owner: str, upload: StoredUpload) -> None:
        self._remove(owner, upload.digest)
        self._stored[owner][upload.digest] = upload
        self._sizes[owner] += _counted_bytes(upload.size)

    def _remove(self, owner: str, digest: str) -> None:
        upload = self._stored[owner].pop(digest, None)
        if upload is not None:
            self._sizes[owner] -= _counted_bytes(upload.size)

    def path(self, tenant: str | None, digest: str) -> Path:
        """Return the path of a tenant's upload with a digest, which needn't exist."""
        return upload_path(self._folder, tenant, digest)

    def find(self, tenant: str | None, digest: str) -> StoredUpload | None:
        """Return a tenant's upload with a digest; None if there is none."""
        return self._stored.get(_owner(tenant), {}).get(digest)

    def use(self, tenant: str | None, digest: str, now: int) -> StoredUpload | None:
        """Record a use of an upload, and return it; None if there is none."""
        upload = self.find(tenant, digest)
        if upload is None:
            return None
        try:
            os.utime(upload.path, ns=(now, now))
        except FileNotFoundError:  # removed by another program
            self._remove(_owner(tenant), digest)
            return None
        except OSError as error:
            raise _storage_problem(error) from error
        upload = self._stored[_owner(tenant)][digest] = replace(upload, used=now)
        return upload

    @contextmanager
    def receive(
        self, tenant: str | None, digest: str, now: int, *, limited: bool
    ) -> Iterator[IncomingUpload]:
        """Store an upload during a block, within the tenant's limit if ``limited``."""
        owner = _owner(tenant)
        reserved = 0

        def reserve(size: int) -> None:
            nonlocal reserved
            if limited:
                self._make_room(owner, size, now)
            self._arriving[owner] += size
            reserved += size

        partial: Path | None = None
        try:
            make_private(self._folder / owner)
            descriptor, name = tempfile.mkstemp(suffix=_PARTIAL, dir=self._folder / owner)
            partial = Path(name)
            with os.fdopen(descriptor, "r+b") as file:
                incoming = IncomingUpload(file, partial, digest, self.max_bytes, reserve)
                yield incoming
                if incoming.stored is not None:
                    partial = None  # it was renamed
                    self._add(owner, incoming.stored)
        except OSError as error:
            raise _storage_problem(error) from error
        finally:
            self._arriving[owner] -= reserved
            if partial is not None:
                partial.unlink(missing_ok=True)

    def _make_room(self, owner: str, size: int, now: int) -> None:
        """Remove a tenant's unused uploads, oldest first, until ``size`` bytes fit, or raise."""
        limit = self._max_tenant_bytes
        present = self._sizes[owner] + self._arriving[owner]
        excess = present + size - limit
        if excess <= 0:
            return
        used = self._used_uploads()
        unused = [
            upload
            for digest, upload in self._stored[owner].items()
            if now - upload.used > MIN_KEEP_SECONDS * SECOND and (owner, digest) not in used
        ]
        if sum(_counted_bytes(upload.size) for upload in unused) < excess:
            detail = (
                f"uploads of {present:,} bytes and {size:,} new bytes exceed the limit of "
                f"{limit:,} bytes of a tenant"
            )
            hint = (
                "wait until jobs that use uploads end, send fewer files, or ask the operator for "
                "serve --max-uploads"
            )
            raise tenant_limit_problem(detail, hint)
        for upload in sorted(unused, key=lambda upload: upload.used):
            if excess <= 0:
                return
            upload.path.unlink(missing_ok=True)
            self._remove(owner, upload.digest)
            excess -= _counted_bytes(upload.size)

    def _used_uploads(self) -> set[tuple[str, str]]:
        return {(_owner(tenant), digest) for tenant, digest in self._in_use()}

    def purge_unused(self, now: int) -> None:
        """Remove uploads past `KEEP_SECONDS`; raise the first OSError after the last upload."""
        in_use = self._used_uploads()
        error: OSError | None = None
        stored = [
            (owner, digest, upload)
            for owner, uploads in self._stored.items()
            for digest, upload in uploads.items()
        ]
        for owner, digest, upload in stored:
            try:
                if (owner, digest) in in_use:
                    os.utime(upload.path, ns=(now, now))
                    self._stored[owner][digest] = replace(upload, used=now)
                elif now - upload.used > KEEP_SECONDS * SECOND:
                    upload.path.unlink()
                    self._remove(owner, digest)
            except FileNotFoundError:  # removed by another program
                self._remove(owner, digest)
            except OSError as os_error:
                error = error or os_error
        if error is not None:
            raise error


def upload_path(folder: Path, tenant: str | None, digest: str) -> Path:
    """Return the path of a tenant's upload in a folder of uploads."""
    return folder / _owner(tenant) / f"{digest}{_SUFFIX}"


def is_upload_name(path: Path) -> bool:
    """Return whether a path is named like a complete upload."""
    return bool(_OWNER.fullmatch(path.parent.name) and _COMPLETE.fullmatch(path.name))


def _counted_bytes(size: int) -> int:
    """Return the bytes of an upload that count for its tenant's limit."""
    return max(size, MIN_ACCOUNTED_BYTES)


def _owner(tenant: str | None) -> str:
    """Return the name of a tenant's folder."""
    return key_digest(tenant or "")  # no tenant has an empty name


def _storage_problem(error: OSError) -> ProblemError:
    detail = f"uploads can't be stored: {error.strerror or error}"
    return ProblemError("storage", detail, headers=RETRY_AFTER)


class IncomingUpload:
    """An arriving upload. `write` and `complete` may be called in another thread."""

    def __init__(
        self,
        file: BinaryIO,
        partial: Path,
        digest: str,
        max_bytes: int,
        reserve: Callable[[int], None],
    ) -> None:
        self.stored: StoredUpload | None = None
        self._file, self._partial = file, partial
        self._digest, self._actual = digest, hashlib.sha256()
        self._max_bytes, self._reserve = max_bytes, reserve
        self._expected = 0  # bytes announced by `expect`
        self._reserved = 0  # counted bytes that are reserved

    def expect(self, size: int) -> None:
        """Reserve bytes before they are written; raise `ProblemError` above a limit."""
        self._expected += size
        if self._expected > self._max_bytes:
            detail = f"the upload exceeds the limit of {self._max_bytes:,} bytes"
            hint = "send fewer files, or ask the operator for serve --max-upload-size"
            raise ProblemError("too-large", detail, faults=[Fault("body", detail, hint)])
        accounted = _counted_bytes(self._expected)
        if accounted > self._reserved:
            self._reserve(accounted - self._reserved)
            self._reserved = accounted

    def write(self, content: bytes) -> None:
        """Write a piece; raise OSError if that fails."""
        self._file.write(content)
        self._actual.update(content)

    def complete(self, now: int) -> None:
        """Verify the upload, and store it durably under its name.

        Raise `ProblemError` if its digest differs, and `InputError` if the archive is invalid.
        """
        actual = self._actual.hexdigest()
        if actual != self._digest:
            detail = f"expected content with the digest in the path, got {actual}"
            raise ProblemError("input", detail, faults=[Fault("body", detail)])
        self._file.flush()
        for _ in read_entries(self._file):  # raises if the archive is invalid
            pass
        os.utime(self._file.fileno(), ns=(now, now))
        os.fsync(self._file.fileno())
        target = self._partial.with_name(f"{self._digest}{_SUFFIX}")
        size = os.fstat(self._file.fileno()).st_size
        self._partial.rename(target)
        sync_directory(target.parent)
        sync_directory(target.parent.parent)
        self.stored = StoredUpload(self._digest, target, size, now)

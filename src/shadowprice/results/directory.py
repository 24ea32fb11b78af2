"""A directory that appears whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from shadowprice.core.errors import Fault, InputError, ShadowpriceError
from shadowprice.results.target import make_missing, remove_made, umask

_NEW = "give --out a new directory"


def check_directory(out: Path, ours: Callable[[Path], bool]) -> None:
    """Refuse a place that no `PendingDirectory` could fill, before anything is read or computed.

    Parameters
    ----------
    out : Path
        Where it would be.
    ours : callable
        Whether an existing directory is an earlier result that may be replaced.

    Raises
    ------
    InputError
        If the place is taken by something else or cannot be written.
    """
    with PendingDirectory(out, ours):
        pass


class PendingDirectory:
    """A directory filled beside its final place and moved there by one rename.

    An earlier result at that place is replaced; anything else there is never touched: no link, no
    device, no directory with a file that no earlier run of this kind wrote.

    Parameters
    ----------
    out : Path
        Where it will be.
    ours : callable
        Whether an existing directory is an earlier result that may be replaced.

    Attributes
    ----------
    path : Path
        Where to write; on leaving the context it is removed unless `commit` was called.

    Raises
    ------
    InputError
        If the place is taken by something else or cannot be written.
    """

    def __init__(self, out: Path, ours: Callable[[Path], bool]) -> None:
        self._ours = ours
        self._shown = out
        self._made: list[Path] = []
        try:
            self.out = out.absolute()
            self._check()
            make_missing(self.out.parent, self._made)
            self.path = Path(
                tempfile.mkdtemp(prefix=".shadowprice.", suffix=".unfinished", dir=self.out.parent)
            )
        except OSError as error:
            remove_made(self._made)
            reason = error.strerror or str(error)
            raise InputError(Fault(str(out), f"cannot be written: {reason}")) from error
        self.path.chmod(0o777 & ~umask())

    def __enter__(self) -> PendingDirectory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.path.exists():
            shutil.rmtree(self.path, ignore_errors=True)
            remove_made(self._made)

    def commit(self) -> None:
        """Move the directory to its place.

        Raises
        ------
        ShadowpriceError
            If something else took the place meanwhile: the results are then beside it.
        """
        try:
            self._check()
        except InputError as error:
            beside = self._beside()
            self.path.rename(beside)
            raise ShadowpriceError(f"{error}; the results are in {beside}") from error
        if not self.out.exists():
            self.path.rename(self.out)
            return
        old = self.path.with_suffix(".replaced")
        self.out.rename(old)
        try:
            self.path.rename(self.out)
        except BaseException:
            old.rename(self.out)
            raise
        shutil.rmtree(old, ignore_errors=True)

    def _check(self) -> None:
        out = self.out
        if out.is_symlink():
            raise InputError(Fault(str(self._shown), "is a link", _NEW))
        if not out.exists():
            if not out.name:
                raise InputError(Fault(str(self._shown), "is no directory of its own", _NEW))
            return
        if not out.is_dir():
            raise InputError(Fault(str(self._shown), "is a file", _NEW))
        if out.resolve() in {Path.cwd(), *Path.cwd().parents}:
            raise InputError(Fault(str(self._shown), "is the folder that this runs in", _NEW))
        if any(out.iterdir()) and not self._ours(out):
            message = "holds files that no earlier run of this kind wrote"
            raise InputError(Fault(str(self._shown), message, _NEW))

    def _beside(self) -> Path:
        number = 2
        while (place := self.out.with_name(f"{self.out.name}-{number}")).exists():
            number += 1
        return place

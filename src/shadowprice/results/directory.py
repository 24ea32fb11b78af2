"""A directory that appears whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from shadowprice.core.errors import Fault, InputError


class PendingDirectory:
    """A directory filled beside its final place and moved there by one rename.

    An earlier result at that place is replaced; anything else there is never touched.

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
        self.out = out
        if out.exists():
            if not out.is_dir():
                raise InputError(Fault(str(out), "is a file", "give --out a new directory"))
            if any(out.iterdir()) and not ours(out):
                message = "holds files that no earlier run wrote"
                raise InputError(Fault(str(out), message, "give --out a new directory"))
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            self.path = Path(
                tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".unfinished", dir=out.parent)
            )
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputError(Fault(str(out), f"cannot be written: {reason}")) from error
        self.path.chmod(0o777 & ~_umask())

    def __enter__(self) -> PendingDirectory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.path.exists():
            shutil.rmtree(self.path)

    def commit(self) -> None:
        """Move the directory to its place."""
        if self.out.exists():
            old = self.path.with_suffix(".replaced")
            self.out.rename(old)
            self.path.rename(self.out)
            shutil.rmtree(old)
        else:
            self.path.rename(self.out)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

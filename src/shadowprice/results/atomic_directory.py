"""Atomic creation of an output directory."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from shadowprice.core.errors import Fault, InputError, ShadowpriceError
from shadowprice.results.output_paths import create_directories, remove_created_directories, umask

_NEW = "give --out a new directory"
_INSIDE = "give --out a new directory inside it"  # a mount point can't be renamed or replaced


def check_directory(out: Path, is_replaceable: Callable[[Path], bool]) -> None:
    """Check that an `AtomicDirectory` can be created, before anything is read or computed."""
    with AtomicDirectory(out, is_replaceable):
        pass


class AtomicDirectory:
    """Output directory that is filled beside its final path and then renamed to it.

    An earlier result at that path, as ``is_replaceable`` decides, is replaced. Anything else is
    refused, such as links, devices, and directories with other files. ``path`` is the temporary
    directory to write to. Leaving the context removes it unless `commit` was called.
    """

    def __init__(self, out: Path, is_replaceable: Callable[[Path], bool]) -> None:
        self._is_replaceable = is_replaceable
        self._given_path = out
        self._created_parents: list[Path] = []
        try:
            self.out = out.absolute()
            self._check()
            create_directories(self.out.parent, self._created_parents)
            self.path = Path(
                tempfile.mkdtemp(prefix=".shadowprice.", suffix=".unfinished", dir=self.out.parent)
            )
        except OSError as error:
            remove_created_directories(self._created_parents)
            raise _write_error(out, error) from error
        self.path.chmod(0o777 & ~umask())

    def __enter__(self) -> AtomicDirectory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.path.exists():
            shutil.rmtree(self.path, ignore_errors=True)
            remove_created_directories(self._created_parents)

    def commit(self) -> None:
        """Move the directory to its final path.

        If the path has become occupied or can't be replaced, keep the results in a numbered
        directory beside it and raise `ShadowpriceError`.
        """
        try:
            self._check()
            self._move()
        except (InputError, OSError) as error:
            problem = _write_error(self._given_path, error) if isinstance(error, OSError) else error
            alternative = self._unused_sibling()
            self.path.rename(alternative)
            raise ShadowpriceError(f"{problem}; the results are in {alternative}") from error

    def _move(self) -> None:
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
            raise InputError(Fault(str(self._given_path), "is a symbolic link", _NEW))
        if not out.exists():
            if not out.name:
                raise InputError(Fault(str(self._given_path), "is the root directory", _NEW))
            return
        if not out.is_dir():
            raise InputError(Fault(str(self._given_path), "is not a directory", _NEW))
        if out.resolve() in {Path.cwd(), *Path.cwd().parents}:
            raise InputError(Fault(str(self._given_path), "contains the current directory", _NEW))
        if out.is_mount():
            raise InputError(Fault(str(self._given_path), "is a mount point", _INSIDE))
        if any(out.iterdir()) and not self._is_replaceable(out):
            message = "holds files that no earlier run of this kind wrote"
            raise InputError(Fault(str(self._given_path), message, _NEW))

    def _unused_sibling(self) -> Path:
        number = 2
        while (candidate := self.out.with_name(f"{self.out.name}-{number}")).exists():
            number += 1
        return candidate


def _write_error(path: Path, error: OSError) -> InputError:
    return InputError(Fault(str(path), f"cannot be written: {error.strerror or error}"))

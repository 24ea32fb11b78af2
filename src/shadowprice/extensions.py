"""Extensions: policies, trace readers and executors of a user.

An extension is an object in the user's own file (``./file.py:NAME``) or in an installed package. A
file is read once. This content runs in every process, also on a Ray node without the file, and its
digest identifies the version.
"""

from __future__ import annotations

import hashlib
import importlib
import re
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from urllib.parse import quote, unquote

from shadowprice.core.errors import Fault, InputError
from shadowprice.core.paths import expand_home
from shadowprice.core.wording import hint_for_unknown, quote_for_display

POLICIES: Final = "shadowprice.policies"
TRACES: Final = "shadowprice.traces"
EXECUTORS: Final = "shadowprice.executors"
"""Entry point groups in which installed packages declare extensions of each kind."""

_REFERENCE: Final = re.compile(r"(?P<file>.+?\.py):(?P<name>[^\W\d]\w*)")
_EXPECTED: Final = "write FILE.py:NAME, such as ./policy.py:FirstFit"


def is_file_reference(text: str) -> bool:
    """Return whether a text refers to a file, even if its form is wrong, and isn't a name."""
    return "/" in text or text.partition(":")[0].endswith(".py")


def split_path(text: str) -> tuple[str, str] | None:
    """Split ``FILE.py:NAME:REST`` into ``FILE.py:NAME`` and ``REST``; None for another form.

    The file's name ends at the first ``.py:``. ``FILE`` and ``REST`` may contain colons.
    """
    match = _REFERENCE.match(text)
    if match is None or text[match.end() : match.end() + 1] != ":":
        return None
    return match[0], text[match.end() + 1 :]


@dataclass(frozen=True, slots=True)
class FileExtension:
    """An object of a Python file that belongs to no installed package."""

    path: str  # absolute path of the file
    name: str  # name of the object in the file
    source: bytes = field(repr=False)  # content of the file when it was read

    @classmethod
    def read(cls, reference: str, location: str) -> FileExtension:
        """Read the file of a reference, without executing it.

        The path is percent-decoded: ``%2C`` is a comma, which would separate policies in a list.
        """
        match = _REFERENCE.fullmatch(reference)
        if match is None:
            message = f"expected a name after the file, got {quote_for_display(reference)}"
            raise InputError(Fault(location, message, _EXPECTED))
        path = expand_home(unquote(match["file"]))
        try:
            source = path.read_bytes()
        except (OSError, ValueError) as error:  # ValueError: a null character
            reason = (getattr(error, "strerror", None) or "can't be read").lower()
            raise InputError(Fault(f"{location} {path}", reason, _EXPECTED)) from error
        return cls(str(path.absolute()), match["name"], source)

    @property
    def label(self) -> str:
        """Short name for tables and folders, such as ``policy.FirstFit``."""
        return f"{Path(self.path).stem}.{self.name}"

    @property
    def reference(self) -> str:
        """The reference that `read` understands, from any working directory."""
        return f"{quote(self.path, safe='/ ')}:{self.name}"

    @property
    def sha256(self) -> str:
        """Digest of the source."""
        return hashlib.sha256(self.source).hexdigest()

    def load(self) -> Any:
        """Execute the file unless this process has done so, and return the object.

        The file is a module of its own: its folder isn't on the import path. Raises `InputError` if
        the file raises, or has no such name.
        """
        namespace = vars(self._module())
        if self.name not in namespace:
            names = [name for name in namespace if not name.startswith("_")]
            hint = hint_for_unknown(self.name, names, "name a class or function of the file")
            raise InputError(Fault(self.path, f"has no name {quote_for_display(self.name)}", hint))
        return namespace[self.name]

    def _module(self) -> ModuleType:
        # Pickled objects find their class by the module's name. So each version of a file has its
        # own name, which is the same in every process.
        digest = hashlib.sha256(self.path.encode() + b"\0" + self.source).hexdigest()[:16]
        stem = re.sub(r"\W", "_", Path(self.path).stem)
        name = f"shadowprice_file_{stem}_{digest}"
        if name in sys.modules:
            return sys.modules[name]
        module = ModuleType(name)
        module.__file__ = self.path
        sys.modules[name] = module  # during execution, dataclasses look up their module
        _files.add(self.path)
        try:
            exec(compile(self.source, self.path, "exec", dont_inherit=True), vars(module))
        except BaseException as error:
            del sys.modules[name]  # also after Ctrl-C: the module is incomplete
            if not isinstance(error, Exception | SystemExit):
                raise
            raise InputError(_failure(self.path, error)) from error
        return module

    def written_to(self, folder: Path) -> FileExtension:
        """Write the source into a folder; return the extension in the copy."""
        copy = folder / Path(self.path).name
        copy.write_bytes(self.source)
        return FileExtension(str(copy.absolute()), self.name, self.source)

    def record(self) -> dict[str, object]:
        """Return where the object comes from, as ``run.json`` records it."""
        return {"file": self.path, "object": self.name, "sha256": self.sha256}


@dataclass(frozen=True, slots=True)
class InstalledExtension:
    """An entry point of an installed distribution."""

    group: str
    name: str
    value: str  # ``package.module:NAME``
    distribution: str
    version: str
    rival: str = ""  # another distribution that declares the same name

    def load(self) -> Any:
        """Import the module and return the object.

        Raises `InputError` if this fails, or if two distributions declare the name.
        """
        location = f"{self.group}: {self.name}"
        if self.rival:
            message = f"declared by {self.distribution} and by {self.rival}"
            raise InputError(Fault(location, message, "uninstall one of them"))
        point = metadata.EntryPoint(self.name, self.value, self.group)
        try:
            return point.load()
        except (Exception, SystemExit) as error:
            message = f"can't be loaded from {self.value}: {type(error).__name__}: {error}"
            hint = f"reinstall or fix {self.distribution}; --debug shows the traceback"
            raise InputError(Fault(location, message, hint)) from error

    @property
    def sha256(self) -> str:
        """Digest of the module's file; empty for a module without a file."""
        module = importlib.import_module(self.value.partition(":")[0])
        path = getattr(module, "__file__", None)
        return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else ""

    def record(self) -> dict[str, object]:
        """Return where the object comes from, as ``run.json`` records it."""
        return {
            "distribution": self.distribution,
            "version": self.version,
            "object": self.value,
            "sha256": self.sha256,
        }


Extension = FileExtension | InstalledExtension
_files: set[str] = set()  # files executed in this process


@cache
def installed_extensions(group: str) -> Mapping[str, InstalledExtension]:
    """Return the entry points of a group by name, without importing them."""
    extensions: dict[str, InstalledExtension] = {}
    for point in sorted(metadata.entry_points(group=group), key=lambda point: point.name):
        distribution = point.dist
        name, version = (distribution.name, distribution.version) if distribution else ("", "")
        existing = extensions.get(point.name)
        if existing is None:
            extensions[point.name] = InstalledExtension(
                group, point.name, point.value, name, version
            )
        elif existing.distribution != name:
            extensions[point.name] = InstalledExtension(
                group, point.name, existing.value, existing.distribution, existing.version, name
            )
    return extensions


def parse_summary(extension: object) -> tuple[str, str]:
    """Return the first paragraph of an object's docstring, and the other paragraphs."""
    text = (getattr(extension, "__doc__", None) or "").strip()
    first, _, rest = text.partition("\n\n")
    paragraphs = (" ".join(part.split()) for part in rest.split("\n\n"))
    return " ".join(first.split()), "\n\n".join(filter(None, paragraphs))


def file_failure(error: BaseException) -> Fault | None:
    """Return the diagnostic of an exception that the code of a file extension raised, else None."""
    frames = traceback.extract_tb(error.__traceback__)
    path = next((frame.filename for frame in reversed(frames) if frame.filename in _files), None)
    return None if path is None else _failure(path, error)


def _failure(path: str, error: BaseException) -> Fault:
    """Return the diagnostic of an exception that a file raised, at the line that raised it."""
    text = " ".join(str(error).split())
    hint = "fix the file; --debug shows the traceback"
    if isinstance(error, SyntaxError):
        line, text = error.lineno, error.msg
    else:
        frames = traceback.extract_tb(error.__traceback__)
        line = next((f.lineno for f in reversed(frames) if f.filename == path), None)
    if isinstance(error, ImportError):
        hint = "install the imported package; a file can't import other files of its folder"
    location = path if line is None else f"{path}: line {line}"
    return Fault(location, f"{type(error).__name__}: {text}".rstrip(": "), hint)

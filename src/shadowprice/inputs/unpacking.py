"""Bytes of files, decompressed if they are packed, and limited before they are in memory."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import shlex
import sys
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import IO, Any, Final, cast

from shadowprice.core import bounds
from shadowprice.core.bounds import InputLimit
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import closest_match, quote_for_display

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MIN_EXPANSION_LIMIT_BYTES: Final = 64 << 20
"""Decompressed bytes that are allowed for any packed file, however small."""

BLOCK_BYTES: Final = 1 << 16  # default size of a block, in bytes

_BZIP2_MARKS: Final = (b"1AY&SY", b"\x17rE8P\x90")
"""Beginnings of a block, and of the end of a stream without blocks."""

MAX_DECOMPRESSOR_BYTES: Final = 256 << 20
"""Maximum memory of a decompressor of xz or zstd: the file states how much it needs."""

_MAGIC: Final = (
    (b"\x1f\x8b", "gzip"),
    (b"\xfd7zXZ\0", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    # pzstd begins with a frame that is skipped.
    *((bytes([number]) + b"\x2a\x4d\x18", "zstd") for number in range(0x50, 0x60)),
    (b"\x5d\0\0", "lzma"),
    *((mark, "zip") for mark in (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08PK")),
    *((b"BZh%d%s" % (level, mark), "bzip2") for level in range(1, 10) for mark in _BZIP2_MARKS),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"Rar!\x1a\x07", "rar"),
    (b"LZIP\x01", "lzip"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"\x1f\x9d", "compress"),
)
"""First bytes of packed files, and their format."""

_MAX_DIRECTORY_BYTES: Final = 1 << 20
"""Maximum size of a zip file's directory, because all of it is read at once."""
_ZIP_END_MARK: Final = b"PK\x05\x06"
_ZIP_END_BYTES: Final = 22
"""Size of the record at the end of a zip file, without its comment."""
_ZIP_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)
"""Methods that need little memory, whatever the file states."""
_MAX_LISTED: Final = 10  # files of a zip file that an error lists
_HINT: Final = "copy or download the file again"


class ZipMemberError(InputError):
    """A path doesn't name one of the files in a zip file.

    ``path`` is the zip file, and ``member`` the file in it that the hint selects, if there is one:
    ``{}`` in ``hint`` stands for what selects it.
    """

    def __init__(self, path: Path, message: str, hint: str, member: str | None) -> None:
        self.path, self.message, self.hint, self.member = path, message, hint, member
        hint = hint.format(shlex.quote(f"{path}:{member}")) if member else "give a file with rows"
        super().__init__(Fault(str(path), message, hint))


def split_member(path: Path) -> tuple[Path, str]:
    """Split ``FILE.zip:MEMBER`` into the zip file and the name of a file in it.

    Another path, such as that of a file with a colon in its name, is returned with an empty name.
    """
    text = str(path)
    if ":" in text and not os.path.lexists(path):
        for match in re.finditer(":(?=.)", text):
            archive = Path(text[: match.start()])
            if archive.is_file() and detect_compression(archive) == "zip":
                return archive, text[match.end() :]
    return path, ""


def detect_compression(path: Path) -> str:
    """Return the format that a file is compressed with by its content, or an empty string."""
    with split_member(path)[0].open("rb") as file:
        return _packed_format(file.read(10))


def _packed_format(head: bytes) -> str:
    return next((name for magic, name in _MAGIC if head.startswith(magic)), "")


def _check_packed_once(path: Path, packed: str, head: bytes) -> None:
    """Refuse a packed file whose content is packed too."""
    inner = _packed_format(head) if packed else ""
    if inner:
        message = f"is packed with {packed}, and its content with {inner}"
        raise InputError(Fault(str(path), message, "unpack it once first"))


def open_unpacked(path: Path, packed: str) -> AbstractContextManager[IO[bytes]]:
    """Open a file of a packed format for reading its content; see `detect_compression`.

    Files of several streams, empty streams, and zeros between and after streams are valid.
    """
    match packed:
        case "":
            return path.open("rb")
        case "gzip":
            return cast(AbstractContextManager[IO[bytes]], gzip.open(path))
        case "bzip2":
            return io.BufferedReader(_Streams(path, bz2.BZ2Decompressor))
        case "xz":
            return io.BufferedReader(
                _Streams(path, lzma.LZMADecompressor, memlimit=MAX_DECOMPRESSOR_BYTES)
            )
        case "zstd":
            window = zstd.DecompressionParameter.window_log_max
            limit = {int(window): MAX_DECOMPRESSOR_BYTES.bit_length() - 1}
            return io.BufferedReader(_Streams(path, zstd.ZstdDecompressor, options=limit))
        case "lzma":
            return io.BufferedReader(
                _Streams(path, lzma.LZMADecompressor, lzma.FORMAT_ALONE, MAX_DECOMPRESSOR_BYTES)
            )
        case "zip":
            return _open_member(path)
    fault = Fault(str(path), f"is packed with {packed}", "unpack it first, or pack it with gzip")
    raise InputError(fault)


def read_first_bytes(path: Path, size: int) -> bytes:
    """Return the first bytes of a file's content, fewer if it is damaged after them."""
    content = b""
    with _explained(path, lambda: 0) as explanation:
        explanation.packed = detect_compression(path)
        with open_unpacked(path, explanation.packed) as file:
            try:
                while len(content) < size:
                    block = file.read(min(1 << 12, size - len(content)))
                    if not block:
                        break
                    content += block
                _check_packed_once(path, explanation.packed, content)
            except _DAMAGE:
                if not content:
                    raise
    return content


@contextmanager
def _open_member(path: Path) -> Iterator[IO[bytes]]:
    """Open the only file in a zip file, or the named one of several."""
    archive_path, name = split_member(path)
    with archive_path.open("rb") as file:
        tail = max(0, archive_path.stat().st_size - (1 << 16) - _ZIP_END_BYTES)
        file.seek(tail)
        content = file.read()
    position = _zip_end(content)
    end = content[position : position + _ZIP_END_BYTES]
    if position < 0 or len(end) < _ZIP_END_BYTES:
        raise EOFError
    if int.from_bytes(end[12:16], "little") > _MAX_DIRECTORY_BYTES:
        message = f"the directory of the zip file exceeds {_MAX_DIRECTORY_BYTES >> 20} MiB"
        raise InputError(Fault(str(path), message, "pack one file, with gzip"))
    # Without the comment, in which zipfile would find a mark too.
    with (
        _Beginning(archive_path, tail + position + _ZIP_END_BYTES) as beginning,
        zipfile.ZipFile(beginning) as archive,
        archive.open(_find_member(archive_path, archive, name)) as member,
    ):
        yield member


def _zip_end(content: bytes) -> int:
    """Return where the record at a zip file's end begins, or -1 if there is none.

    A comment follows it, which may contain the record's mark. Of several marks, the record is the
    one whose comment reaches the end; if bytes were added after it, the last one.
    """
    last = position = content.rfind(_ZIP_END_MARK)
    while position >= 0:
        comment = position + _ZIP_END_BYTES
        if comment + int.from_bytes(content[comment - 2 : comment], "little") == len(content):
            return position
        position = content.rfind(_ZIP_END_MARK, 0, position)
    return last


def _find_member(path: Path, archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    """Return the only file in an opened zip file, or that of a name."""
    names = [entry.filename for entry in archive.infolist() if _is_content(entry)]
    if name:
        # macOS writes names in another form of Unicode than keyboards.
        wanted = unicodedata.normalize("NFC", name)
        same = [each for each in names if unicodedata.normalize("NFC", each) == wanted]
        if not same:
            message = f"the zip file has no file {quote_for_display(name)}"
            closest = closest_match(name, names)
            hint = "did you mean {}?" if closest else "select one: {}"
            raise ZipMemberError(path, message, hint, closest or next(iter(names), None))
        if len(same) > 1:
            message = f"the zip file holds {len(same)} files named {quote_for_display(name)}"
            raise InputError(Fault(str(path), message, "unzip it first"))
        names = same
    elif "[Content_Types].xml" in names:
        raise InputError(Fault(str(path), "is an Office document", "save the table as CSV"))
    if len(names) != 1:
        listed = ", ".join(quote_for_display(name) for name in names[:_MAX_LISTED])
        more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
        message = f"the zip file holds {len(names)} files: {listed}{more}" if names else "is empty"
        # The data rather than a README.
        largest = max(names, key=lambda name: archive.getinfo(name).file_size, default=None)
        raise ZipMemberError(path, message, "select one: {}", largest)
    entry = archive.getinfo(names[0])
    if entry.flag_bits & 1 or entry.compress_type not in _ZIP_METHODS:
        message = "is encrypted" if entry.flag_bits & 1 else "is packed with a rare zip method"
        raise InputError(Fault(str(path), message, "unzip it first"))
    with archive.open(entry) as content:
        head = content.read(10)
    packed = _packed_format(head)
    if packed:
        message = f"{quote_for_display(names[0])} in the zip file is packed with {packed}"
        raise InputError(Fault(str(path), message, "unzip it first"))
    return entry


class _Beginning(io.FileIO):
    """The first bytes of a file, as a file of its own."""

    def __init__(self, path: Path, size: int) -> None:
        super().__init__(path)
        self._size = size

    def seek(self, position: int, whence: int = io.SEEK_SET, /) -> int:
        if whence == io.SEEK_END:
            return super().seek(self._size + position)
        return super().seek(position, whence)

    def read(self, size: int | None = -1, /) -> bytes:
        remaining = max(0, self._size - self.tell())
        if size is None or size < 0:
            size = remaining
        return super().read(min(size, remaining)) or b""


def _is_content(entry: zipfile.ZipInfo) -> bool:
    """Return whether an entry is a file that a user put there: macOS adds files of its own."""
    path = PurePosixPath(entry.filename)
    is_added = path.parts[:1] == ("__MACOSX",) or path.name == ".DS_Store"
    is_added |= path.name.startswith("._")
    return bool(path.name) and not entry.is_dir() and not is_added


class _Streams(io.RawIOBase):
    """The content of a file of concatenated streams.

    Unlike `bz2.open` and `lzma.open`, it reads on after zeros between two streams, and refuses
    anything else there.
    """

    def __init__(self, path: Path, make: Callable[..., Any], *limits: int, **options: Any) -> None:
        self._file = path.open("rb")
        self._make = partial(make, *limits, **options)  # makes a decompressor of one stream
        self._decompressor = self._make()

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: Any, /) -> int:
        target = memoryview(buffer).cast("B")
        while True:
            data = b""
            if self._decompressor.eof:
                data = self._decompressor.unused_data.lstrip(b"\0")
                while not data and (block := self._file.read(BLOCK_BYTES)):
                    data = block.lstrip(b"\0")
                if not data:
                    return 0
                self._decompressor = self._make()
            elif self._decompressor.needs_input and not (data := self._file.read(BLOCK_BYTES)):
                raise EOFError
            content = self._decompressor.decompress(data, len(target))
            if content:
                target[: len(content)] = content
                return len(content)


def read_blocks(path: Path, largest: InputLimit, size: int = BLOCK_BYTES) -> Iterator[bytes]:
    """Yield a file's bytes in blocks of ``size``, decompressed.

    ``largest`` limits the decompressed bytes; a packed file is also limited by its own size. An
    error of a damaged or truncated stream names the line at which the stream ends.
    """
    lines = 0
    with _explained(path, lambda: lines) as explanation:
        file_path, _ = split_member(path)
        if file_path.exists() and not file_path.is_file() and not file_path.is_dir():
            fault = Fault(str(path), "is not a regular file", "write the data to a file first")
            raise InputError(fault)
        packed = explanation.packed = detect_compression(path)
        max_bytes = largest.maximum
        if packed:
            max_bytes = min(
                max_bytes,
                max(MIN_EXPANSION_LIMIT_BYTES, bounds.EXPANSION.maximum * file_path.stat().st_size),
            )
        else:
            largest.check(path.stat().st_size, str(path))
        with open_unpacked(path, packed) as file:
            total = 0
            while block := file.read(size):
                if not total:
                    _check_packed_once(path, packed, block)
                total += len(block)
                if total > max_bytes:
                    limit = largest if max_bytes == largest.maximum else bounds.EXPANSION
                    fault = Fault(str(path), f"unpacks to more than {limit.maximum:,} {limit.what}")
                    raise InputError(fault)
                new_lines = block.count(b"\n")
                # Check before yielding, because millions of blank lines fit into a small packed
                # file.
                bounds.LINES.check(lines + new_lines, str(path))
                yield block
                lines += new_lines


_DAMAGE: Final = (
    *(EOFError, OSError, zlib.error, lzma.LZMAError, zstd.ZstdError),
    *(zipfile.BadZipFile, NotImplementedError),  # of features of zip that Python lacks
)


@contextmanager
def _explained(path: Path, lines: Callable[[], int]) -> Iterator[SimpleNamespace]:
    """Raise `InputError` for errors of reading a file; ``lines`` counts those before damage."""
    explanation = SimpleNamespace(packed="")
    try:
        yield explanation
    except FileNotFoundError as error:
        raise InputError(Fault(str(path), "no such file")) from error
    except IsADirectoryError as error:
        raise InputError(Fault(str(path), "is a directory, not a file")) from error
    except EOFError as error:
        location = f"{path}: line {lines() + 1}"
        fault = Fault(location, f"truncated {explanation.packed} stream", _HINT)
        raise InputError(fault) from error
    except OSError as error:
        if explanation.packed and error.errno is None:  # of a damaged gzip or bzip2 stream
            raise _damage_error(path, explanation.packed, lines(), error) from error
        reason, hint = error.strerror or str(error), ""
        if isinstance(error, PermissionError):
            hint = f"check its permissions: ls -ld {shlex.quote(str(path))}"
        raise InputError(Fault(str(path), f"cannot be read: {reason}", hint)) from error
    except _DAMAGE as error:
        raise _damage_error(path, explanation.packed, lines(), error) from error


def _damage_error(path: Path, packed: str, lines: int, error: Exception) -> InputError:
    if any(text in str(error) for text in ("Memory usage limit", "too much memory")):
        message = f"its {packed} dictionary exceeds {MAX_DECOMPRESSOR_BYTES >> 20} MiB"
        return InputError(Fault(str(path), message, f"pack it with {packed} -9 or gzip"))
    if packed == "zstd" and "ictionary" in str(error):
        message = "needs a zstd dictionary"
        return InputError(Fault(str(path), message, "pack it without a dictionary"))
    if isinstance(error, NotImplementedError):
        return InputError(Fault(str(path), f"cannot be unpacked: {error}", "unzip it first"))
    return InputError(Fault(f"{path}: line {lines + 1}", f"corrupt {packed} stream", _HINT))

"""Readers of files that may be packed (compressed, or in a zip file).

A small packed file can expand to terabytes, so sizes are limited before the content is in memory.
"""

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
"""Start of a block of bzip2, and of the end mark of a stream without blocks."""

MAX_DECOMPRESSOR_BYTES: Final = 256 << 20
"""Maximum memory of a decompressor of xz, lzma or zstd. The file decides how much it needs."""

_MAGIC: Final = (
    (b"\x1f\x8b", "gzip"),
    (b"\xfd7zXZ\0", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    # pzstd starts files with a skippable frame.
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
_MAGIC_BYTES: Final = 10  # enough for the longest of these

_MAX_DIRECTORY_BYTES: Final = 1 << 20
"""Maximum size of a zip file's directory, because `zipfile` reads all of it at once."""
_ZIP_END_MARK: Final = b"PK\x05\x06"
_ZIP_END_BYTES: Final = 22
"""Size of the record at the end of a zip file, without its comment."""
_ZIP_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)
"""Compression methods that need little memory for any file."""
_MAX_LISTED: Final = 10  # files of a zip file that an error lists
_HINT: Final = "copy or download the file again"


class ZipMemberError(InputError):
    """A path doesn't select one of the files in a zip file.

    ``path`` is the zip file, and ``member`` the file in it that the hint proposes, None for an
    empty zip file. ``{}`` in ``hint`` stands for the text that selects ``member``.
    """

    def __init__(self, path: Path, message: str, hint: str, member: str | None) -> None:
        self.path, self.message, self.hint, self.member = path, message, hint, member
        hint = hint.format(shlex.quote(f"{path}:{member}")) if member else "give a file with rows"
        super().__init__(Fault(str(path), message, hint))


def split_member(path: Path) -> tuple[Path, str]:
    """Split ``FILE.zip:MEMBER`` into the zip file and the name of a file in it.

    Other paths, also of an existing file with a colon in its name, get an empty member name.
    """
    text = str(path)
    if ":" in text and not os.path.lexists(path):
        for match in re.finditer(":(?=.)", text):
            archive = Path(text[: match.start()])
            if archive.is_file() and detect_compression(archive) == "zip":
                return archive, text[match.end() :]
    return path, ""


def detect_compression(path: Path) -> str:
    """Return the format of a packed file from its first bytes, or an empty string."""
    with split_member(path)[0].open("rb") as file:
        return _packed_format(file.read(_MAGIC_BYTES))


def _packed_format(head: bytes) -> str:
    return next((name for magic, name in _MAGIC if head.startswith(magic)), "")


def _check_packed_once(path: Path, packed: str, head: bytes) -> None:
    """Refuse a packed file whose content is packed too."""
    inner = _packed_format(head) if packed else ""
    if inner:
        message = f"is packed with {packed}, and its content with {inner}"
        raise InputError(Fault(str(path), message, "unpack it once first"))


def open_unpacked(path: Path, packed: str) -> AbstractContextManager[IO[bytes]]:
    """Open a file to read its unpacked content; ``packed`` is its format, or empty.

    Files with several streams, empty streams, and zeros between and after streams are valid.
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
    """Return the first ``size`` bytes of a file's unpacked content, fewer if damage follows."""
    content = b""
    with _input_errors(path, lambda: 0) as state:
        state.packed = detect_compression(path)
        with open_unpacked(path, state.packed) as file:
            try:
                while len(content) < size:
                    block = file.read(min(1 << 12, size - len(content)))
                    if not block:
                        break
                    content += block
                _check_packed_once(path, state.packed, content)
            except _DAMAGE:
                if not content:
                    raise
    return content


@contextmanager
def _open_member(path: Path) -> Iterator[IO[bytes]]:
    """Open the only file in a zip file, or the file that the path names."""
    archive_path, name = split_member(path)
    with archive_path.open("rb") as file:
        # A comment of at most 2^16 - 1 bytes follows the record at the end.
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
    # Hide the comment, in which `zipfile` would also find a mark.
    with (
        _FileHead(archive_path, tail + position + _ZIP_END_BYTES) as head,
        zipfile.ZipFile(head) as archive,
        archive.open(_find_member(archive_path, archive, name)) as member,
    ):
        yield member


def _zip_end(content: bytes) -> int:
    """Return the position of the record at a zip file's end, or -1 if there is none.

    The record is followed by a comment, which may contain the record's mark. The right mark is the
    one whose comment reaches the end of the file. If there is none, because bytes were appended, it
    is the last mark.
    """
    last = position = content.rfind(_ZIP_END_MARK)
    while position >= 0:
        comment = position + _ZIP_END_BYTES
        if comment + int.from_bytes(content[comment - 2 : comment], "little") == len(content):
            return position
        position = content.rfind(_ZIP_END_MARK, 0, position)
    return last


def _find_member(path: Path, archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    """Return the entry of the only file in an opened zip file, or of the file ``name``."""
    names = [entry.filename for entry in archive.infolist() if _is_content(entry)]
    if name:
        # macOS writes names in another form of Unicode than keyboards.
        wanted = unicodedata.normalize("NFC", name)
        matches = [each for each in names if unicodedata.normalize("NFC", each) == wanted]
        if not matches:
            message = f"the zip file has no file {quote_for_display(name)}"
            closest = closest_match(name, names)
            hint = "did you mean {}?" if closest else "select one: {}"
            raise ZipMemberError(path, message, hint, closest or next(iter(names), None))
        if len(matches) > 1:
            message = f"the zip file holds {len(matches)} files named {quote_for_display(name)}"
            raise InputError(Fault(str(path), message, "unzip it first"))
        names = matches
    elif "[Content_Types].xml" in names:
        raise InputError(Fault(str(path), "is an Office document", "save the table as CSV"))
    if len(names) != 1:
        listed = ", ".join(quote_for_display(name) for name in names[:_MAX_LISTED])
        more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
        message = f"the zip file holds {len(names)} files: {listed}{more}" if names else "is empty"
        # Propose the largest file, which is the data and not a README.
        largest = max(names, key=lambda name: archive.getinfo(name).file_size, default=None)
        raise ZipMemberError(path, message, "select one: {}", largest)
    entry = archive.getinfo(names[0])
    is_encrypted = entry.flag_bits & 1
    if is_encrypted or entry.compress_type not in _ZIP_METHODS:
        message = "is encrypted" if is_encrypted else "is packed with a rare zip method"
        raise InputError(Fault(str(path), message, "unzip it first"))
    with archive.open(entry) as content:
        head = content.read(_MAGIC_BYTES)
    packed = _packed_format(head)
    if packed:
        message = f"{quote_for_display(names[0])} in the zip file is packed with {packed}"
        raise InputError(Fault(str(path), message, "unzip it first"))
    return entry


class _FileHead(io.FileIO):
    """The first ``size`` bytes of a file, as a file of its own."""

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
    """Return whether an entry is a file of the user, not a folder or a file that macOS adds."""
    path = PurePosixPath(entry.filename)
    is_added = path.parts[:1] == ("__MACOSX",) or path.name == ".DS_Store"
    is_added |= path.name.startswith("._")
    return bool(path.name) and not entry.is_dir() and not is_added


class _Streams(io.RawIOBase):
    """The unpacked content of a file of concatenated streams.

    Zeros between two streams are skipped, and other bytes there are an error. `bz2.open` and
    `lzma.open` would end at them silently.
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


def read_blocks(path: Path, limit: InputLimit, size: int = BLOCK_BYTES) -> Iterator[bytes]:
    """Yield a file's unpacked bytes in blocks of ``size``.

    ``limit`` is for the unpacked bytes. A packed file may also expand only by a limited factor. An
    error of a damaged or truncated stream names the line at which the stream ends.
    """
    lines = 0
    with _input_errors(path, lambda: lines) as state:
        file_path, _ = split_member(path)
        if file_path.exists() and not file_path.is_file() and not file_path.is_dir():
            fault = Fault(str(path), "is not a regular file", "write the data to a file first")
            raise InputError(fault)
        packed = state.packed = detect_compression(path)
        max_bytes = limit.maximum
        if packed:
            max_bytes = min(
                max_bytes,
                max(MIN_EXPANSION_LIMIT_BYTES, bounds.EXPANSION.maximum * file_path.stat().st_size),
            )
        else:
            limit.check(path.stat().st_size, str(path))
        with open_unpacked(path, packed) as file:
            total = 0
            while block := file.read(size):
                if not total:
                    _check_packed_once(path, packed, block)
                total += len(block)
                if total > max_bytes:
                    broken = limit if max_bytes == limit.maximum else bounds.EXPANSION
                    message = f"unpacks to more than {broken.maximum:,} {broken.what}"
                    fault = Fault(str(path), message)
                    raise InputError(fault)
                new_lines = block.count(b"\n")
                # Check before yielding, because millions of blank lines fit into a small packed
                # file.
                bounds.LINES.check(lines + new_lines, str(path))
                yield block
                lines += new_lines


_DAMAGE: Final = (
    *(EOFError, OSError, zlib.error, lzma.LZMAError, zstd.ZstdError),
    *(zipfile.BadZipFile, NotImplementedError),  # raised for zip features that Python lacks
)
"""Exceptions of decompressors for damaged files."""


@contextmanager
def _input_errors(path: Path, lines: Callable[[], int]) -> Iterator[SimpleNamespace]:
    """Convert errors of reading a file to `InputError`.

    The block stores the file's format in the yielded object's ``packed``. ``lines`` returns the
    number of lines that were read.
    """
    state = SimpleNamespace(packed="")
    try:
        yield state
    except FileNotFoundError as error:
        raise InputError(Fault(str(path), "no such file")) from error
    except IsADirectoryError as error:
        raise InputError(Fault(str(path), "is a directory, not a file")) from error
    except EOFError as error:
        location = f"{path}: line {lines() + 1}"
        fault = Fault(location, f"truncated {state.packed} stream", _HINT)
        raise InputError(fault) from error
    except OSError as error:
        if state.packed and error.errno is None:  # raised for a damaged gzip or bzip2 stream
            raise _damage_error(path, state.packed, lines(), error) from error
        reason, hint = error.strerror or str(error), ""
        if isinstance(error, PermissionError):
            hint = f"check its permissions: ls -ld {shlex.quote(str(path))}"
        raise InputError(Fault(str(path), f"cannot be read: {reason}", hint)) from error
    except _DAMAGE as error:
        raise _damage_error(path, state.packed, lines(), error) from error


def _damage_error(path: Path, packed: str, lines: int, error: Exception) -> InputError:
    # The libraries raise one exception type for all problems, so only its text tells.
    if any(text in str(error) for text in ("Memory usage limit", "too much memory")):
        message = f"its {packed} dictionary exceeds {MAX_DECOMPRESSOR_BYTES >> 20} MiB"
        return InputError(Fault(str(path), message, f"pack it with {packed} -9 or gzip"))
    if packed == "zstd" and "ictionary" in str(error):
        message = "needs a zstd dictionary"
        return InputError(Fault(str(path), message, "pack it without a dictionary"))
    if isinstance(error, NotImplementedError):
        return InputError(Fault(str(path), f"cannot be unpacked: {error}", "unzip it first"))
    return InputError(Fault(f"{path}: line {lines + 1}", f"corrupt {packed} stream", _HINT))

"""Bytes of files, decompressed if they are gzip, and limited before they are in memory."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from shadowprice.core import bounds
from shadowprice.core.bounds import InputLimit
from shadowprice.core.errors import Fault, InputError

EXPANSION_CHECK_BYTES: Final = 64 << 20
"""Bytes that any gzip file may decompress to, whatever its size."""

BLOCK: Final = 1 << 16
"""Default size of a block, in bytes."""

GZIP_MAGIC: Final = b"\x1f\x8b"
"""First bytes of every gzip file."""


def is_gzip(path: Path) -> bool:
    """Return whether a file's content starts as gzip does; the name doesn't matter."""
    with path.open("rb") as file:
        return file.read(2) == GZIP_MAGIC


def read_blocks(path: Path, largest: InputLimit, size: int = BLOCK) -> Iterator[bytes]:
    """Yield a file's bytes in blocks of ``size``, decompressed.

    ``largest`` limits the decompressed bytes; a gzip file is also limited by its own size.

    Raises
    ------
    InputError
        If the file is absent, not a regular file, too large, unreadable, or a damaged or
        truncated gzip stream, with the line at which the stream ends.
    """
    lines = 0
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise InputError(
                Fault(str(path), "is not a regular file", "write the data to a file first")
            )
        is_packed = is_gzip(path)
        max_bytes = largest.most
        if is_packed:
            max_bytes = min(
                max_bytes, max(EXPANSION_CHECK_BYTES, bounds.EXPANSION.most * path.stat().st_size)
            )
        else:
            largest.check(path.stat().st_size, str(path))
        with gzip.open(path) if is_packed else path.open("rb") as file:
            total = 0
            while block := file.read(size):
                total += len(block)
                if total > max_bytes:
                    limit = largest if max_bytes == largest.most else bounds.EXPANSION
                    raise InputError(
                        Fault(str(path), f"unpacks to more than {limit.most:,} {limit.what}")
                    )
                new_lines = block.count(b"\n")
                # Before the block is read: millions of blank lines fit into a small gzip file.
                bounds.LINES.check(lines + new_lines, str(path))
                yield block
                lines += new_lines
    except FileNotFoundError as error:
        raise InputError(Fault(str(path), "no such file")) from error
    except IsADirectoryError as error:
        raise InputError(Fault(str(path), "is a directory, not a file")) from error
    except EOFError as error:
        place = f"{path}: line {lines + 1}"
        message = "the gzip stream ends here, cut short"
        raise InputError(Fault(place, message, "fetch it again")) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        place = f"{path}: line {lines + 1}"
        message = "the gzip stream is damaged here"
        raise InputError(Fault(place, message, "fetch it again")) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(Fault(str(path), f"cannot be read: {reason}")) from error

"""Packed files in every legal form have the content of the plain file."""

from __future__ import annotations

import bz2
import gzip
import lzma
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from shadowprice.core import bounds
from shadowprice.core.errors import InputError
from shadowprice.inputs.unpacking import BLOCK_BYTES, read_blocks, read_first_bytes
from shadowprice.traces.text import read_head
from tests.support.examples import example_count

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstd.compress,
}


def content_of(path: Path) -> bytes:
    return b"".join(read_blocks(path, bounds.TABLE_BYTES))


@pytest.mark.parametrize("packed", PACK)
@given(
    pieces=st.lists(st.binary(max_size=400), min_size=1, max_size=6),
    zeros=st.lists(st.sampled_from([0, 4, 512]), min_size=6, max_size=6),
)
@settings(max_examples=example_count(60), deadline=None)
def test_streams_one_after_another_are_one_file(
    packed: str, pieces: list[bytes], zeros: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("packed") / "FILE.GZ"  # the name doesn't matter
    streams = (
        PACK[packed](piece) + bytes(count) for piece, count in zip(pieces, zeros, strict=False)
    )
    path.write_bytes(b"".join(streams))
    assert content_of(path) == b"".join(pieces)
    assert read_first_bytes(path, 100) == b"".join(pieces)[:100]


@pytest.mark.parametrize("packed", PACK)
def test_a_table_is_recognized_behind_an_empty_and_a_short_stream(
    packed: str, tmp_path: Path
) -> None:
    pack, path = PACK[packed], tmp_path / "table"
    rows = "".join(f"{row},1\n" for row in range(30_000)).encode()
    path.write_bytes(pack(b"") + pack(b"job,gpus\n") + bytes(8) + pack(rows))
    assert read_head(path).startswith("job,gpus\n0,1\n1,1\n")
    assert content_of(path) == b"job,gpus\n" + rows
    blocks = list(read_blocks(path, bounds.TABLE_BYTES))
    assert all(len(block) == BLOCK_BYTES for block in blocks[:-1])


@pytest.mark.parametrize("packed", PACK)
def test_damage_is_an_error_and_never_a_shorter_file(packed: str, tmp_path: Path) -> None:
    whole, path = PACK[packed](b"a line\n" * 5_000), tmp_path / "table"
    for damaged, message in (
        (whole[: len(whole) // 2], f"truncated {packed} stream"),
        (whole + b"garbage", f"corrupt {packed} stream"),
        (whole[: len(whole) // 2] + bytes(40) + whole, f"corrupt {packed} stream"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=message):
            content_of(path)


@pytest.mark.parametrize("packed", PACK)
def test_a_bomb_of_any_format_is_refused(packed: str, tmp_path: Path) -> None:
    path = tmp_path / "bomb"
    path.write_bytes(PACK[packed](bytes(80 << 20)))
    with pytest.raises(InputError, match="unpacks to more than"):
        content_of(path)


def test_a_dictionary_above_the_limit_is_not_called_damage(tmp_path: Path) -> None:
    path = tmp_path / "table"
    # Writing the size into a small stream needs no memory for such a dictionary.
    content = bytearray(lzma.compress(b"a line\n"))
    header = content[12 : 12 + 4 * (content[12] + 1)]
    header[4] = 34  # 512 MiB, as in the format's table of sizes
    header[-4:] = zlib.crc32(header[:-4]).to_bytes(4, "little")
    content[12 : 12 + len(header)] = header
    path.write_bytes(content)
    with pytest.raises(InputError, match="its xz dictionary exceeds 256 MiB"):
        content_of(path)


def test_a_window_of_zstd_above_the_limit_is_not_called_damage(tmp_path: Path) -> None:
    path = tmp_path / "table"
    for window, fits in ((28, True), (30, False)):
        packer = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: window})
        path.write_bytes(packer.compress(b"a line\n") + packer.flush())
        if fits:
            assert content_of(path) == b"a line\n"
            continue
        with pytest.raises(InputError, match="its zstd dictionary exceeds 256 MiB"):
            content_of(path)


def test_a_skipped_frame_of_zstd_may_come_first(tmp_path: Path) -> None:
    path = tmp_path / "table"
    skipped = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"size"
    path.write_bytes(skipped + zstd.compress(b"a line\n") + skipped + zstd.compress(b"another\n"))
    assert content_of(path) == b"a line\nanother\n"
    assert read_head(path) == "a line\nanother\n"


@pytest.mark.parametrize(("head", "name"), [(b"PK\3\4", "zip")])
def test_other_formats_are_named(head: bytes, name: str, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(head + bytes(50))
    for read in (content_of, read_head):
        with pytest.raises(InputError, match=f"is packed with {name}; unpack it first"):
            read(path)

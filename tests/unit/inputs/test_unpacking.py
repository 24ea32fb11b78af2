"""Packed files in every legal form have the content of the plain file."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import shlex
import sys
import unicodedata
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given, settings

from shadowprice.core import bounds
from shadowprice.core.errors import InputError
from shadowprice.inputs.unpacking import (
    BLOCK_BYTES,
    detect_compression,
    read_blocks,
    read_first_bytes,
    split_member,
)
from shadowprice.traces.locate import escape_path, read_trace
from shadowprice.traces.records import Trace
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
    plain = path.with_name("plain")
    plain.write_bytes(b"".join(pieces))
    assume(not detect_compression(plain))  # content that is packed too is refused
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
    for read in (content_of, read_head):
        with pytest.raises(InputError, match="its xz dictionary exceeds 256 MiB"):
            read(path)


def test_a_window_of_zstd_above_the_limit_is_not_called_damage(tmp_path: Path) -> None:
    path = tmp_path / "table"
    for window, fits in ((28, True), (30, False)):
        packer = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: window})
        path.write_bytes(packer.compress(b"a line\n") + packer.flush())
        if fits:
            assert content_of(path) == b"a line\n"
            continue
        for read in (content_of, read_head):
            with pytest.raises(InputError, match="its zstd dictionary exceeds 256 MiB"):
                read(path)


def test_a_skipped_frame_of_zstd_may_come_first(tmp_path: Path) -> None:
    path = tmp_path / "table"
    skipped = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"size"
    path.write_bytes(skipped + zstd.compress(b"a line\n") + skipped + zstd.compress(b"another\n"))
    assert content_of(path) == b"a line\nanother\n"
    assert read_head(path) == "a line\nanother\n"


def lzma_alone(content: bytes) -> bytes:
    return lzma.compress(content, format=lzma.FORMAT_ALONE)


def test_the_old_format_of_lzma_is_read(tmp_path: Path) -> None:
    path = tmp_path / "table.lzma"
    content = b"a line\n" * 5_000
    path.write_bytes(lzma_alone(content))
    assert content_of(path) == content
    assert read_head(path).startswith("a line\n")
    path.write_bytes(lzma_alone(content)[:-9])
    with pytest.raises(InputError, match="truncated lzma stream"):
        content_of(path)


def zip_of(path: Path, *names: str, method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name in names:
            archive.writestr(name, b"" if name.endswith("/") else b"a line\n" * 5_000)
    return path


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_a_zip_file_of_one_file_is_read(tmp_path: Path, method: int) -> None:
    own = ("logs/", "logs/jobs.csv", "__MACOSX/logs/._jobs.csv", "logs/.DS_Store")
    path = zip_of(tmp_path / "table.csv", *own, method=method)
    assert content_of(path) == b"a line\n" * 5_000
    assert read_head(path).startswith("a line\n")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    for read in (content_of, read_head):
        with pytest.raises(InputError, match="truncated zip stream"):
            read(path)
    damaged = bytearray(whole)
    start = whole.index(b"jobs.csv") + 20
    damaged[start : start + 4] = bytes(byte ^ 0x55 for byte in whole[start : start + 4])
    path.write_bytes(damaged)
    with pytest.raises(InputError, match="corrupt zip stream"):
        content_of(path)


@pytest.mark.parametrize("name", [".", "..", "/", "a/."])
def test_a_name_without_a_file_is_no_crash(tmp_path: Path, name: str) -> None:
    path = tmp_path / "log.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo(name), "x")
        archive.writestr("a.csv", "a,b\n")
    assert content_of(Path(f"{path}:a.csv")) == b"a,b\n"


@pytest.mark.parametrize("comment", [b"", b"of 2024", b"PK\5\6", b"PK\5\6" + bytes(30), bytes(9)])
@pytest.mark.parametrize("added", [b"", b"\n\n"])
def test_a_comment_of_a_zip_file_may_contain_its_marks(
    tmp_path: Path, comment: bytes, added: bytes
) -> None:
    path = zip_of(tmp_path / "table.csv", "jobs.csv")
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = comment
    if added and b"PK" in comment:
        return  # nothing shows which mark is meant
    path.write_bytes(path.read_bytes() + added)
    assert content_of(path) == b"a line\n" * 5_000
    assert read_head(path).startswith("a line\n")


def test_the_files_of_a_zip_file_are_listed(tmp_path: Path) -> None:
    path = zip_of(tmp_path / "logs.zip", *(f"{month}.csv" for month in range(1, 13)))
    message = r"holds 12 files: '1\.csv', .*'10\.csv' and 2 more; select one: .*logs.zip:1.csv"
    for read in (content_of, read_head):
        with pytest.raises(InputError, match=message):
            read(path)
    with pytest.raises(InputError, match=r"is empty; give a file with rows"):
        read_head(zip_of(path))
    with pytest.raises(InputError, match="is an Office document; save the table as CSV"):
        read_head(zip_of(path, "[Content_Types].xml", "xl/workbook.xml"))
    with pytest.raises(InputError, match="packed with a rare zip method; unzip it first"):
        read_head(zip_of(path, "a.csv", method=zipfile.ZIP_LZMA))


def test_a_file_of_a_zip_file_is_selected_by_its_name(tmp_path: Path) -> None:
    junk = ("__MACOSX/x/._a.csv", "x/.DS_Store", "x/._a.csv", "x/")
    path = zip_of(tmp_path / "logs of 1.zip", *junk)
    with zipfile.ZipFile(path, "a") as archive:
        for name in ("x/a.csv", "b:c.csv"):
            archive.writestr(name, f"this is {name}\n")
    for name in ("x/a.csv", "b:c.csv"):
        selected = Path(f"{path}:{name}")
        assert split_member(selected) == (path, name)
        assert content_of(selected) == read_head(selected).encode() == f"this is {name}\n".encode()
    with pytest.raises(InputError, match=r"has no file 'x/b\.csv'; did you mean '.*:x/a\.csv'\?"):
        read_head(Path(f"{path}:x/b.csv"))
    with pytest.raises(InputError) as caught:
        read_head(path)
    [fault] = caught.value.faults
    # The hint is one word of a shell, also with blanks in the path.
    assert shlex.split(fault.hint.removeprefix("select one: ")) == [f"{path}:x/a.csv"]


@pytest.mark.parametrize("member", ["a.csv", "50%3F.csv", "a?b.csv", "it's.csv"])
@pytest.mark.parametrize(
    "name", ["my?log", "a*b", "a[1]", "50%25", "50%", "x#1", "hey!you", "it's", "a b", "a&b", "~"]
)
def test_hints_for_files_of_a_zip_file_work_as_they_are_printed(
    tmp_path: Path, name: str, member: str
) -> None:
    path = tmp_path / f"{name}.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, "submit,duration,gpus\n0,60,1\n")
        archive.writestr("z.csv", "")
    escaped = escape_path(f"{path}:{member}x")
    for written in (f"csv:{path}", f"csv:{escaped}", f"csv:{path}:{member}"):
        assert read_as_hinted(written).jobs.height == 1


def read_as_hinted(spec: str) -> Trace:
    """Read a trace as up to two hints say, each of which is one word of a shell."""
    for _ in range(2):
        try:
            return read_trace(spec)
        except InputError as error:
            [fault] = error.faults
        [spec] = shlex.split(re.sub(r"^(select one:|did you mean|write) |\?$", "", fault.hint))
    return read_trace(spec)


def test_options_follow_a_path_with_a_question_mark(tmp_path: Path) -> None:
    path = tmp_path / "my?log.csv"
    path.write_text("submit,duration,gpus,user\n0,60,1,ann\n")
    with pytest.raises(InputError) as caught:
        read_trace(f"csv:{path}?vc=ann")
    [fault] = caught.value.faults
    assert fault.message == f"? in a path begins the options, but {path} is a file"
    assert read_trace(*shlex.split(fault.hint.removeprefix("write "))).jobs.height == 1


def test_names_of_a_zip_file_are_compared_as_they_look(tmp_path: Path) -> None:
    path = zip_of(tmp_path / "a.zip", unicodedata.normalize("NFD", "\u00fc.csv"), "b.csv")
    assert content_of(Path(f"{path}:\u00fc.csv")) == b"a line\n" * 5_000


@pytest.mark.parametrize("member", ["", ":in.csv.gz"])
def test_a_packed_file_in_a_zip_file_is_refused_as_such(tmp_path: Path, member: str) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("in.csv.gz", gzip.compress(b"a,b\n"))
    message = r"'in\.csv\.gz' in the zip file is packed with gzip; unzip it first"
    with pytest.raises(InputError, match=message):
        read_head(Path(f"{path}{member}"))


def test_a_name_that_a_zip_file_repeats_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.csv", "1\n")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a.csv", "2\n")
    with pytest.raises(InputError, match=r"holds 2 files named 'a\.csv'; unzip it first"):
        read_head(Path(f"{path}:a.csv"))
    with pytest.raises(InputError, match="no such file"):
        read_head(Path(f"{tmp_path / 'absent.zip'}:a.csv"))
    plain = tmp_path / "a:b"
    plain.write_text("x,y\n")
    assert split_member(plain) == (plain, "")
    assert split_member(Path(f"{plain}:c")) == (Path(f"{plain}:c"), "")


def test_a_large_directory_of_a_zip_file_is_not_read(tmp_path: Path) -> None:
    path = zip_of(tmp_path / "logs.zip", *(f"{number:0200}" for number in range(5_000)))
    with pytest.raises(InputError, match="the directory of the zip file exceeds 1 MiB"):
        read_head(path)


def test_a_dictionary_that_a_frame_of_zstd_needs_is_not_called_damage(tmp_path: Path) -> None:
    path = tmp_path / "table"
    samples = [f"a line of job {number}\n".encode() for number in range(2_000)]
    dictionary = zstd.train_dict(samples, 2_000)
    path.write_bytes(zstd.compress(b"a line of job 7\n", zstd_dict=dictionary))
    for read in (content_of, read_head):
        with pytest.raises(InputError, match="needs a zstd dictionary; pack it without"):
            read(path)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"7z\xbc\xaf\x27\x1c", "is packed with 7z; unpack it first"),
        (b"\x04\x22\x4d\x18", "is packed with lz4; unpack it first"),
        (gzip.compress(bytes(257) + b"ustar" + bytes(250)), "is a tar archive; extract the file"),
        (b"PAR1", "is a Parquet file; save the table as CSV"),
        ("job,gpus\n1,1\n".encode("utf-16"), "is UTF-16; save it as UTF-8"),
        ("job,gpus\n1,1\n".encode("utf-16-le"), "is UTF-16; save it as UTF-8"),
        ("job,gpus\n1,1\n".encode("utf-16-be"), "is UTF-16; save it as UTF-8"),
    ],
    ids=["7z", "lz4", "tar", "parquet", "utf-16", "utf-16-le", "utf-16-be"],
)
def test_other_kinds_of_tables_are_named(head: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(head)
    with pytest.raises(InputError, match=message):
        read_head(path)


@pytest.mark.parametrize(("head", "name"), [(b"Rar!\x1a\x07", "rar")])
def test_other_formats_are_named(head: bytes, name: str, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(head + bytes(50))
    for read in (content_of, read_head):
        with pytest.raises(InputError, match=f"is packed with {name}; unpack it first"):
            read(path)


def test_a_packed_file_in_a_packed_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(bz2.compress(b"a line\n")))
    for read in (content_of, read_head):
        with pytest.raises(
            InputError, match="packed with gzip, and its content with bzip2; unpack"
        ):
            read(path)


def test_the_largest_file_of_a_zip_file_is_suggested(tmp_path: Path) -> None:
    path = tmp_path / "logs.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("README.txt", "read me\n")
        archive.writestr("jobs.csv", "submit,duration,gpus\n" + "0,60,1\n" * 9)
    with pytest.raises(InputError, match=r"select one: .*logs\.zip:jobs\.csv"):
        read_head(path)

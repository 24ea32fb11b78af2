"""Deletion of unpacked files that a job didn't change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shadowprice.uploads.packing import pack, select_files
from shadowprice.uploads.unpacking import (
    is_unpacked,
    remove_unchanged,
    remove_unpacked,
    unpack,
)
from tests.support.archives import describe_tree, make_tree

LIMIT = 1 << 24


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    make_tree(tmp_path / "sent")
    with (tmp_path / "archive").open("w+b") as file:
        pack(select_files(tmp_path / "sent", max_bytes=LIMIT), file)
    return tmp_path / "archive"


def test_nothing_stays_if_nothing_changed(tmp_path: Path, archive: Path) -> None:
    work = tmp_path / "work"
    unpack(archive, work)
    assert describe_tree(work)
    for _ in range(2):  # as after a kill
        remove_unchanged(archive, work)
        assert not is_unpacked(archive, work)
        assert list(work.iterdir()) == []


def test_files_that_a_job_wrote_stay(tmp_path: Path, archive: Path) -> None:
    work = tmp_path / "work"
    unpack(archive, work)
    (work / "train.py").write_text("print(2)\n")  # as long as before
    os.utime(work / "private", (5, 5))
    (work / "link").unlink()
    (work / "link").symlink_to("run me.sh")
    (work / "empty" / "deep" / "result").write_text("1")
    (work / "new").mkdir()
    (work / "run me.sh").unlink()
    (work / "run me.sh").mkdir()
    remove_unchanged(archive, work)
    assert sorted(str(path.relative_to(work)) for path in work.rglob("*")) == [
        "empty",
        "empty/deep",
        "empty/deep/result",
        "link",
        "new",
        "private",
        "run me.sh",
        "train.py",
    ]


@pytest.mark.parametrize("name", ["größe ✓", "d" * 120, "."])
def test_no_link_leads_outside(tmp_path: Path, archive: Path, name: str) -> None:
    """A job can put a link to a directory with equal files where one was unpacked."""
    work, other = tmp_path / "work", tmp_path / "other"
    unpack(archive, work)
    unpack(archive, other)
    before = describe_tree(other)
    if name == ".":
        work.rename(tmp_path / "moved")
        work.symlink_to(other)
    else:
        (work / name).rename(tmp_path / "moved")
        (work / name).symlink_to(other / name)
    if name == ".":
        with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
            remove_unchanged(archive, work)
    else:
        remove_unchanged(archive, work)
        assert [path.name for path in work.iterdir()] == [name]
    assert describe_tree(other) == before


def test_everything_stays_without_the_archive(tmp_path: Path, archive: Path) -> None:
    work = tmp_path / "work"
    unpack(archive, work)
    before = describe_tree(work)
    archive.rename(tmp_path / "elsewhere")
    remove_unchanged(archive, work)
    assert describe_tree(work) == before
    assert not is_unpacked(archive, work)


def change_tree(work: Path) -> None:
    """Change a directory of `make_tree` as a job may."""
    (work / "train.py").write_text("print(2)\n")
    (work / "link").unlink()
    (work / "link").symlink_to("run me.sh")
    (work / "run me.sh").unlink()
    (work / "run me.sh").mkdir()
    (work / "größe ✓" / "datei ü").unlink()
    (work / "größe ✓").rmdir()
    (work / "größe ✓").write_text("a file now")
    (work / "empty" / "deep" / "result").write_text("1")
    (work / "checkpoints").mkdir()
    (work / "checkpoints" / "last").write_text("2")


def test_a_released_directory_gets_back_only_what_is_missing(tmp_path: Path, archive: Path) -> None:
    """A job may be open again after its files were deleted, for example by a restored backup."""
    work = tmp_path / "work"
    unpack(archive, work)
    before = describe_tree(work)
    change_tree(work)
    changed = describe_tree(work)
    for _ in range(2):
        remove_unchanged(archive, work)
        assert not is_unpacked(archive, work)
        assert not (work / "private").exists()
        unpack(archive, work)
        assert is_unpacked(archive, work)
        found = {name: what for name, (what, _) in describe_tree(work).items()}
        assert found == {name: what for name, (what, _) in changed.items()}
        for name in ("private", "d" * 120 + "/" + "e" * 120 + "/f", "inside"):
            assert describe_tree(work)[name] == before[name]
    archive.rename(tmp_path / "elsewhere")
    unpack(archive, work)


def test_a_released_directory_stays_if_its_archive_is_gone(tmp_path: Path, archive: Path) -> None:
    work = tmp_path / "work"
    unpack(archive, work)
    change_tree(work)
    remove_unchanged(archive, work)
    before = describe_tree(work)
    archive.unlink()
    with pytest.raises(FileNotFoundError):
        unpack(archive, work)
    assert describe_tree(work) == before


@pytest.mark.parametrize("name", ["größe ✓", "d" * 120, "empty", "."])
def test_nothing_is_added_through_a_link(tmp_path: Path, archive: Path, name: str) -> None:
    work, other = tmp_path / "work", tmp_path / "other"
    unpack(archive, work)
    remove_unchanged(archive, work)
    other.mkdir()
    if name == ".":
        work.rmdir()
        work.symlink_to(other)
        with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
            unpack(archive, work)
    else:
        (work / name).symlink_to(other)
        unpack(archive, work)
        assert (work / name).is_symlink()
        assert (work / "train.py").exists()
    assert list(other.iterdir()) == []


def test_a_released_directory_of_another_archive_is_filled_again(
    tmp_path: Path, archive: Path
) -> None:
    """As is one that is gone."""
    work, other = tmp_path / "work", archive.with_name("other")
    unpack(archive, work)
    everything = describe_tree(work)
    (work / "result").write_text("of another job")
    remove_unchanged(archive, work)
    other.write_bytes(archive.read_bytes())
    unpack(other, work)
    assert describe_tree(work) == everything
    remove_unchanged(other, work)
    work.rmdir()
    unpack(other, work)
    assert describe_tree(work) == everything
    remove_unchanged(other, work)
    remove_unpacked(work)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archive", "other", "sent"]

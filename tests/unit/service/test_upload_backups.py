"""Copies of uploads beside a backup: damaged ones, and backups at the same time."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from shadowprice.cli.main import main
from shadowprice.core.errors import InputError
from shadowprice.service.store import Store
from shadowprice.service.store.files import FILE
from shadowprice.service.upload_backups import (
    UploadBackup,
    backup_folder,
    copy_uploads,
    lock_backup_folder,
)
from shadowprice.service.uploads import FOLDER, upload_path
from tests.support.waiting import WAIT_LIMIT_SECONDS

CONTENT = b"content"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database with an open job whose upload is in ``tmp_path/data``."""
    path = tmp_path / "database"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE jobs (name TEXT, tenant TEXT, spec TEXT, open INTEGER)")
        spec = json.dumps({"run": {"upload": DIGEST}})
        connection.execute("INSERT INTO jobs VALUES ('j', NULL, ?, 1)", (spec,))
    original = upload_path(tmp_path / "data" / FOLDER, None, DIGEST)
    original.parent.mkdir(parents=True)
    original.write_bytes(CONTENT)
    return path


@pytest.mark.parametrize("content", [b"CONTENT", b"cont"])
def test_a_damaged_copy_is_copied_again(tmp_path: Path, database: Path, content: bytes) -> None:
    target = tmp_path / "backup.db"
    expected = UploadBackup(backup_folder(target), 1, len(CONTENT))
    assert copy_uploads(database, tmp_path / "data", target) == expected
    copy = upload_path(backup_folder(target), None, DIGEST)
    copy.write_bytes(content)
    assert copy_uploads(database, tmp_path / "data", target) == expected
    assert copy.read_bytes() == CONTENT
    inode = copy.stat().st_ino
    upload_path(tmp_path / "data" / FOLDER, None, DIGEST).unlink()
    assert copy_uploads(database, tmp_path / "data", target) == expected
    assert copy.stat().st_ino == inode
    copy.write_bytes(content)
    assert copy_uploads(database, tmp_path / "data", target).incomplete == ("j",)


def test_one_backup_at_a_time_writes_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(str(tmp_path / "data"))
    store.open()
    store.close()
    target = tmp_path / "backup.db"
    partial = backup_folder(target) / ("0" * 32) / "x.part"
    with lock_backup_folder(target):
        partial.parent.mkdir(parents=True)
        partial.touch()
        assert main(["backup", str(tmp_path / "data"), str(target)]) == 2
        assert f"{target}: another backup writes this file" in capsys.readouterr().err
        assert partial.exists()
        assert main(["backup", str(tmp_path / "data"), str(tmp_path / "other.db")]) == 0
    assert main(["backup", str(tmp_path / "data"), str(target)]) == 0
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["backup.db", "data", "other.db"]
    assert (tmp_path / "data" / FILE).exists()


def test_a_lock_is_held_by_one_thread_at_a_time(tmp_path: Path) -> None:
    """Its file is removed after each use, perhaps after another thread has opened it."""
    holders: list[int] = []
    overlaps: list[int] = []
    taken: list[int] = []

    def take() -> None:
        for _ in range(300):
            try:
                with lock_backup_folder(tmp_path / "b"):
                    holders.append(1)
                    overlaps.extend([1] * (len(holders) > 1))
                    holders.pop()
                    taken.append(1)
            except InputError:
                pass

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_LIMIT_SECONDS)
        assert not thread.is_alive()
    assert overlaps == []
    assert taken
    assert list(tmp_path.iterdir()) == []

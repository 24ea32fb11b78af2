"""The fuzzer of the command line draws every command and every option."""

from __future__ import annotations

import os
from pathlib import Path

from shadowprice.cli.main import PARTS
from tests.hostile.commands import commands
from tests.hostile.drawing import Drawer
from tests.hostile.worker import put_back

DRAWS = 1_000


def test_every_command_is_drawn() -> None:
    known = {" ".join(command.words) for command in commands()}
    assert {name.split()[0] for name in known} == set(PARTS)
    drawer, drawn = Drawer(1, ["fifo"]), set[str]()
    for _ in range(3 * DRAWS):
        words = drawer.draw().words
        drawn |= {" ".join(words[:length]) for length in (1, 2)} & known
        if drawn == known:
            break
    assert drawn == known


def test_every_option_is_drawn() -> None:
    drawer = Drawer(1, ["fifo"])
    for command in commands():
        missing = {option.flag for option in command.options if option.flag}
        for _ in range(DRAWS):
            if not missing:
                break
            words = drawer.draw(" ".join(command.words)).words
            missing -= {word.partition("=")[0] for word in words}
        assert not missing, command.words


def test_a_drawn_service_listens_on_this_machine_only_and_contacts_no_other() -> None:
    drawer = Drawer(2, ["fifo"])
    for _ in range(200):
        words = [part for word in drawer.draw("serve").words for part in word.split("=", 1)]
        assert "--listen" in words
        assert not any("0.0.0.0" in word or "ray://" in word for word in words)
        if "--executor" in words:
            assert words[words.index("--executor") + 1] != "ray"


def test_devices_that_a_call_replaced_are_reported_and_put_back(tmp_path: Path) -> None:
    pipe, kept = tmp_path / "pipe", tmp_path / "kept"
    for one in (pipe, kept):
        os.mkfifo(one, 0o640)
    before = {str(one): os.lstat(one) for one in (pipe, kept)}
    assert put_back(before) == []
    for text in (None, "mine"):
        pipe.unlink()
        if text is not None:
            pipe.write_text(text)
        assert put_back(before) == [str(pipe)]
        assert pipe.is_fifo()
        assert pipe.stat().st_mode == before[str(pipe)].st_mode
    assert sorted(one.name for one in tmp_path.iterdir()) == ["kept", "pipe"]

"""Checkpoints of torch objects: complete or absent, in one file or in shards."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import pytest

pytest.importorskip("torch")

import numpy as np
import torch

from shadowprice import jobs
from shadowprice.training import TrainingError, checkpoints

pytestmark = pytest.mark.train


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    adam = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    adam.step()
    state = {"model": model.state_dict(), "optimizer": adam.state_dict(), "told": {"batch": 3}}
    size = checkpoints.save(7, state, tmp_path)
    result = checkpoints.load(tmp_path)
    assert result is not None
    assert (result.step, result.size, result.pieces) == (7, size, 0)
    assert result.state["told"] == {"batch": 3}
    assert torch.equal(result.state["model"]["weight"], model.weight)
    other = torch.optim.Adam(torch.nn.Linear(3, 2).parameters())
    other.load_state_dict(result.state["optimizer"])
    assert other.state_dict()["param_groups"][0]["lr"] == 0.1


class Trap:
    def __reduce__(self) -> object:
        return (Path.touch, (Path("ran"),))


@pytest.mark.parametrize("trap", [True, False])
def test_nothing_in_a_checkpoint_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], trap: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoints.save(1, {"a": 1}, tmp_path / "c")
    made = io.BytesIO()
    torch.save({"a": Trap()}, made)
    jobs.save(2, made.getvalue() if trap else b"something else", tmp_path / "c")
    result = checkpoints.load(tmp_path / "c")
    assert result is not None
    assert (result.step, result.state) == (1, {"a": 1})
    assert not (tmp_path / "ran").exists()
    assert "ignoring the checkpoint of step 2, saved by other code" in capsys.readouterr().err


def test_unreadable_state_is_not_saved(tmp_path: Path) -> None:
    for odd in (np.float64(1.0), np.int64(3), Path("here")):
        with pytest.raises(TrainingError, match=r"use only tensors, .*: .*GLOBAL"):
            checkpoints.save(1, {"a": {"b": [odd]}}, tmp_path)
    assert checkpoints.load(tmp_path) is None


def save_in_pieces(folder: Path, step: int, values: list[float]) -> None:
    digests = [
        checkpoints.save_piece(step, number, {"part": torch.tensor([value])}, folder)
        for number, value in enumerate(values)
    ]
    checkpoints.save(step, {"servers": len(values)}, folder, digests=digests)


def test_pieces_make_one_checkpoint_and_one_damaged_piece_undoes_it(tmp_path: Path) -> None:
    save_in_pieces(tmp_path, 1, [0.5, 1.5, 2.5])
    save_in_pieces(tmp_path, 2, [3.5, 4.5])  # fewer servers
    result = checkpoints.load(tmp_path)
    assert result is not None
    assert (result.step, result.pieces, result.state) == (2, 2, {"servers": 2})
    assert [result.piece(index)["part"].item() for index in range(2)] == [3.5, 4.5]

    piece = tmp_path / "piece-1" / f"checkpoint-{2:015d}"
    piece.write_bytes(piece.read_bytes()[:-1] + b"?")
    with pytest.raises(OSError, match="piece 1 of the checkpoint of step 2 is damaged"):
        result.piece(1)
    result = checkpoints.load(tmp_path)
    assert result is not None
    assert [result.piece(index)["part"].item() for index in range(3)] == [0.5, 1.5, 2.5]


def test_pieces_of_which_no_leader_knows_are_no_checkpoint(tmp_path: Path) -> None:
    save_in_pieces(tmp_path, 1, [0.5, 1.5])
    save_in_pieces(tmp_path, 2, [2.5, 3.5])
    # The next one is interrupted after its shards, and another process continues from step 2: the
    # same number, other content.
    checkpoints.save_piece(3, 0, {"part": torch.tensor([9.0])}, tmp_path)
    result = checkpoints.load(tmp_path)
    assert result is not None
    assert result.step == 2
    assert result.piece(0)["part"].item() == 2.5


def test_checkpoints_that_were_passed_over_are_removed_by_the_next_one(tmp_path: Path) -> None:
    """Kept, they would count as the two newest, and every new checkpoint would be removed."""
    for step in (1, 8, 9):
        save_in_pieces(tmp_path, step, [float(step)])
        if step > 1:
            piece = tmp_path / "piece-0" / f"checkpoint-{step:015d}"
            piece.write_bytes(piece.read_bytes()[:-1] + b"?")
    # `load` would return step 1; pruning kept only the main files of steps 8 and 9.
    for step in (5, 6):
        save_in_pieces(tmp_path, step, [float(step)])
    assert [checkpoint.step for checkpoint in jobs.saved(tmp_path)] == [6, 5]
    assert [checkpoint.step for checkpoint in jobs.saved(tmp_path / "piece-0")] == [6, 5]
    result = checkpoints.load(tmp_path)
    assert result is not None
    assert result.step == 6


def test_a_piece_whose_leader_died_gives_way_to_the_next_one_of_a_lower_step(
    tmp_path: Path,
) -> None:
    save_in_pieces(tmp_path, 200, [2.0])
    checkpoints.save_piece(300, 0, {"part": torch.tensor([3.0])}, tmp_path)
    save_in_pieces(tmp_path, 250, [2.5])
    result = checkpoints.load(tmp_path)
    assert result is not None
    assert (result.step, result.piece(0)["part"].item()) == (250, 2.5)
    assert [checkpoint.step for checkpoint in jobs.saved(tmp_path / "piece-0")] == [250, 200]


def test_content_without_a_mapping_is_refused() -> None:
    stream = io.BytesIO()
    torch.save([1], stream)
    with pytest.raises(pickle.UnpicklingError, match="expected a mapping, got list"):
        checkpoints.deserialize(stream.getvalue())

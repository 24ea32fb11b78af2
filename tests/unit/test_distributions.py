"""The distributions of this repository: one version, and no file that belongs to both."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import shadowprice

ROOT = Path(__file__).parents[2]
TRAINING = ROOT / "packages" / "training"


def _project(folder: Path) -> dict[str, Any]:
    content = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))
    project: dict[str, Any] = content["project"]
    return project


def test_both_have_one_version() -> None:
    assert _project(TRAINING)["version"] == shadowprice.__version__
    extra = _project(ROOT)["optional-dependencies"]["train"]
    assert extra == [f"shadowprice-training[torch]=={shadowprice.__version__}"]


def test_the_runtime_inside_jobs_depends_on_nothing_but_torch_and_data() -> None:
    project = _project(TRAINING)
    assert project["dependencies"] == []
    names = {text.partition(">")[0] for text in project["optional-dependencies"]["torch"]}
    assert names == {"fsspec", "numpy", "torch"}


def test_no_file_belongs_to_both() -> None:
    source = TRAINING / "src" / "shadowprice"
    names = {entry.name for entry in source.iterdir() if entry.name != "__pycache__"}
    assert names == {"jobs", "training"}
    for name in names:
        link = ROOT / "src" / "shadowprice" / name
        assert link.is_symlink()
        assert link.resolve() == source / name

"""A data directory, its backup, and jobs that record their processes."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any

import yaml

from shadowprice.cli.main import main
from tests.support.service_process import ServiceProcess


class RestoreScenario:
    """A data directory, jobs that leave marks, and a backup from before they were submitted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = folder / "cluster.yaml"
        servers = [
            {"name": "g", "capacity": {"cpu": 2}},
            {"name": "probes", "capacity": {"probe": 1}},
        ]
        self.cluster.write_text(yaml.safe_dump({"slot": "1s", "horizon": 100, "servers": servers}))
        self.data, self.backup = folder / "data", folder / "backup.db"
        self.log = folder / "log"

    def job(self, name: str, mark: str, **run: Any) -> dict[str, Any]:
        """Return a job that records its process and runs until `go`, then exits 0."""
        marks, go = self.folder / f"marks-{mark}", self.folder / f"go-{mark}"
        script = (
            f"trap 'exit 143' TERM; echo $$ >> {marks}; while [ ! -e {go} ]; do sleep 0.05; done"
        )
        return {
            "name": name,
            "minibatches": 100,
            "minibatch_time": "1s",
            "worker": {"cpu": 1},
            "utility": {"kind": "constant", "value": 1},
            "run": {"command": script, "grace": "5s", **run},
        }

    def slow(self, record: dict[str, Any]) -> dict[str, Any]:
        """Change a job to save on SIGTERM until the file ``saved`` exists."""
        save = f"trap 'until [ -e {self.folder / 'saved'} ]; do sleep 0.05; done; exit 143' TERM"
        run = record["run"]
        run["command"] = run["command"].replace("trap 'exit 143' TERM", save)
        run["grace"] = "60s"
        return record

    def go(self, mark: str) -> None:
        (self.folder / f"go-{mark}").touch()

    def began(self, mark: str) -> list[int]:
        """Return the processes that ever started with a mark."""
        try:
            return [int(pid) for pid in (self.folder / f"marks-{mark}").read_text().split()]
        except FileNotFoundError:
            return []

    def alive(self, mark: str) -> list[int]:
        """Return the processes of a mark that still run."""
        return [pid for pid in self.began(mark) if Path(f"/proc/{pid}").exists()]

    def back_up(self) -> None:
        assert main(["backup", str(self.data), str(self.backup), "-o", "json"]) == 0

    def restore(self, into: Path) -> None:
        into.mkdir(exist_ok=True)
        for old in into.glob("shadowprice.db*"):
            old.unlink()
        shutil.copy(self.backup, into / "shadowprice.db")

    @property
    def uploads(self) -> Path:
        return self.folder / "backup.db.uploads"


def run_probe(service: ServiceProcess) -> None:
    """Run a job on a server of its own, so that all earlier commands have been sent since."""
    name = f"probe-{uuid.uuid4()}"
    run = {"command": "true"}
    record = {"name": name, "steps": 1, "minibatch_time": "1s", "worker": {"probe": 1}, "run": run}
    submit(service, record)
    service.wait_for_state(name, {"finished"})


def submit(service: ServiceProcess, record: dict[str, Any]) -> None:
    answer = service.client.post("/v1/jobs", json=record)
    assert answer.status_code == 200, answer.text

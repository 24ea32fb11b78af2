"""The service is killed (SIGKILL) before every step of a generation change, and restarted."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest
from tools.testbed import ApiError, Testbed

from tests.kubernetes.changing import GROUPS, begun, change, judged, nothing_is_left, tried
from tests.kubernetes.operators import first_line, installed, killed


class Killable:
    """A service that is killed at the steps of a file, and restarted."""

    def __init__(self, bed: Testbed, folder: Path) -> None:
        self.bed = bed
        self.folder = folder
        self.armed, self.steps = folder / "armed", folder / "steps"
        self.process: subprocess.Popen[str] | None = None
        self.kills = 0

    def start(self) -> None:
        """Start it, again if it is killed meanwhile."""
        leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
        data, config = str(self.folder / "data"), self.bed.kubeconfig
        while True:
            try:  # of a killed one: it would have to expire, and nothing depends on it
                self.bed.ask("DELETE", f"{leases}/shadowprice-executor")
            except ApiError as error:
                if error.status != 404:
                    raise
            self.process = begun(self.bed, self.folder, data, config, "SIGKILL", self.armed)
            if first_line(self.process):
                return
            assert self.process.wait(60) == -signal.SIGKILL, self.said()
            self.kills += 1
            self.end()

    def goes_on(self) -> bool:
        """Restart it if it was killed, and return whether it was."""
        assert self.process is not None
        code = self.process.poll()
        assert code in {None, -signal.SIGKILL}, (code, self.said())
        if code is None:
            return False
        self.kills += 1
        self.end()
        self.start()
        return True

    def said(self) -> str:
        """Return its last output."""
        return (self.folder / "log").read_text()[-3000:]

    def end(self) -> None:
        """Stop it for good."""
        if self.process is not None:
            killed(self.process)
            assert self.process.stdout is not None
            self.process.stdout.close()


@pytest.mark.extended
@pytest.mark.parametrize("name", sorted(GROUPS))
def test_a_service_killed_before_any_step_of_a_change_loses_and_doubles_nothing(
    testbed: Testbed, tmp_path: Path, name: str
) -> None:
    user = installed(testbed)
    service = Killable(testbed, tmp_path)
    began = time.time()
    service.start()
    try:
        steps = change(user, service, name, GROUPS[name])
        nothing_is_left(testbed, name)
    finally:
        service.end()
    assert service.kills == tried(steps, GROUPS[name]), steps
    judged(testbed, began)

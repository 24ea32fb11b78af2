"""An S3 server as a process of its own: objects over HTTP, and signed requests."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping

import pytest

PATIENCE = 120.0

ARROW = "SHADOWPRICE_TEST_ARROW"
"""Set if pyarrow should read HDFS although hdfs-native is installed."""


def by_arrow() -> None:
    """Let fsspec read HDFS by pyarrow, as it does without hdfs-native."""
    if ARROW in os.environ:
        fsspec = pytest.importorskip("fsspec")
        arrow = "fsspec.implementations.arrow.HadoopFileSystem"
        fsspec.register_implementation("hdfs", arrow, clobber=True)


class ObjectStore:
    """moto's S3 server on loopback, with one bucket.

    Attributes
    ----------
    environment : mapping
        Environment variables that a client needs, as users of S3 know them.
    """

    def __init__(self) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed at the end
        words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
        self._process = subprocess.Popen(words, stdout=self._log, stderr=self._log)
        try:
            self.environment: Mapping[str, str] = {
                "AWS_ENDPOINT_URL": self._address(),
                "AWS_ACCESS_KEY_ID": "key",
                "AWS_SECRET_ACCESS_KEY": "secret",
                "AWS_DEFAULT_REGION": "us-east-1",
                "NO_PROXY": "127.0.0.1",
            }
        except BaseException:
            self.end()
            raise

    def _address(self) -> str:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and self._process.poll() is None:
            result = re.search(r"Running on (http://\S+)", self.said())
            if result:
                return result[1]
            time.sleep(0.05)
        raise AssertionError(self.said())

    def said(self) -> str:
        """Return its log: a line a request."""
        # By its name, because this descriptor's position is where the process writes.
        with open(f"/proc/self/fd/{self._log.fileno()}") as stream:  # noqa: PTH123
            return stream.read()

    def signal(self, number: int) -> None:
        """Send it a signal; SIGSTOP makes it unresponsive."""
        self._process.send_signal(number)

    def folder(self) -> str:
        """Return a new location for a data set."""
        return f"s3://bucket/{uuid.uuid4().hex}"

    def end(self) -> None:
        """Kill it."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(PATIENCE)
        self._log.close()


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    """An S3 server that this process's environment points to."""
    for name in ("moto", "s3fs"):
        pytest.importorskip(name)
    import s3fs

    made = ObjectStore()
    before = {name: os.environ.get(name) for name in made.environment}
    os.environ.update(made.environment)
    try:
        s3fs.S3FileSystem().mkdir("bucket")
        yield made
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        s3fs.S3FileSystem.clear_instance_cache()
        made.end()

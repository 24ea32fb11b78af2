"""A small HDFS on this machine, for the tests of data sets: ``make hdfs``, once.

Hadoop itself is on no registry of Python or Debian, but its jars are: PySpark's source package
carries those of HDFS's NameNode and DataNode, and Debian has the four that these lack. Its library
for C, which pyarrow speaks by, is compiled from pydoop's source package, which carries its sources.
What is fetched is held to its digest, and kept in the user's cache.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

PACKAGE, VERSION = "pyspark", "2.4.8"
"""Later ones have a Hadoop without servers."""

DIGEST = "3a19b71b8dc8dd91ebc943604a05e1ab01bce052456d42937035632d852d78dc"
"""SHA-256 of that source package."""

SOURCES, SOURCES_VERSION = "pydoop", "2.0.0"
"""What carries the sources of libhdfs."""

SOURCES_DIGEST = "c7eb2ad8c36d2a75dc1c6cee701928334614f2e862a70798b0cb278e3102f77d"
LIBRARY = "libhdfs.so"

DEBIAN = {
    "commons-daemon.jar": "libcommons-daemon-java",
    "jersey1-core.jar": "libjersey1-core-java",
    "jersey1-server.jar": "libjersey1-server-java",
    "jersey1-servlet.jar": "libjersey1-servlet-java",
}
"""What Hadoop's servers want beside, in Debian's packages."""

SHARED = Path("/usr/share/java")
OTHERS = re.compile("spark|hive|mesos|kubernetes|datanucleus|mllib")
"""Jars of the package that HDFS has no use for."""

HADOOP = "hadoop-hdfs-2.7.3.jar"
PATIENCE = 180.0

OPENED = ("java.lang", "java.util", "java.nio", "sun.nio.ch")
"""What this Hadoop reaches into, and Java has closed since."""

PAGES = {"hdfs": "WEB-INF/web.xml", "datanode": "WEB-INF/web.xml", "static": ""}
"""Folders that its web servers, and with them WebHDFS, do not begin without."""


class HdfsError(RuntimeError):
    """HDFS cannot be built, or does not run; the message says why."""


def cache() -> Path:
    """Return the folder of the jars; it need not exist."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "shadowprice" / "hdfs" / f"{PACKAGE}-{VERSION}"


def library() -> Path:
    """Return the folder of Hadoop's library for C; it need not exist."""
    return cache().with_name(f"{SOURCES}-{SOURCES_VERSION}")


def library_missing() -> str:
    """Return why nothing can be spoken to by Hadoop's library for C; empty where it can."""
    found = library() / LIBRARY
    return "" if found.is_file() else f"{found} is missing: make hdfs, where there is a JDK"


def missing() -> str:
    """Return why no HDFS can run here; empty where one can."""
    if shutil.which("java") is None:
        return "there is no java"
    for jar, package in DEBIAN.items():
        if not (SHARED / jar).exists():
            return f"{SHARED / jar} is missing: Debian's package {package} has it"
    if not (cache() / HADOOP).is_file():
        return f"nothing is built in {cache()}: make hdfs"
    return ""


def build() -> None:
    """Fetch what is not there.

    Raises
    ------
    HdfsError
        If it cannot be had here.
    """
    if shutil.which("java") is None:
        raise HdfsError("there is no java: Debian's package default-jre-headless has it")
    packages = [package for jar, package in DEBIAN.items() if not (SHARED / jar).exists()]
    if packages:
        if shutil.which("apt-get") is None or os.geteuid() != 0:
            raise HdfsError(f"these have to be installed, by root: {', '.join(packages)}")
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        _call(["apt-get", "-qq", "update"], quiet)
        _call(["apt-get", "-qq", "install", "-y", "--no-install-recommends", *packages], quiet)
    cache().parent.mkdir(parents=True, exist_ok=True)
    if not (cache() / HADOOP).is_file():
        _keep_jars()
    if library_missing():
        _compile_library()


def _fetched(package: str, version: str, digest: str, old: str, folder: Path) -> Path:
    """Return a source package, fetched into a folder."""
    # pip asks it for its name by its setup, which wants something old.
    constraint = folder / "old.txt"
    constraint.write_text(f"{old}\n")
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    told = {"PIP_CONSTRAINT": str(constraint), "PIP_BUILD_CONSTRAINT": str(constraint)}
    _call([*words, "--no-binary", package, f"{package}=={version}"], {**os.environ, **told})
    path = folder / f"{package}-{version}.tar.gz"
    with path.open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != digest:
        raise HdfsError(f"{path.name} is another than was tried: its SHA-256 is {found}")
    return path


def _compile_library() -> None:
    java = _java()
    if not (java / "include" / "jni.h").is_file() or shutil.which("cc") is None:
        print("libhdfs is left out: it needs a C compiler, and a JDK's include/jni.h", flush=True)
        return
    with tempfile.TemporaryDirectory(dir=cache().parent) as name:
        folder = Path(name)
        print(f"Compiling libhdfs of {SOURCES} {SOURCES_VERSION}", flush=True)
        package = _fetched(SOURCES, SOURCES_VERSION, SOURCES_DIGEST, "setuptools<66", folder)
        with tarfile.open(package) as archive:
            archive.extractall(folder, filter="data")
        source = folder / f"{SOURCES}-{SOURCES_VERSION}" / "src" / "libhdfs"
        files = [source / one for one in ("hdfs.c", "jni_helper.c", "exception.c")]
        files += [source / "common" / "htable.c", *sorted((source / "os" / "posix").glob("*.c"))]
        headers = [source, source / "include", source / "include" / "hdfs", source / "common"]
        headers += [source / "os", source / "os" / "posix"]
        headers += [java / "include", java / "include" / "linux"]
        machine = java / "lib" / "server"
        kept = folder / "kept"
        kept.mkdir()
        words = ["cc", "-shared", "-fPIC", "-O2", "-w", *(f"-I{one}" for one in headers)]
        words += ["-o", str(kept / LIBRARY), *map(str, files), f"-L{machine}", "-ljvm", "-lpthread"]
        _call([*words, f"-Wl,-rpath,{machine}"])
        kept.rename(library())


def _java() -> Path:
    return Path(shutil.which("java") or "/usr/bin/java").resolve().parents[1]


def _keep_jars() -> None:
    with tempfile.TemporaryDirectory(dir=cache().parent) as name:
        folder = Path(name)
        print(f"Fetching {PACKAGE} {VERSION} (220 MB)", flush=True)
        package = _fetched(PACKAGE, VERSION, DIGEST, "pypandoc<1.8", folder)
        kept = folder / "jars"
        kept.mkdir()
        with tarfile.open(package) as archive:
            for member in archive:
                jar = Path(member.name).name
                stream = archive.extractfile(member) if jar.endswith(".jar") else None
                if stream is not None and not OTHERS.search(jar):
                    (kept / jar).write_bytes(stream.read())
        if not (kept / HADOOP).is_file():
            raise HdfsError(f"{package.name} has no {HADOOP}")
        kept.rename(cache())


def _call(words: list[str], environment: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-8:])
        raise HdfsError(f"{' '.join(words)} failed:\n{said}")


class Hdfs:
    """A NameNode and a DataNode on loopback, with nothing in them.

    Parameters
    ----------
    folder : Path
        A new one; all of it is kept there.

    Attributes
    ----------
    addresses : mapping of str to str
        A folder of it, by what it is spoken with: ``webhdfs`` and ``hdfs``.

    Raises
    ------
    HdfsError
        If it does not come up, with the end of its log.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        ports = dict(zip(("rpc", "web"), _free_ports(2), strict=True))
        self.addresses: Mapping[str, str] = {
            "webhdfs": f"webhdfs://127.0.0.1:{ports['web']}/tests",
            "hdfs": f"hdfs://127.0.0.1:{ports['rpc']}/tests",
        }
        self._settle(ports)
        try:
            self._wait(self._begin("namenode.NameNode", "-format", "-nonInteractive"))
            self._name = self._begin("namenode.NameNode")
            self._wait(self._name, "IPC Server listener")
            self._data = self._begin("datanode.DataNode")
            self._wait(self._data, "Successfully sent block report")
            self._wait(self._name, "Leaving safe mode")
        except BaseException:
            self.end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def signal(self, number: int) -> None:
        """Send the DataNode a signal: SIGSTOP has it hand out nothing."""
        self._data.send_signal(number)

    def end(self) -> None:
        """Kill both."""
        for one in self._processes:
            if one.poll() is None:
                one.send_signal(signal.SIGKILL)
            one.wait()

    def _settle(self, ports: Mapping[str, int]) -> None:
        here = "127.0.0.1"
        sites = {
            "core-site.xml": {
                "fs.defaultFS": f"hdfs://{here}:{ports['rpc']}",
                "hadoop.tmp.dir": str(self._folder / "data"),
            },
            "hdfs-site.xml": {
                "dfs.replication": "1",
                "dfs.permissions.enabled": "false",
                "dfs.namenode.http-address": f"{here}:{ports['web']}",
                "dfs.namenode.rpc-bind-host": here,
                "dfs.namenode.safemode.extension": "0",
                "dfs.namenode.datanode.registration.ip-hostname-check": "false",
                "dfs.datanode.address": f"{here}:0",
                "dfs.datanode.http.address": f"{here}:0",
                "dfs.datanode.ipc.address": f"{here}:0",
                "dfs.datanode.hostname": here,
                "dfs.webhdfs.enabled": "true",
            },
        }
        settings = self._folder / "conf"
        settings.mkdir(parents=True)
        for name, values in sites.items():
            rows = "".join(
                f"<property><name>{key}</name><value>{value}</value></property>\n"
                for key, value in values.items()
            )
            (settings / name).write_text(f"<configuration>\n{rows}</configuration>\n")
        (settings / "log4j.properties").write_text(
            "log4j.rootLogger=INFO,console\n"
            "log4j.appender.console=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.console.target=System.err\n"
            "log4j.appender.console.layout=org.apache.log4j.PatternLayout\n"
            "log4j.appender.console.layout.ConversionPattern=%p %c{1}: %m%n\n"
        )
        for name, file in PAGES.items():
            page = self._folder / "webapps" / "webapps" / name / file
            (page.parent if file else page).mkdir(parents=True, exist_ok=True)
            if file:
                page.write_text("<web-app/>\n")

    def environment(self) -> dict[str, str]:
        """Return what a process has to be told to speak to it by Hadoop's library for C."""
        told = {"ARROW_LIBHDFS_DIR": library(), "JAVA_HOME": _java(), "CLASSPATH": self._path()}
        return {name: str(value) for name, value in told.items()}

    def _path(self) -> str:
        path = [self._folder / "conf", self._folder / "webapps", *sorted(cache().glob("*.jar"))]
        path += [SHARED / jar for jar in DEBIAN]
        return ":".join(map(str, path))

    def _begin(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        opened = [
            word for one in OPENED for word in ("--add-opens", f"java.base/{one}=ALL-UNNAMED")
        ]
        log = self._folder / f"{len(self._processes)}.log"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [
                    "java", "-Xmx256m", *opened, f"-Dhadoop.home.dir={self._folder}",
                    f"-Dhadoop.log.dir={self._folder}", "-cp", self._path(),
                    f"org.apache.hadoop.hdfs.server.{name}", *words,
                ],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,  # Ctrl-C is for who tests
            )  # fmt: skip
        self._processes.append(process)
        return process

    def _wait(self, process: subprocess.Popen[bytes], line: str = "") -> None:
        """Wait until a process has written a line of its log; without one, until it has ended."""
        log = self._folder / f"{self._processes.index(process)}.log"
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            ended = process.poll()
            said = log.read_text(errors="replace")
            if line in said if line else ended == 0:
                return
            if ended is not None:
                break
            time.sleep(0.1)
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise HdfsError(f"HDFS did not come up, {line or 'its format'!r} was waited for:\n{tail}")


def _free_ports(count: int) -> list[int]:
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [one.getsockname()[1] for one in taken]
    finally:
        for one in taken:
            one.close()


def main() -> None:
    """Fetch it, or say why not."""
    parser = argparse.ArgumentParser(prog="make hdfs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say what is missing; exit 1")
    told = parser.parse_args()
    if told.check:
        why = missing()
        print(f"hdfs: {why or f'HDFS is in {cache()}'}")
        sys.exit(1 if why else 0)
    try:
        build()
    except (HdfsError, OSError) as error:
        print(f"hdfs: {error}", file=sys.stderr)
        sys.exit(2)
    print(f"hdfs: it is in {cache()}")


if __name__ == "__main__":
    main()

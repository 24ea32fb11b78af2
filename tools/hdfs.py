"""A small HDFS on this machine, for the tests of data sets: ``make hdfs``, once.

No Python or Debian registry has Hadoop, but PySpark's source package contains the jars of HDFS's
NameNode and DataNode, and Debian has the four jars that these lack. Hadoop's C library, which
pyarrow uses, is compiled from the sources in pydoop's source package. Downloads are checked by
digest, and kept in the user's cache.
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
"""Later versions of PySpark contain no HDFS servers."""

DIGEST = "3a19b71b8dc8dd91ebc943604a05e1ab01bce052456d42937035632d852d78dc"
"""SHA-256 of the source package of PySpark."""

SOURCES, SOURCES_VERSION = "pydoop", "2.0.0"
"""The package that contains the sources of libhdfs."""

SOURCES_DIGEST = "c7eb2ad8c36d2a75dc1c6cee701928334614f2e862a70798b0cb278e3102f77d"
LIBRARY = "libhdfs.so"

DEBIAN = {
    "commons-daemon.jar": "libcommons-daemon-java",
    "jersey1-core.jar": "libjersey1-core-java",
    "jersey1-server.jar": "libjersey1-server-java",
    "jersey1-servlet.jar": "libjersey1-servlet-java",
}
"""Further jars that Hadoop's servers need, with their Debian packages."""

SHARED = Path("/usr/share/java")  # folder of the jars of Debian packages
UNUSED_JARS = re.compile("spark|hive|mesos|kubernetes|datanucleus|mllib")
"""Pattern of PySpark's jars that HDFS doesn't need."""

HADOOP = "hadoop-hdfs-2.7.3.jar"
RACK = "/rack-1"
START_TIMEOUT_SECONDS = 180.0

OPENED = ("java.lang", "java.util", "java.nio", "sun.nio.ch")
"""Java packages whose internals this Hadoop uses; newer versions of Java only open them by option.
"""

PAGES = {"hdfs": "WEB-INF/web.xml", "datanode": "WEB-INF/web.xml", "static": ""}
"""Folders, with a file or none, that must exist when the servers of WebHDFS start."""


class HdfsError(RuntimeError):
    """HDFS can't be built or run, for the reason in the message."""


def cache() -> Path:
    """Return the folder of the jars, which may not exist yet."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "shadowprice" / "hdfs" / f"{PACKAGE}-{VERSION}"


def library() -> Path:
    """Return the folder of Hadoop's C library, which may not exist yet."""
    return cache().with_name(f"{SOURCES}-{SOURCES_VERSION}")


def library_missing() -> str:
    """Return why Hadoop's C library can't be used, or an empty string."""
    path = library() / LIBRARY
    return "" if path.is_file() else f"{path} is missing; install a JDK and run make hdfs"


def missing() -> str:
    """Return why HDFS can't run here, or an empty string."""
    if shutil.which("java") is None:
        return "java is not installed"
    for jar, package in DEBIAN.items():
        if not (SHARED / jar).exists():
            return f"{SHARED / jar} is missing; install Debian's package {package}"
    if not (cache() / HADOOP).is_file():
        return f"HDFS is not installed in {cache()}; run make hdfs"
    return ""


def build() -> None:
    """Download and compile what is missing. Raise HdfsError if that isn't possible here."""
    if shutil.which("java") is None:
        raise HdfsError("java is not installed; install Debian's package default-jre-headless")
    packages = [package for jar, package in DEBIAN.items() if not (SHARED / jar).exists()]
    if packages:
        if shutil.which("apt-get") is None or os.geteuid() != 0:
            raise HdfsError(f"missing packages: {', '.join(packages)}; install them as root")
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        _call(["apt-get", "-qq", "update"], quiet)
        _call(["apt-get", "-qq", "install", "-y", "--no-install-recommends", *packages], quiet)
    cache().parent.mkdir(parents=True, exist_ok=True)
    if not (cache() / HADOOP).is_file():
        _install_jars()
    if library_missing():
        _compile_library()


def _download(package: str, version: str, digest: str, constraint: str, folder: Path) -> Path:
    """Download a source package into a folder; return its path.

    pip runs the package's setup to get its name, and the setup needs the old version of another
    package that ``constraint`` names.
    """
    file = folder / "constraint.txt"
    file.write_text(f"{constraint}\n")
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    variables = {"PIP_CONSTRAINT": str(file), "PIP_BUILD_CONSTRAINT": str(file)}
    _call([*argv, "--no-binary", package, f"{package}=={version}"], {**os.environ, **variables})
    path = folder / f"{package}-{version}.tar.gz"
    with path.open("rb") as content:
        actual = hashlib.file_digest(content, "sha256").hexdigest()
    if actual != digest:
        raise HdfsError(f"{path.name}: expected SHA-256 {digest}, got {actual}")
    return path


def _compile_library() -> None:
    java = _java()
    if not (java / "include" / "jni.h").is_file() or shutil.which("cc") is None:
        print("skipping libhdfs: no C compiler, or no include/jni.h of a JDK", flush=True)
        return
    with tempfile.TemporaryDirectory(dir=cache().parent) as temporary:
        folder = Path(temporary)
        print(f"Compiling libhdfs from {SOURCES} {SOURCES_VERSION}", flush=True)
        package = _download(SOURCES, SOURCES_VERSION, SOURCES_DIGEST, "setuptools<66", folder)
        with tarfile.open(package) as archive:
            archive.extractall(folder, filter="data")
        source = folder / f"{SOURCES}-{SOURCES_VERSION}" / "src" / "libhdfs"
        files = [source / name for name in ("hdfs.c", "jni_helper.c", "exception.c")]
        files += [source / "common" / "htable.c", *sorted((source / "os" / "posix").glob("*.c"))]
        headers = [source, source / "include", source / "include" / "hdfs", source / "common"]
        headers += [source / "os", source / "os" / "posix"]
        headers += [java / "include", java / "include" / "linux"]
        jvm = java / "lib" / "server"  # folder of libjvm.so
        output = folder / "output"
        output.mkdir()
        argv = ["cc", "-shared", "-fPIC", "-O2", "-w", *(f"-I{header}" for header in headers)]
        argv += ["-o", str(output / LIBRARY), *map(str, files), f"-L{jvm}", "-ljvm", "-lpthread"]
        _call([*argv, f"-Wl,-rpath,{jvm}"])
        output.rename(library())  # at once, so that a build that failed leaves nothing


def _java() -> Path:
    return Path(shutil.which("java") or "/usr/bin/java").resolve().parents[1]


def _install_jars() -> None:
    with tempfile.TemporaryDirectory(dir=cache().parent) as name:
        folder = Path(name)
        print(f"Downloading {PACKAGE} {VERSION} (220 MB)", flush=True)
        package = _download(PACKAGE, VERSION, DIGEST, "pypandoc<1.8", folder)
        output = folder / "jars"
        output.mkdir()
        with tarfile.open(package) as archive:
            for member in archive:
                jar = Path(member.name).name
                stream = archive.extractfile(member) if jar.endswith(".jar") else None
                if stream is not None and not UNUSED_JARS.search(jar):
                    (output / jar).write_bytes(stream.read())
        if not (output / HADOOP).is_file():
            raise HdfsError(f"{package.name} has no {HADOOP}")
        output.rename(cache())


def _call(argv: list[str], environment: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-8:])
        raise HdfsError(f"{' '.join(argv)} failed:\n{tail}")


class Hdfs:
    """A NameNode and a DataNode without data on loopback, with their files in a new ``folder``.

    The DataNode is in `RACK`. `addresses` holds the URL of a folder in HDFS for each protocol,
    ``webhdfs`` and ``hdfs``. Raises HdfsError with the end of a log if a server doesn't start.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        ports = dict(zip(("rpc", "web"), _free_ports(2), strict=True))
        self.addresses: Mapping[str, str] = {
            "webhdfs": f"webhdfs://127.0.0.1:{ports['web']}/tests",
            "hdfs": f"hdfs://127.0.0.1:{ports['rpc']}/tests",
        }
        self._configure(ports)
        try:
            self._wait(self._start("namenode.NameNode", "-format", "-nonInteractive"))
            self._name_node = self._start("namenode.NameNode")
            self._wait(self._name_node, "IPC Server listener")
            self._data_node = self._start("datanode.DataNode")
            self._wait(self._data_node, "Successfully sent block report")
            self._wait(self._name_node, "Leaving safe mode")
        except BaseException:
            self.end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def signal(self, number: int) -> None:
        """Send a signal to the DataNode; SIGSTOP keeps it from serving data."""
        self._data_node.send_signal(number)

    def end(self) -> None:
        """Kill both servers."""
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()

    def _configure(self, ports: Mapping[str, int]) -> None:
        here = "127.0.0.1"
        racks = self._folder / "racks"
        sites = {
            "core-site.xml": {
                "fs.defaultFS": f"hdfs://{here}:{ports['rpc']}",
                "hadoop.tmp.dir": str(self._folder / "data"),
                "net.topology.node.switch.mapping.impl": "org.apache.hadoop.net.TableMapping",
                "net.topology.table.file.name": str(racks),
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
        racks.write_text(f"{here} {RACK}\n")
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
        """Return the environment of a process that uses Hadoop's C library."""
        variables = {
            "ARROW_LIBHDFS_DIR": library(),
            "JAVA_HOME": _java(),
            "CLASSPATH": self._class_path(),
        }
        return {name: str(value) for name, value in variables.items()}

    def _class_path(self) -> str:
        path = [self._folder / "conf", self._folder / "webapps", *sorted(cache().glob("*.jar"))]
        path += [SHARED / jar for jar in DEBIAN]
        return ":".join(map(str, path))

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        opened = [
            word
            for package in OPENED
            for word in ("--add-opens", f"java.base/{package}=ALL-UNNAMED")
        ]
        log = self._folder / f"{len(self._processes)}.log"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [
                    "java", "-Xmx256m", *opened, f"-Dhadoop.home.dir={self._folder}",
                    f"-Dhadoop.log.dir={self._folder}", "-cp", self._class_path(),
                    f"org.apache.hadoop.hdfs.server.{name}", *arguments,
                ],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,  # so that Ctrl-C only reaches the tests
            )  # fmt: skip
        self._processes.append(process)
        return process

    def _wait(self, process: subprocess.Popen[bytes], line: str = "") -> None:
        """Wait for a line in a process's log, or for its success if ``line`` is empty."""
        log = self._folder / f"{self._processes.index(process)}.log"
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            status = process.poll()  # before the log is read, which is then complete
            text = log.read_text(errors="replace")
            if line in text if line else status == 0:
                return
            if status is not None:
                break
            time.sleep(0.1)
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        missing_line = line or "the end of the format command"
        raise HdfsError(f"HDFS did not start; waited for {missing_line!r}:\n{tail}")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [server.getsockname()[1] for server in sockets]
    finally:
        for server in sockets:
            server.close()


def main() -> None:
    """Install HDFS, or print why it can't be installed."""
    parser = argparse.ArgumentParser(prog="make hdfs", description=__doc__)
    parser.add_argument(
        "--check",
        action="store_true",
        help="only print what is missing; exit with 1 if anything is",
    )
    options = parser.parse_args()
    if options.check:
        reason = missing()
        print(f"hdfs: {reason or f'installed in {cache()}'}")
        sys.exit(1 if reason else 0)
    try:
        build()
    except (HdfsError, OSError) as error:
        print(f"hdfs: {error}", file=sys.stderr)
        sys.exit(2)
    print(f"hdfs: installed in {cache()}")


if __name__ == "__main__":
    main()

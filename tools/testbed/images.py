"""Container images of the testbed: the pause process, and busybox for jobs."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

from tools.testbed.places import program

PAUSE = "shadowprice.test/pause:1"
BASE = "shadowprice.test/base:1"
"""An image of busybox: ``/bin/sh`` and its tools."""


def _file(
    archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644, link: str = ""
) -> None:
    entry = tarfile.TarInfo(name)
    entry.mode = mode
    if link:
        entry.type, entry.linkname = tarfile.SYMTYPE, link
        content = b""
    elif name.endswith("/"):
        entry.type, entry.name = tarfile.DIRTYPE, name.rstrip("/")
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def _pause() -> bytes:
    rootfs = io.BytesIO()
    with tarfile.open(fileobj=rootfs, mode="w") as archive:
        _file(archive, "pause", Path(program("pause")).read_bytes(), 0o755)
    return rootfs.getvalue()


def _base() -> bytes:
    busybox = program("busybox")
    names = subprocess.run([busybox, "--list"], capture_output=True, check=True, text=True).stdout
    rootfs = io.BytesIO()
    with tarfile.open(fileobj=rootfs, mode="w") as archive:
        for folder in ("bin/", "etc/", "root/", "home/", "var/", "dev/", "proc/", "sys/"):
            _file(archive, folder, b"", 0o755)
        _file(archive, "tmp/", b"", 0o1777)
        _file(archive, "bin/busybox", Path(busybox).read_bytes(), 0o755)
        for name in names.split():
            if name != "busybox":
                _file(archive, f"bin/{name}", b"", 0o777, "busybox")
        users = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/home:/bin/sh\n"
        _file(archive, "etc/passwd", users.encode())
        _file(archive, "etc/group", b"root:x:0:\nnogroup:x:65534:\n")
    return rootfs.getvalue()


def _image(name: str, rootfs: bytes, command: list[str]) -> bytes:
    """Return an image archive in the format of ``docker save``, for containerd."""
    layer = hashlib.sha256(rootfs).hexdigest()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Cmd": command, "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer}"]},
        }
    ).encode()
    digest = hashlib.sha256(config).hexdigest()
    manifest = [{"Config": f"{digest}.json", "RepoTags": [name], "Layers": [f"{layer}/layer.tar"]}]
    image = io.BytesIO()
    with tarfile.open(fileobj=image, mode="w") as archive:
        _file(archive, f"{digest}.json", config)
        _file(archive, f"{layer}/layer.tar", rootfs)
        _file(archive, "manifest.json", json.dumps(manifest).encode())
    return image.getvalue()


def write(folder: Path) -> tuple[Path, ...]:
    """Write the archives of the images that every node loads; return their paths."""
    written = []
    for name, content in (
        ("pause.tar", _image(PAUSE, _pause(), ["/pause"])),
        ("base.tar", _image(BASE, _base(), ["/bin/sh"])),
    ):
        path = folder / name
        path.write_bytes(content)
        written.append(path)
    return tuple(written)


def host_python(*more: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the volumes and mounts with which a pod of `BASE` runs this interpreter.

    The folders of the interpreter, its packages, this repository, the system's libraries, and the
    folders ``more`` are mounted read-only, at the same paths as on this machine.
    """
    needed = [Path(sys.prefix), Path(sys.base_prefix), Path(__file__).resolve().parents[2]]
    needed += [folder for folder in map(Path, ("/usr", "/lib", "/lib64")) if folder.is_dir()]
    volumes: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []
    folders = sorted({*needed, *(folder.absolute() for folder in more)})
    for folder in folders:
        if any(other in folder.parents for other in folders):
            continue  # inside of another mount
        name = f"host-{len(volumes)}"
        volumes.append({"name": name, "hostPath": {"path": str(folder), "type": "Directory"}})
        mounts.append({"name": name, "mountPath": str(folder), "readOnly": True})
    return volumes, mounts

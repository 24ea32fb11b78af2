"""Builds the service's image from its Containerfile: ``make test SUITE=image``.

`buildah` runs every step of ``deploy/container/Containerfile`` without a registry. The base image
is a small root of Debian with its Python, made by `mmdebstrap`. The packages are wheels that this
machine's pip downloaded, so the steps need no network. The image is reused until one of its files
changes.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tools.testbed.build import SUITE, check, install, say
from tools.testbed.places import TestbedError, cache

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "deploy" / "container" / "Containerfile"
NAME = "shadowprice.test/shadowprice:built"
PACKAGES = ("buildah", "mmdebstrap")
INCLUDED = ("ca-certificates", "python-is-python3", "python3", "python3-venv")
"""Debian packages of the base image, besides the essential ones."""

_COPIED = ("pyproject.toml", "constraints.txt", "LICENSE", "README.md")
_BASE = "localhost/python:base"


def archive() -> Path:
    """Return the path of the image for the current files; it may not exist yet."""
    key = hashlib.sha256("\n".join((NAME, *INCLUDED)).encode())
    files = [RECIPE, *(ROOT / name for name in _COPIED)]
    files += sorted(path for path in (ROOT / "src").rglob("*") if path.is_file())
    for file in files:
        if "__pycache__" not in file.parts:
            key.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return cache() / f"service-{key.hexdigest()[:16]}.tar"


def _call(*words: str) -> str:
    done = subprocess.run(
        list(words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-15:])
        raise TestbedError(f"{' '.join(words)} failed:\n{tail}")
    return done.stdout.strip()


class _Store:
    """Calls `buildah` with images in a separate folder, not among the machine's images."""

    def __init__(self, folder: Path) -> None:
        self._words = ["buildah", "--storage-driver", "vfs"]
        self._words += ["--root", str(folder / "store"), "--runroot", str(folder / "run")]

    def __call__(self, *words: str) -> str:
        return _call(*self._words, *words)

    def base(self, root: Path) -> None:
        """Build the base image of the recipe."""
        container = self("from", "scratch")
        self("add", container, str(root), "/")
        self("commit", "--rm", container, _BASE)

    def build(self, volumes: Sequence[tuple[Path, str]], to: Path) -> None:
        """Run the recipe and write the image."""
        words = ["build", "--isolation", "chroot", "--layers=false", "--pull-never"]
        words += ["--build-arg", f"PYTHON={_BASE}", "-f", str(RECIPE), "-t", NAME]
        for source, target in volumes:
            words += ["--volume", f"{source}:{target}:ro"]
        self(*words, str(ROOT))
        self("push", "--quiet", NAME, f"docker-archive:{to}:{NAME}")


def build() -> Path:
    """Build the image unless it exists; return its path.

    Raises
    ------
    TestbedError
        If it can't be built here.
    """
    image = archive()
    if image.is_file():
        say(f"the image is built: {image}")
        return image
    check()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="image-", dir=cache()) as temporary:
        folder = Path(temporary)
        install(cache() / "image.log", PACKAGES)
        root, wheels = cache() / "base.tar", folder / "wheels"
        if not root.is_file():
            say(f"creating a root of Debian {SUITE} with its Python")
            new_root = folder / root.name
            included = f"--include={','.join(INCLUDED)}"
            _call("mmdebstrap", "--quiet", "--variant=minbase", included, SUITE, str(new_root))
            new_root.rename(root)
        say("downloading packages")
        requirements = [f"{ROOT}[service,kubernetes]", "hatchling>=1.27"]
        constraint = str(ROOT / "constraints.txt")
        pip = [sys.executable, "-m", "pip", "wheel", "--constraint", constraint]
        _call(*pip, "--wheel-dir", str(wheels), *requirements)
        config = folder / "pip.conf"
        config.write_text("[global]\nno-index = true\nfind-links = /wheels\n", encoding="utf-8")
        store = _Store(folder)
        store.base(root)
        say(f"building {RECIPE.relative_to(ROOT)}; compiling the kernels takes minutes")
        new_image = folder / image.name
        store.build([(wheels, "/wheels"), (config, "/etc/pip.conf")], new_image)
        for old in cache().glob("service-*.tar"):
            old.unlink()
        shutil.move(new_image, image)
    say(f"built in {time.monotonic() - began:.0f} s, {image.stat().st_size >> 20} MiB: {image}")
    return image


if __name__ == "__main__":
    try:
        build()
    except (TestbedError, OSError) as error:
        print(f"image: {error}", file=sys.stderr)
        sys.exit(2)

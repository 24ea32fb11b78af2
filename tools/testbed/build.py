"""Build the programs of the testbed: ``make testbed``, once.

Kubernetes comes from Debian's source package and is built with its own ``make``; etcd, containerd,
runc and the plugins of pod networks are Debian's packages. Except for installed packages, the build
leaves the system unchanged: apt downloads the source with a separate configuration.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tools.testbed.places import (
    BUILT,
    MANIFEST,
    OWN,
    VERSION,
    TestbedError,
    cache,
    digest,
    manifest,
)

SUITE = "bookworm"
PACKAGES = (
    "busybox-static", "containerd", "containernetworking-plugins", "dpkg-dev", "etcd-server", "gcc",
    "golang-github-modern-go-reflect2-dev", "golang-go", "iproute2", "iptables", "jq", "libc6-dev",
    "make", "mount", "openssl", "rsync", "runc", "util-linux",
)  # fmt: skip
FLAGS = "-tags=providerless"
"""Excludes the code of cloud providers, a third of the compilation."""

HOLLOW = Path(__file__).parent / "hollow_nodes" / "main.go"
REFLECT = "github.com/modern-go/reflect2"
"""A library that Kubernetes vendors in a version that crashes with Go 1.18 and later: the API
server ends at the first custom resource. Debian's package has the next version.
"""

MIN_FREE_BYTES = 8 << 30
"""Disk space that the build needs; most of it is freed at the end."""


def say(text: str) -> None:
    """Print a progress message."""
    print(f"testbed: {text}", flush=True)


def recipe() -> dict[str, object]:
    """Return the inputs of the build, as recorded in the manifest."""
    return {
        "version": VERSION,
        "flags": FLAGS,
        "programs": list(BUILT + OWN),
        "hollow": digest(HOLLOW),
        "reflect2": "1.0.2",
    }


def faults() -> list[str]:
    """Return what is wrong with the cached build; empty if it is complete and current."""
    built = manifest()
    if not built:
        return ["nothing is built"]
    if built.get("recipe") != recipe():
        return ["the build has other inputs, such as another version"]
    problems = []
    for name, expected in built["digests"].items():
        path = cache() / name
        if not path.is_file():
            problems.append(f"{name} is missing")
        elif digest(path) != expected:
            problems.append(f"{name} has changed since the build")
    return problems


def _call(words: Sequence[str], log: Path, cwd: Path | None = None, **env: str) -> None:
    with log.open("ab") as stream:
        done = subprocess.run(
            list(words),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", **env},
            check=False,
        )
    if done.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise TestbedError(f"{' '.join(words)} failed, see {log}:\n{tail}")


def check() -> None:
    """Check that this machine can build.

    Raises
    ------
    TestbedError
        If it can't; with the reason.
    """
    if not sys.platform.startswith("linux") or shutil.which("apt-get") is None:
        raise TestbedError("apt-get is not installed; building needs Debian's packages")
    release = Path("/etc/os-release").read_text(encoding="utf-8")
    if f"VERSION_CODENAME={SUITE}" not in release:
        raise TestbedError(f"building needs Debian 12 ({SUITE}); this is another system")
    if os.geteuid() != 0:
        raise TestbedError("installing packages needs root; run make testbed as root")
    cache().mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache()).free
    if free < MIN_FREE_BYTES:
        needed = MIN_FREE_BYTES >> 30
        raise TestbedError(f"{cache()} has {free >> 30} GiB free; building needs {needed} GiB")


def install(log: Path, packages: Sequence[str] = PACKAGES) -> None:
    """Install the missing Debian packages."""
    status = subprocess.run(
        ["dpkg-query", "-W", "-f", "${binary:Package} ${db:Status-Status}\n", *packages],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    installed = {
        line.split()[0].partition(":")[0]
        for line in status.splitlines()
        if line.endswith(" installed")
    }
    missing = [name for name in packages if name not in installed]
    if not missing:
        return
    say(f"installing {', '.join(missing)}")
    _call(["apt-get", "-q", "update"], log)
    _call(["apt-get", "-q", "install", "-y", "--no-install-recommends", *missing], log)


def fetch(work: Path, log: Path) -> Path:
    """Download and unpack the source package unless it exists; return its folder."""
    folders = sorted(work.glob("kubernetes-*/"))
    if folders:
        return folders[0]
    say("fetching the source package (15 MB)")
    targets = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    uris = sorted({target.split()[0] for target in targets if target.endswith(f" {SUITE} main")})
    if not uris:
        raise TestbedError(f"apt-get has no source for {SUITE} main")
    # With a separate configuration, this machine's package sources stay unchanged.
    (work / "sources").mkdir(exist_ok=True)
    (work / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    (work / "sources" / "source.sources").write_text(
        f"Types: deb-src\nURIs: {uris[0]}\nSuites: {SUITE}\nComponents: main\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
    )
    own = [
        "-o", "Dir::Etc::SourceList=/dev/null", "-o", f"Dir::Etc::SourceParts={work}/sources",
        "-o", f"Dir::State::Lists={work}/lists", "-o", "APT::Sandbox::User=root",
    ]  # fmt: skip
    _call(["apt-get", "-q", *own, "update"], log)
    _call(["apt-get", "-q", *own, "source", "kubernetes"], log, work)
    folders = sorted(work.glob("kubernetes-*/"))
    if not folders or VERSION not in folders[0].name:
        raise TestbedError(f"Debian's source package: expected Kubernetes {VERSION}, got {folders}")
    return folders[0]


def compile_all(source: Path, work: Path, log: Path) -> None:
    """Build every program, and copy each to the cache as soon as it is built."""
    # Go finds the sources by their import path below GOPATH, so a link makes them appear there.
    import_path = source / ".go" / "src" / "k8s.io" / "kubernetes"
    import_path.parent.mkdir(parents=True, exist_ok=True)
    if not import_path.is_symlink():
        import_path.symlink_to("../../..")
    _replace_library(source / "vendor" / REFLECT)
    (source / "cmd" / "hollow-nodes").mkdir(exist_ok=True)
    shutil.copy(HOLLOW, source / "cmd" / "hollow-nodes" / "main.go")
    version = work / "version"
    version.write_text(
        f"KUBE_GIT_COMMIT='debian'\nKUBE_GIT_TREE_STATE='archive'\nKUBE_GIT_VERSION='v{VERSION}'\n"
        "KUBE_GIT_MAJOR='1'\nKUBE_GIT_MINOR='20'\n"
    )
    home = work / "home"
    home.mkdir(exist_ok=True)
    for name in (*BUILT, "hollow-nodes"):
        say(f"building {name}")
        began = time.monotonic()
        _call(
            ["make", f"WHAT=cmd/{name}"],
            log,
            import_path,
            GOPATH=str(source / ".go"),
            CGO_ENABLED="0",
            GOFLAGS=FLAGS,
            HOME=str(home),
            KUBE_GIT_VERSION_FILE=str(version),
        )
        _install(source / "_output" / "bin" / name)
        say(f"built {name} in {time.monotonic() - began:.0f} s")
    pause = work / "pause"
    _call(["gcc", "-Os", "-static", "-o", str(pause), "build/pause/linux/pause.c"], log, source)
    _install(pause)


def _replace_library(vendored: Path) -> None:
    """Replace a vendored library by Debian's version."""
    packaged = Path("/usr/share/gocode/src") / REFLECT
    for old in (*vendored.glob("*.go"), *vendored.glob("*.s")):
        old.unlink()
    for new in (*packaged.glob("*.go"), *packaged.glob("*.s")):
        if not new.name.endswith("_test.go"):
            shutil.copy(new, vendored)


def _install(built: Path) -> None:
    """Copy a program to the cache atomically."""
    temporary = cache() / f".{built.name}"
    shutil.copy(built, temporary)
    temporary.chmod(0o755)
    temporary.rename(cache() / built.name)


def build(*, keep: bool = False) -> None:
    """Build all missing programs.

    Parameters
    ----------
    keep : bool
        Whether to keep sources and the compiler's cache, for faster builds later.

    Raises
    ------
    TestbedError
        If it can't be built here.
    """
    problems = faults()
    if not problems:
        say(f"Kubernetes {VERSION} is built and complete: {cache()}")
        return
    check()
    say(f"{'; '.join(problems)}: building Kubernetes {VERSION} in {cache()}, ten to thirty minutes")
    began = time.monotonic()
    work = cache() / "work"
    work.mkdir(exist_ok=True)
    log = cache() / "build.log"
    install(log)
    compile_all(fetch(work, log), work, log)
    seconds = round(time.monotonic() - began)
    digests = {name: digest(cache() / name) for name in BUILT + OWN}
    content = {"recipe": recipe(), "seconds": seconds, "digests": digests}
    temporary = cache() / f".{MANIFEST}"
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.rename(cache() / MANIFEST)
    if not keep:
        # Go makes its caches read-only.
        subprocess.run(["chmod", "-R", "u+w", str(work)], check=False)
        shutil.rmtree(work)
    say(f"built in {seconds // 60} min {seconds % 60} s: {cache()}")


def main() -> None:
    """Build the testbed, or print why it can't be built."""
    parser = argparse.ArgumentParser(prog="make testbed", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="keep sources and compiler's cache")
    parser.add_argument(
        "--check", action="store_true", help="only print what is wrong; exit with 1 if anything is"
    )
    options = parser.parse_args()
    if options.check:
        problems = faults()
        say("; ".join(problems) or f"Kubernetes {VERSION} is built and complete: {cache()}")
        sys.exit(1 if problems else 0)
    try:
        build(keep=options.keep)
    except (TestbedError, OSError) as error:
        print(f"testbed: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()

"""``kubectl shadowprice``: the commands of the live service for people who have a kubeconfig.

The service is reached by a port that `kubectl` forwards, names are those of TrainingJobs, and files
are manifests. What is said is what ``shadowprice`` says.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

from shadowprice.core.errors import Fault, InputError, ShadowpriceError
from shadowprice.core.wording import closest, escaped, shown

OF_JOBS: Final = ("explain", "status", "logs")
"""Commands whose first word is a TrainingJob."""

OTHERS: Final = ("quote", "prices", "queue", "nodes", "events", "top", "tokens", "budget")
"""Commands that are handed on, `quote` with manifests for job files."""

COMMANDS: Final = (*OF_JOBS, *OTHERS, "crd")

HELP: Final = f"""\
kubectl shadowprice [-n NAMESPACE] [OPTIONS] COMMAND ...

  explain JOB      tell a TrainingJob's story: why, when, where
  status JOB       where one is
  logs JOB         what its processes write (-f follows)
  quote FILE...    what would become of the TrainingJobs of manifests, if applied
  prices           what servers cost in slots to come
  queue, nodes     what runs and waits; servers
  events, top      follow what happens
  tokens, budget   who may, and what tenants may spend
  crd              the definition of TrainingJob that this cluster's API server understands

Options
  -n, --namespace  where the TrainingJobs are; by default the context's
  --kubeconfig, --context   as of kubectl
  --service NAMESPACE/NAME  the service; by default {"shadowprice/shadowprice"}
  --server URL     the service's address, where it need not be forwarded

The token is $SHADOWPRICE_TOKEN, else that of the secret NAME-token beside the service, for those
who may read it. Words after the command are those of `shadowprice COMMAND --help`.
"""

OPTIONS: Final = ("-n", "--namespace", "--kubeconfig", "--context", "--service", "--server")

WITH_VALUES: Final = frozenset({"--only", "-s", "--server", "-o", "--output"})
"""Options of `quote` whose next word is no file."""

_LOGGED: Final = re.compile(r"[EWIF]\d{4} [\d:.]+ ")
"""How a line of the log begins that its library writes beside what it says."""
_FORWARDED: Final = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+)")


class KubectlError(ShadowpriceError):
    """`kubectl` refused."""

    code = "kubernetes"
    exit_code = 2


@dataclass(slots=True)
class Asked:
    """What the command line says.

    Parameters
    ----------
    kubectl : list of str
        Options that every call of `kubectl` gets.
    namespace : str
        Where resources are; empty for the context's.
    service : str
        Namespace and name of the service.
    server : str
        Its address, empty where it is forwarded.
    words : list of str
        The command, and what follows it.
    """

    kubectl: list[str] = field(default_factory=list)
    namespace: str = ""
    service: str = "shadowprice/shadowprice"
    server: str = ""
    words: list[str] = field(default_factory=list)


def read_words(words: Sequence[str]) -> Asked:
    """Return what a command line says.

    Raises
    ------
    InputError
        If it names no command, or an unknown option.
    """
    asked = Asked()
    left = list(words)
    while left and left[0].startswith("-"):
        option, equals, value = left.pop(0).partition("=")
        if option not in OPTIONS:
            raise InputError(Fault(option, "is no option here", "see kubectl shadowprice --help"))
        if not equals:
            if not left:
                raise InputError(Fault(option, "says nothing", f"write {option}=..."))
            value = left.pop(0)
        match option:
            case "-n" | "--namespace":
                asked.namespace = value
            case "--service":
                asked.service = value
            case "--server":
                asked.server = value
            case _:
                asked.kubectl.append(f"{option}={value}")
    if not left or left[0] not in COMMANDS:
        name = left[0] if left else ""
        close = closest(name, COMMANDS)
        hint = f"did you mean {close!r}?" if close else f"one of: {', '.join(COMMANDS)}"
        raise InputError(Fault("kubectl shadowprice", f"no command {shown(name)}", hint))
    if not re.fullmatch(r"[a-z0-9-]+/[a-z0-9-]+", asked.service):
        raise InputError(Fault("--service", f"{shown(asked.service)} is none", "NAMESPACE/NAME"))
    asked.words = left
    return asked


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the files that `quote` is given, and its options with their values."""
    files: list[str] = []
    options: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if not word.startswith("-") or word == "-":
            files.append(word)
            continue
        options.append(word)
        if word in WITH_VALUES and left:
            options.append(left.pop(0))
    return files, options


class Kubectl:
    """Calls `kubectl`, as it would be called here."""

    def __init__(self, asked: Asked) -> None:
        program = os.environ.get("KUBECTL") or shutil.which("kubectl")
        if program is None:
            raise InputError(Fault("kubectl", "is not found", "put it on the PATH"))
        self.words = [program, *asked.kubectl]
        self._namespace = [f"--namespace={asked.namespace}"] if asked.namespace else []

    def ask(self, *words: str, given: str | None = None, here: bool = True) -> str:
        """Return what it says.

        Raises
        ------
        KubectlError
            If it refuses, in its words.
        """
        done = subprocess.run(
            [*self.words, *(self._namespace if here else ()), *words],
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise KubectlError(f"kubectl: {_in_short(done.stderr)}")
        return done.stdout

    def job(self, name: str) -> str:
        """Return what the service calls the job of a TrainingJob."""
        found = json.loads(self.ask("get", "trainingjobs.shadowprice.io", "-o", "json", "--", name))
        job = found.get("status", {}).get("job")
        if not job:
            raise KubectlError(f"TrainingJob {name} is not followed yet; is the service running?")
        return str(job)

    def manifests(self, files: Sequence[str]) -> list[dict[str, Any]]:
        """Return the jobs of manifests, checked by the API server, nothing of them applied."""
        jobs = []
        for file in files:
            told = self.ask("create", "--dry-run=client", "-o", "json", "-f", file)
            for item in _documents(told):
                if item.get("kind") != "TrainingJob":
                    kind = item.get("kind")
                    raise InputError(Fault(file, f"holds a {kind}", "leave TrainingJobs in it"))
                jobs.append({**item["spec"], "name": item["metadata"]["name"]})
        return jobs

    def token(self, service: str) -> str:
        """Return the operator's token, for those who may read it."""
        namespace, _, name = service.partition("/")
        secret = f"{name}-token"
        try:
            told = self.ask(
                f"--namespace={namespace}", "get", "secret", secret, "-o", "json", here=False
            )
            data: Mapping[str, str] = json.loads(told)["data"]
            return base64.b64decode(data["token"]).decode()
        except (KubectlError, KeyError, ValueError) as error:
            raise InputError(
                Fault("$SHADOWPRICE_TOKEN", f"is not set, and {error}", "ask for a token")
            ) from error

    @contextmanager
    def forwarded(self, service: str) -> Iterator[str]:
        """Yield the address of a service, forwarded for as long as the block lasts.

        Raises
        ------
        KubectlError
            If it cannot be.
        """
        namespace, _, name = service.partition("/")
        words = [f"--namespace={namespace}", "port-forward", f"service/{name}", ":80"]
        with tempfile.TemporaryFile("w+") as said:
            process = subprocess.Popen(
                [*self.words, *words],
                stdout=subprocess.PIPE,
                stderr=said,
                stdin=subprocess.DEVNULL,
                text=True,
            )
            assert process.stdout is not None
            try:
                found = _FORWARDED.search(process.stdout.readline())
                if found is None:
                    process.wait(10)
                    said.seek(0)
                    raise KubectlError(f"kubectl: {_in_short(said.read())}")
                yield f"http://127.0.0.1:{found[1]}"
            finally:
                process.terminate()
                process.wait()
                process.stdout.close()


def _in_short(said: str) -> str:
    """Return what `kubectl` says as one line, without the log of its library."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    told = [line for line in lines if not _LOGGED.match(line)] or lines
    return escaped("; ".join(told))[:1_000]


def _documents(text: str) -> Iterator[dict[str, Any]]:
    """Yield the objects that `kubectl` wrote one after the other."""
    decoder = json.JSONDecoder()
    text = text.strip()
    while text:
        found, end = decoder.raw_decode(text)
        yield from found["items"] if found.get("kind") == "List" else [found]
        text = text[end:].lstrip()


def definition_for(kubectl: Kubectl) -> str:
    """Return the definition that an API server understands, by what it publishes of itself."""
    from shadowprice.kubernetes.definition import definition, knows_rules, written

    published = json.loads(kubectl.ask("get", "--raw", "/openapi/v2", here=False))
    return written(definition(rules=knows_rules(published)))


def main(words: Sequence[str]) -> int:
    """Run one command and return its exit status, as ``shadowprice`` does."""
    from shadowprice.cli import main as commands

    if not words or words[0] in {"-h", "--help"}:
        sys.stdout.write(HELP)
        return 0
    try:
        asked = read_words(words)
        kubectl = Kubectl(asked)
        if asked.words[0] == "crd":
            sys.stdout.write(definition_for(kubectl))
            return 0
        return _handed_on(asked, kubectl, commands.main)
    except ShadowpriceError as error:
        with suppress(OSError):
            print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def _handed_on(asked: Asked, kubectl: Kubectl, run: Any) -> int:
    command, *rest = asked.words
    with tempfile.TemporaryDirectory() as folder:
        if not {"-h", "--help"} & set(rest):
            if command in OF_JOBS and rest and not rest[0].startswith("-"):
                rest[0] = kubectl.job(rest[0])
            elif command == "quote":
                files, options = split(rest)
                path = Path(folder) / "manifests.jsonl"
                lines = map(json.dumps, kubectl.manifests(files))
                path.write_text("".join(f"{line}\n" for line in lines))
                rest = [*options, str(path)]
            if not os.environ.get("SHADOWPRICE_TOKEN"):
                os.environ["SHADOWPRICE_TOKEN"] = kubectl.token(asked.service)
        else:
            return int(run([command, *rest]))
        if asked.server:
            os.environ["SHADOWPRICE_SERVER"] = asked.server
            return int(run([command, *rest]))
        with kubectl.forwarded(asked.service) as address:
            os.environ["SHADOWPRICE_SERVER"] = address
            return int(run([command, *rest]))


def run() -> NoReturn:
    """Run the plugin; the entry point that the package installs."""
    sys.exit(main(sys.argv[1:]))

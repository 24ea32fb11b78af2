"""``kubectl shadowprice``: commands of the live service for users with a kubeconfig.

The service is reached through a port that `kubectl` forwards. Names are those of TrainingJobs, and
files are manifests. Output is that of ``shadowprice``.
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
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, Final, NoReturn

from shadowprice.cli.program import called_program
from shadowprice.core.errors import Fault, InputError, ShadowpriceError
from shadowprice.core.wording import escape_controls, hint_for_unknown, quote_for_display

PROGRAM: Final = "kubectl shadowprice"  # the name in hints

JOB_COMMANDS: Final = ("explain", "status", "logs")
"""Commands whose argument is a TrainingJob."""

OTHERS: Final = ("quote", "prices", "queue", "nodes", "events", "top", "tokens", "budget")
"""Other commands of ``shadowprice``. Here, `quote` takes manifests instead of job files."""

COMMANDS: Final = (*JOB_COMMANDS, *OTHERS, "crd")

HELP: Final = """\
kubectl shadowprice [-n NAMESPACE] [OPTIONS] COMMAND ...

  explain JOB      show a TrainingJob's history and decisions
  status JOB       show the status of a TrainingJob
  logs JOB         print the output of a TrainingJob's processes (-f follows)
  quote FILE...    query the promises of the TrainingJobs in manifests without applying them
  prices           show prices of servers in the next slots
  queue, nodes     list running and waiting jobs; list servers
  events, top      stream events; show the service on one screen
  tokens, budget   list, issue and revoke tokens; show and change budgets of tenants
  crd              print the TrainingJob definition for this cluster's API server

Options
  -n, --namespace  namespace of the TrainingJobs; by default the context's
  --kubeconfig, --context   as in kubectl
  --service NAMESPACE/NAME  Kubernetes Service of Shadowprice; by default shadowprice/shadowprice
  --server URL     URL of the service, instead of a forwarded port

The token is $SHADOWPRICE_TOKEN, else that of the secret NAME-token in the service's namespace, if
you can read it. Arguments after the command are those of `shadowprice COMMAND --help`.
"""

OPTIONS: Final = ("-n", "--namespace", "--kubeconfig", "--context", "--service", "--server")

WITH_VALUES: Final = frozenset(
    {"--only", "-s", "--server", "-o", "--output", "--process", "-g", "--generation"}
)
"""Options of `quote` and `JOB_COMMANDS` that take the next argument as their value."""

_LOG_PREFIX: Final = re.compile(r"[EWIF]\d{4} [\d:.]+ ")
"""Prefix of log lines that `kubectl`'s library writes to stderr."""
_FORWARDED: Final = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+)")


class KubectlError(ShadowpriceError):
    """`kubectl` failed."""

    code = "kubernetes"
    exit_code = 2


@dataclass(slots=True)
class PluginCall:
    """Parsed command line."""

    kubectl: list[str] = field(default_factory=list)  # options for every call of `kubectl`
    namespace: str = ""  # namespace of the TrainingJobs; empty for the context's
    service: str = "shadowprice/shadowprice"  # NAMESPACE/NAME
    server: str = ""  # URL; empty to forward a port
    words: list[str] = field(default_factory=list)  # the command and its arguments


def parse_call(words: Sequence[str]) -> PluginCall:
    """Parse a command line."""
    call = PluginCall()
    remaining = list(words)
    while remaining and remaining[0].startswith("-"):
        option, equals, value = remaining.pop(0).partition("=")
        if option not in OPTIONS:
            raise InputError(Fault(option, "unknown option", "see kubectl shadowprice --help"))
        if not equals:
            if not remaining:
                raise InputError(Fault(option, "requires a value", f"write {option}=..."))
            value = remaining.pop(0)
        match option:
            case "-n" | "--namespace":
                call.namespace = value
            case "--service":
                call.service = value
            case "--server":
                call.server = value
            case _:
                call.kubectl.append(f"{option}={value}")
    if not remaining or remaining[0] not in COMMANDS:
        name = remaining[0] if remaining else ""
        hint = hint_for_unknown(name, COMMANDS)
        fault = Fault("kubectl shadowprice", f"no command {quote_for_display(name)}", hint)
        raise InputError(fault)
    if not re.fullmatch(r"[a-z0-9-]+/[a-z0-9-]+", call.service):
        raise InputError(
            Fault("--service", f"expected NAMESPACE/NAME, got {quote_for_display(call.service)}")
        )
    call.words = remaining
    return call


def split_arguments(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split arguments into names (jobs or files), and options with their values."""
    names: list[str] = []
    options: list[str] = []
    remaining = list(words)
    while remaining:
        argument = remaining.pop(0)
        if not argument.startswith("-") or argument == "-":
            names.append(argument)
            continue
        options.append(argument)
        # In a word of several short options, such as -fg, only the last one takes the next word.
        option = argument if argument.startswith("--") else f"-{argument[-1]}"
        if option in WITH_VALUES and remaining:
            options.append(remaining.pop(0))
    return names, options


class Kubectl:
    """Runs `kubectl` with the options of the command line."""

    def __init__(self, call: PluginCall) -> None:
        name = os.environ.get("KUBECTL") or "kubectl"
        program = shutil.which(name)
        if program is None:
            raise InputError(Fault(name, "is not found", "put it on the PATH"))
        self.words = [program, *call.kubectl]
        self._namespace = [f"--namespace={call.namespace}"] if call.namespace else []

    def run(self, *words: str, in_namespace: bool = True, reads_stdin: bool = False) -> str:
        """Run `kubectl` and return its stdout; ``in_namespace`` adds the namespace option."""
        process = subprocess.run(
            [*self.words, *(self._namespace if in_namespace else ()), *words],
            stdin=None if reads_stdin else subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
        if process.returncode:
            raise KubectlError(f"kubectl: {_error_line(process.stderr)}")
        return process.stdout

    def job(self, name: str) -> str:
        """Return the service's name for the job of a TrainingJob."""
        resource = json.loads(
            self.run("get", "trainingjobs.shadowprice.io", "-o", "json", "--", name)
        )
        job = resource.get("status", {}).get("job")
        if not job:
            raise KubectlError(f"TrainingJob {name} has no job yet; is the service running?")
        return str(job)

    def manifests(self, files: Sequence[str]) -> list[dict[str, Any]]:
        """Return the jobs of manifests, parsed by `kubectl` without applying them."""
        jobs = []
        for file in files:
            call = ("create", "--dry-run=client", "-o", "json", "-f", file)
            output = self.run(*call, reads_stdin=file == "-")
            for item in _documents(output):
                if item.get("kind") != "TrainingJob":
                    kind = item.get("kind")
                    raise InputError(Fault(file, f"contains a {kind}", "remove it"))
                jobs.append({**item["spec"], "name": item["metadata"]["name"]})
        return jobs

    def token(self, service: str) -> str:
        """Return the operator's token from its secret."""
        namespace, _, name = service.partition("/")
        secret = f"{name}-token"
        try:
            call = (f"--namespace={namespace}", "get", "secret", secret, "-o", "json")
            output = self.run(*call, in_namespace=False)
            data: Mapping[str, str] = json.loads(output)["data"]
            return base64.b64decode(data["token"]).decode()
        except (KubectlError, KeyError, ValueError) as error:
            hint = "ask an operator for a token"
            fault = Fault("$SHADOWPRICE_TOKEN", f"is not set, and {error}", hint)
            raise InputError(fault) from error

    @contextmanager
    def forwarded(self, service: str) -> Iterator[str]:
        """Forward a local port to the service while the block runs, and yield its URL."""
        namespace, _, name = service.partition("/")
        arguments = [f"--namespace={namespace}", "port-forward", f"service/{name}", ":80"]
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(
                [*self.words, *arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                text=True,
            )
            assert process.stdout is not None
            # kubectl writes a line for each connection, and would block once the pipe is full.
            reader = Thread(target=process.stdout.read, daemon=True)
            try:
                match = next(filter(None, map(_FORWARDED.search, process.stdout)), None)
                if match is None:
                    errors.seek(0)
                    raise KubectlError(f"kubectl: {_error_line(errors.read())}")
                reader.start()
                yield f"http://127.0.0.1:{match[1]}"
            finally:
                process.terminate()
                process.wait()
                if reader.ident is not None:  # it was started
                    reader.join()
                process.stdout.close()


def _error_line(stderr: str) -> str:
    """Return stderr of `kubectl` as one line, without the log lines of its library."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    messages = [line for line in lines if not _LOG_PREFIX.match(line)] or lines
    return escape_controls("; ".join(messages))[:1_000]


def _documents(text: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of concatenated JSON documents; lists are expanded."""
    decoder = json.JSONDecoder()
    text = text.strip()
    while text:
        document, end = decoder.raw_decode(text)
        yield from document["items"] if document.get("kind") == "List" else [document]
        text = text[end:].lstrip()


def definition_for(kubectl: Kubectl) -> str:
    """Return the TrainingJob definition in the form that the API server supports."""
    from shadowprice.kubernetes.definition import build_crd, supports_cel_rules, to_yaml

    published = json.loads(kubectl.run("get", "--raw", "/openapi/v2", in_namespace=False))
    return to_yaml(build_crd(rules=supports_cel_rules(published)))


def main(words: Sequence[str]) -> int:
    """Run one command and return its exit status, as ``shadowprice`` does."""
    from shadowprice.cli.main import report_errors

    called = called_program.set(PROGRAM)
    try:
        return report_errors(partial(_run, words), debug="--debug" in words)
    finally:
        called_program.reset(called)


def _run(words: Sequence[str]) -> object:
    from shadowprice.cli.main import run_command

    if not words or words[0] in {"-h", "--help"}:
        sys.stdout.write(HELP)
        return 0
    call = parse_call(words)
    kubectl = Kubectl(call)
    command, *rest = call.words
    if command == "crd":
        sys.stdout.write(definition_for(kubectl))
        return 0
    if {"-h", "--help"} & set(rest):
        return run_command(call.words)
    with tempfile.TemporaryDirectory() as folder:
        names, options = split_arguments(rest)
        if command in JOB_COMMANDS and names:
            rest = [*options, kubectl.job(names[0]), *names[1:]]
        elif command == "quote":
            path = Path(folder) / "manifests.jsonl"
            lines = map(json.dumps, kubectl.manifests(names))
            path.write_text("".join(f"{line}\n" for line in lines))
            rest = [*options, str(path)]
        if not os.environ.get("SHADOWPRICE_TOKEN"):
            os.environ["SHADOWPRICE_TOKEN"] = kubectl.token(call.service)
        if call.server:
            os.environ["SHADOWPRICE_SERVER"] = call.server
            return run_command([command, *rest])
        with kubectl.forwarded(call.service) as address:
            os.environ["SHADOWPRICE_SERVER"] = address
            return run_command([command, *rest])


def run() -> NoReturn:
    """Run the plugin and exit; entry point of the package."""
    from shadowprice.cli.main import run as run_program

    run_program(lambda: main(sys.argv[1:]))

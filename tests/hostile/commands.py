"""Commands and options as the command line declares them, and calls drawn from them."""

from __future__ import annotations

import enum
import random
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import typer

from shadowprice.cli.main import app
from tests.hostile import documents
from tests.hostile.case import Case, Content

SLOW = frozenset({"experiment"})
"""Commands that run for minutes by design: called with names that do not exist, and `list`."""

QUICK = frozenset({"fifo", "srtf", "las", "backfill", "dorm"})
"""Policies that compile nothing."""

COMPILING = frozenset({"audit", "cloning", "warm", "whatif"})
"""Commands that run compiled kernels, whatever the policy."""

SIDE_EFFECTS = frozenset({"serve"})
"""Commands that do not return by themselves."""


@dataclass(frozen=True)
class Option:
    """One option or argument of a command.

    Parameters
    ----------
    name : str
        Python name of the parameter.
    flag : str
        ``--name``, or empty for an argument.
    kind : type
        What it holds.
    choices : tuple of str
        Values, where it is an enumeration.
    required, switch, repeated : bool
        Whether it must be given, takes no value, or may be given several times.
    least, most : float or None
        The range that the declaration states.
    """

    name: str
    flag: str
    kind: Any
    choices: tuple[str, ...]
    required: bool
    switch: bool
    repeated: bool
    least: float | None
    most: float | None


@dataclass(frozen=True)
class Command:
    """A command by its words, and what it takes."""

    words: tuple[str, ...]
    options: tuple[Option, ...]


def commands() -> list[Command]:
    """Return every command that the installed command line has, whoever wrote it."""
    root = typer.main.get_command(app)
    return list(_walk(root, None, ()))


def _walk(command: Any, parent: Any, words: tuple[str, ...]) -> Iterator[Command]:
    context = root_context(command, parent, words[-1] if words else "shadowprice")
    if hasattr(command, "list_commands"):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None and name not in SIDE_EFFECTS:
                yield from _walk(found, context, (*words, name))
        return
    yield Command(words, tuple(_option(one) for one in command.params if one.name != "help"))


def root_context(command: Any, parent: Any, name: str) -> Any:
    """Return a context to list a group's commands in."""
    return command.make_context(name, [], parent=parent, resilient_parsing=True)


def _option(parameter: Any) -> Option:
    kind = _bare(parameter.type_descriptor.annotation)
    flags = [flag for flag in parameter.opts if flag.startswith("--")]
    is_argument = not any(flag.startswith("-") for flag in parameter.opts)
    info = parameter.type_descriptor.parameter_info
    choices: tuple[str, ...] = ()
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        choices = tuple(str(one.value) for one in kind)
    return Option(
        name=parameter.name,
        flag="" if is_argument else (flags or list(parameter.opts))[0],
        kind=kind,
        choices=choices,
        required=bool(parameter.required),
        switch=kind is bool,
        repeated=bool(getattr(parameter, "multiple", False)),
        least=getattr(info, "min", None),
        most=getattr(info, "max", None),
    )


def _bare(annotation: Any) -> Any:
    """Return the type inside an optional or a list."""
    if get_origin(annotation) in {Union, types.UnionType, list}:
        inner = [part for part in get_args(annotation) if part is not type(None)]
        return _bare(inner[0])
    return annotation


class Drawer:
    """Draws calls of every command, with files that fit what each option is called.

    Parameters
    ----------
    seed : int
        Seed of all that is drawn.
    policies : tuple of str
        Policies that good runs exist for.
    quick : bool
        Draw policies without compiled kernels alone, so that calls answer at once.
    """

    def __init__(self, seed: int, policies: tuple[str, ...], *, quick: bool = False) -> None:
        from shadowprice.policies.registry import policies as known
        from shadowprice.traces.registry import formats

        self.rng = random.Random(seed)
        self._runs = policies
        slow = SLOW | COMPILING if quick else SLOW
        self._commands = [one for one in commands() if one.words[0] not in slow]
        self._policies = [name for name in known() if not quick or name in QUICK]
        self._parameters = {
            name: [field.alias or label for label, field in info.parameters.model_fields.items()]
            for name, info in known().items()
        }
        self._formats = list(formats())

    def draw(self) -> Case:
        """Return a call that nothing like may have been tried."""
        rng = self.rng
        command = rng.choice(self._weighted())
        files: dict[str, Content] = {}
        words = [*command.words]
        world = rng.choice(("training", "training", "places", "bags"))
        for option in command.options:
            must = option.required or option.name in {"cluster", "jobs", "run", "file", "spec"}
            if not (rng.random() < (0.97 if must else 0.25)):
                continue
            if option.name == "trace" and "--jobs" in words and rng.random() < 0.9:
                continue
            for _ in range(rng.randrange(1, 4) if option.repeated else 1):
                if option.switch:
                    words.append(option.flag)
                    continue
                value = self._value(option, files, world, words)
                words += [option.flag, value] if option.flag else [value]
        if rng.random() < 0.05:
            words.insert(rng.randrange(len(words) + 1), str(rng.choice(documents.TEXTS)))
        words = [word.replace("\0", "") for word in words]
        return Case(tuple(words), files)

    def _weighted(self) -> list[Command]:
        heavy = {"simulate": 12, "compare": 2, "trace": 3, "cloning": 2, "explain": 2}
        return [one for one in self._commands for _ in range(heavy.get(one.words[0], 2))]

    def _value(
        self, option: Option, files: dict[str, Content], world: str, words: list[str]
    ) -> str:
        rng = self.rng
        name = option.name.rstrip("_")
        if rng.random() < 0.03:
            return str(documents.nasty(rng))
        if option.choices:
            return rng.choice(option.choices)
        draw = getattr(self, f"_draw_{name}", None)
        if draw is not None:
            return str(draw(files, world, words))
        if option.kind in {int, float}:
            return str(self._number(option))
        if option.kind is Path:
            return self._path(files, world, words)
        return str(rng.choice((*documents.TEXTS, "one", "two", "fifo", "gpu-0", "3", "1")))

    def _number(self, option: Option) -> Any:
        rng = self.rng
        if rng.random() < 0.5:
            least = 0 if option.least is None else option.least
            return option.kind(least + rng.choice((0, 1, 2, 3, 7, 0.5)))
        return rng.choice(
            (0, -1, 1, 10**4, 10**6, 10**9, 10**12, 2**63, 10**30, "nan", "inf", "1e308", 0.1, 5)
        )

    def _document(self, world: str, kind: str) -> Any:
        if kind == "cluster":
            return documents.TENANTS if world == "places" else documents.CLUSTER
        jobs = {"places": documents.PLACES, "bags": documents.BAGS}
        return jobs.get(world, documents.JOBS)

    def _file(self, files: dict[str, Content], name: str, document: Any) -> str:
        form = "lines" if ".jsonl" in name else "yaml"
        if self.rng.random() < 0.5:  # most of the files of a call are good: the rest is reached
            files[name] = (
                documents.text_of(document)
                if form == "yaml"
                else (documents.file_of(document, self.rng, form))
            )
        else:
            files[name] = documents.file_of(document, self.rng, form)
        return name

    def _draw_cluster(self, files: dict[str, Content], world: str, words: list[str]) -> str:
        if words[0] == "trace":  # there it is a file to write
            return self._path(files, world, words)
        return self._file(files, "c.yaml", self._document(world, "cluster"))

    def _draw_jobs(self, files: dict[str, Content], world: str, words: list[str]) -> str:
        if words[0] in {"generate", "cloning"}:
            return str(self.rng.choice((1, 5, 20, 10**5, 10**9, -1, "x")))
        name = self.rng.choice(("j.yaml", "j.yaml", "j.jsonl", "j.jsonl.gz"))
        return self._file(files, name, self._document(world, "jobs"))

    def _draw_incidents(self, files: dict[str, Content], world: str, words: list[str]) -> str:
        return self._file(files, self.rng.choice(("i.yaml", "i.jsonl")), documents.INCIDENTS)

    def _draw_file(self, files: dict[str, Content], world: str, words: list[str]) -> str:
        return self._file(files, "f.yaml", documents.CLONING)

    def _draw_params(self, files: dict[str, Content], world: str, words: list[str]) -> str:
        files["p.toml"] = documents.damaged_text(documents.PARAMS, self.rng)
        return "p.toml"

    def _draw_policy(self, files: dict[str, Content], world: str, words: list[str]) -> str:
        names = self._policies + ["fifo"] * (4 if world == "training" else 0)
        count = 1 if words[0] != "compare" else self.rng.randrange(1, 4)
        return ",".join(self.rng.choice(names) for _ in range(count))

    def _draw_set(self, files: dict[str, Content], world: str, words: list[str]) -> str:
        policy = words[words.index("--policy") + 1] if "--policy" in words else "oasis"
        names = self._parameters.get(policy) or ["prices"]
        name = self.rng.choice((*names, *names, str(documents.nasty(self.rng))))
        return f"{name}={documents.nasty(self.rng)}"

    def _draw_trace(self, files: dict[str, Content], world: str, words: list[str]) -> str:
        rng = self.rng
        name = rng.choice([*documents.TRACES])
        files["t.csv"] = documents.trace_text(name, rng)
        options = rng.choice(
            ("", "", "?limit=1", "?limit=0", "?limit=1e9", "?from=2d", "?stretch=nan", "?vc=x",
             "?training=allreduce&elasticity=2", "?elasticity=64", "?insensitive=inf", "?x=1",
             f"?bandwidth={documents.nasty(rng)}", f"?stretch={documents.nasty(rng)}")
        )  # fmt: skip
        return f"{rng.choice((name, name, name, rng.choice(self._formats)))}:t.csv{options}"

    _draw_spec = _draw_trace

    def _draw_until(self, files: dict[str, Content], world: str, words: list[str]) -> str:
        return str(self.rng.choice(("5 slots", "50 slots", "2h", "1e9 slots", *documents.TEXTS)))

    def _draw_slot(self, files: dict[str, Content], world: str, words: list[str]) -> str:
        return str(self.rng.choice(("20min", "1h", "1s", "5", *documents.TEXTS)))

    def _draw_out(self, files: dict[str, Content], world: str, words: list[str]) -> str:
        return self._path(files, world, words)

    _draw_to = _draw_out
    _draw_at = _draw_slot

    def _draw_run(self, files: dict[str, Content], world: str, words: list[str]) -> str:
        name = "run" if "run" not in files else "run2"
        files[name] = {"run": self.rng.choice(self._runs), "damage": self._damage()}
        return name

    _draw_one = _draw_other = _draw_first = _draw_second = _draw_left = _draw_right = _draw_run
    _draw_before = _draw_after = _draw_a = _draw_b = _draw_run

    def _draw_job(self, files: dict[str, Content], world: str, words: list[str]) -> str:
        return str(self.rng.choice(("one", "two", "three", "thre", *documents.TEXTS)))

    def _path(self, files: dict[str, Content], world: str, words: list[str]) -> str:
        rng = self.rng
        files.setdefault("mine/notes.txt", "mine")
        files.setdefault("mine.jsonl", '{"name": "mine"}\n')
        files.setdefault("loose", {"link": "nowhere"})
        files.setdefault("bent", {"link": "mine"})
        files.setdefault("empty/", "")
        return str(
            rng.choice(
                ("new", "new/deep", "new.jsonl", "new.yaml", "new.html", "mine", "mine/notes.txt",
                 "mine.jsonl", "loose", "bent", "empty", ".", "..", "/dev/null", "/dev/full",
                 "/proc",
                 "/", "", "x" * 300, "a\nb", "\x1b[2J", "mine.jsonl/x", "c.yaml", "empty/new.jsonl",
                 "loose/x", "bent/new.yaml")
            )
        )  # fmt: skip

    def _damage(self) -> list[list[Any]]:
        rng = self.rng
        actions: list[list[Any]] = []
        for _ in range(rng.choice((0, 1, 1, 1, 2))):
            target = rng.choice(
                ("run.json", "run.json", "jobs.parquet", "slots.parquet", "allocations.parquet",
                 "heat.parquet", "decisions.jsonl")
            )  # fmt: skip
            keys = ("format", "policy", "cluster", "cluster.servers", "cluster.kinds", "summary",
                    "summary.jobs", "parameters", "inputs", "timing", "partial", "until", "seed",
                    "cluster.slot_seconds", "incidents", "capabilities", "files", "job", "slot",
                    "outcome", "plan", "versions")  # fmt: skip
            action = rng.choice(
                (["cut", rng.randrange(400)], ["flip", rng.randrange(-300, 300)], ["empty"],
                 ["remove"], ["text", documents.damaged_text("{}", rng)],
                 ["copy", rng.choice(("jobs.parquet", "run.json", "slots.parquet"))],
                 ["append", str(documents.nasty(rng))], ["link", "nowhere"], ["folder"],
                 ["set", rng.choice(keys), documents.nasty(rng)], ["drop", rng.choice(keys)])
            )  # fmt: skip
            if action[0] in {"set", "drop"} and target.endswith("parquet"):
                target = "run.json"
            actions.append([target, *action])
        return actions

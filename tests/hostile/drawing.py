"""Random calls of the command line, with files that fit the names of the options."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from shadowprice.core.defaults import DEFAULT_POLICY
from tests.hostile import documents
from tests.hostile.case import Case, Content
from tests.hostile.commands import COUNTED, QUICK, STAYING, Command, Option, commands
from tests.hostile.damage import damage, journal_damage
from tests.hostile.trace_files import OPTIONS, TRACES, trace_files

Files = dict[str, Content]

WORLDS = {
    "training": (documents.CLUSTER, documents.JOBS),
    "places": (documents.TENANTS, documents.PLACES),
    "bags": (documents.CLUSTER, documents.BAGS),
    "money": (documents.MONEY, documents.TYPED),
}
"""Clusters and jobs that go together."""

ALONE = frozenset({"experiment"})
"""Commands that run for minutes by design; they are drawn with an error in the input."""

WORDS: dict[str, Sequence[str]] = {
    "preset": ("paper", "calibrated", "pdors", "Paper"),
    "arrivals": ("uniform", "poisson", "bursty", "bursts"),
    "rule": ("none", "full", "detect", "saving", "none,full", "none,,none", "all", ","),
    "columns": ("job,outcome", "job,,job", "job", ",", "reason,job", "cost", "worth,shape"),
    "sort": ("jct", "-jct", "-", "job", "--job", "cost", "outcome"),
    "outcome": ("refused", "finished,refused", "waiting", "rejected", ","),
    "gap": ("1%", "0", "0%", "nan%", "-1%", "100%", "0.5", "1e-300", "1e999%"),
    "time": ("1s", "0s", "2s", "1ms", "1 slots", "5 parsecs"),
    "tenant": ("a", "b", "c", "*", "A"),
    "class": ("x", "*", "y"),
    "reason": ("price", "*", "no_room", "["),
    "add": ("gpu:2", "net:1", "gpu:-1", "gpu:1e9", "gpu:0", "none:1", "gpu:1,net:1", "gpu", ":",
            "s:1", "old:1,new:1", "gpu:200001", "gpu:1,gpu:1"),
    "slot": ("20min", "1h", "1s", "5"),
    "until": ("5 slots", "50 slots", "2h", "1e9 slots"),
    "lengths": ("known", "limits", "unknown", "known,unknown", "unknown,unknown", "Known", ","),
    "keep": ("365d", "1s", "0s", "-1d", "1e9d", "3 slots", "1e999d"),
    "allow_user": ("a:nobody", "*:nobody", "a:", ":", "a", "a:b:c", "a:no such"),
    "executor_set": ("grace=1s", "x=1", "=", "x", "x=1=2", "grace=-1s"),
}  # fmt: skip
WORDS |= {
    "remove": WORDS["add"],
    "bound_time": WORDS["time"],
    "arrived": ("0..5", "..2h", "5..1", "..", "1..", "1e9..", "3"),
}
WORDS |= {"started": WORDS["arrived"], "completed": WORDS["arrived"]}

NAMED: dict[str, Sequence[str]] = {
    "listen": (*["127.0.0.1:0"] * 20, ":0", "0", "[::1]:0", "127.0.0.1:99999", "127.0.0.1:-1",
                "127.0.0.1:x", "127.0.0.1:", "127.0.0.1:0:0", "[127.0.0.1:0",
               "127.0.0.1:\uff10", "127.0.0.256:0", "127.0.0.1:1e3", " 127.0.0.1:0"),
    "executor": (*["local"] * 9, "none", "loca", "", "Local", "local ", "ray:", "../local"),
    "address": ("", "", "x", "auto:", "127.0.0.1", "://"),
}  # fmt: skip
"""Arguments of `serve` that limit it to this machine."""

STARTING = {"listen": 1.0, "data": 0.6}
"""Probabilities of `serve`'s frequent options; the others are rare, so that some calls start it."""

WEIGHTS = {"simulate": 12, "trace": 3, "journal": 4, "policies": 1, "warm": 1, "experiment": 1}
"""Relative frequencies of commands; 2 by default."""

PLACES = (
    "new", "new/deep", "new.jsonl", "new.yaml", "new.html", "mine", "mine/notes.txt", "mine.jsonl",
    "loose", "bent", "empty", ".", "..", "/dev/null", "/dev/full", "/proc", "/proc/1", "",
    "x" * 300, "a\nb", "\x1b[2J", "mine.jsonl/x", "c.yaml", "empty/new.jsonl", "loose/x",
    "bent/new.yaml", "half\udcff", "half\udcff.jsonl",
)  # fmt: skip


class Drawer:
    """Draws calls of every command.

    Parameters
    ----------
    seed : int
        Seed of everything that is drawn.
    runs : sequence of str
        Names of valid runs.
    journal : sequence of str
        Lines of the journal of the run ``eventful``.
    quick : bool
        Whether to draw only policies without compiled kernels, so that calls are fast.
    """

    def __init__(
        self, seed: int, runs: Sequence[str], journal: Sequence[str] = (), *, quick: bool = False
    ) -> None:
        from shadowprice.policies.registry import policies as known
        from shadowprice.traces.registry import formats

        self.rng = random.Random(seed)
        self._runs = runs
        self._journal = journal
        self._commands = commands()
        self._policies = [name for name in known() if not quick or name in QUICK]
        self._parameters = {
            name: [field.alias or label for label, field in info.parameters.model_fields.items()]
            for name, info in known().items()
        }
        self._formats = list(formats())
        self._makers: dict[str, Callable[[Files, str, list[str]], object]] = {
            "cluster": self._cluster,
            "jobs": self._jobs,
            "incidents": self._incidents,
            "file": self._cloning,
            "params": self._params,
            "policy": self._policy,
            "policies": self._some_policy,
            "name": self._name,
            "set": self._set,
            "trace": self._trace,
            "spec": self._trace,
            "out": self._place,
            "to": self._place,
            "prices": self._prices,
            "run": self._run,
            "first": self._run,
            "second": self._run,
            "path": self._journal_path,
            "job": self._job,
            "data": self._data,
        }

    def draw(self, name: str = "") -> Case:
        """Return a random call of a command, or of any command."""
        rng = self.rng
        among = [command for command in self._commands if name in {"", " ".join(command.words)}]
        weights = [WEIGHTS.get(one.words[0], 2) for one in among]
        command: Command = rng.choices(among, weights)[0]
        files: Files = {}
        words = [*command.words]
        world = rng.choice(("training", "training", *WORLDS))
        for option in command.options:
            must = option.required or option.name in {"cluster", "jobs", "run", "file", "spec"}
            chance = 0.97 if must else 0.25
            if words[0] in STAYING:
                chance = STARTING.get(option.name, 0.97 if must else 0.06)
            if rng.random() >= chance:
                continue
            if option.name == "trace" and "--jobs" in words and rng.random() < 0.9:
                continue
            if _idle(option, words) and rng.random() < 0.95:  # usually it isn't the only error
                continue
            for _ in range(rng.randrange(1, 4) if option.repeated else 1):
                if option.switch:
                    words.append(option.flag)
                    continue
                value = self._value(option, files, world, words)
                if not option.flag:
                    words.append(value)
                elif rng.random() < 0.1:
                    words.append(f"{option.flag}={value}")
                else:
                    words += [option.flag, value]
        if rng.random() < 0.05:
            odd = rng.choice((str(rng.choice(documents.TEXTS)), "--", "-h", "-q", "-o"))
            words.insert(rng.randrange(len(words) + 1), odd)
        return Case(tuple(_argument(word) for word in words), files)

    def _value(self, option: Option, files: Files, world: str, words: list[str]) -> str:
        rng = self.rng
        name = option.name.rstrip("_")
        if words[0] in STAYING and name in NAMED:
            return rng.choice(NAMED[name])
        if rng.random() < 0.03 and words[0] not in ALONE:
            return str(documents.nasty(rng))
        if option.choices:
            return rng.choice(option.choices)
        if words[0] == "generate" and name == "jobs":
            return rng.choice(("1", "7", "100", "0", "-1", "1000001", "1e3", "x"))
        maker = self._makers.get(name)
        if maker is not None:
            return str(maker(files, world, words))
        if option.kind in {int, float}:
            return str(self._number(option))
        if option.kind is Path:
            return self._place(files, world, words)
        known = WORDS.get(name, ("one", "two", "fifo", "gpu-0", "3", "1"))
        return str(rng.choice(known) if rng.random() < 0.7 else rng.choice(documents.TEXTS))

    def _number(self, option: Option) -> Any:
        rng = self.rng
        counted = option.name in COUNTED
        if rng.random() < (0.8 if counted else 0.5):
            least = 0 if option.least is None else option.least
            return option.kind(least + rng.choice((0, 1, 2, 3, 7, 0.5)))
        if counted:
            return rng.choice((0, -1, 10**12, 2**63, "nan", "1e308", 0.1))
        return rng.choice(
            (0, -1, 1, 10**4, 10**6, 10**9, 10**12, 2**63, 10**30, "nan", "inf", "1e308", 0.1, 5)
        )

    # ------------------------------------------------------------ files

    def _file(self, files: Files, name: str, document: Any, form: str = "yaml") -> str:
        # Most files of a call are valid, so that later checks are reached.
        if self.rng.random() < 0.5:
            files[name] = (
                documents.text_of(document) if form == "yaml" else documents.lines_of(document)
            )
        else:
            files[name] = documents.file_of(document, self.rng, form)
        return name

    def _cluster(self, files: Files, world: str, words: list[str]) -> str:
        if words[0] == "trace":  # here it is a file to write
            return self._place(files, world, words)
        return self._file(files, "c.yaml", WORLDS[world][0])

    def _jobs(self, files: Files, world: str, words: list[str]) -> str:
        if words[0] == "cloning":
            return str(self.rng.choice((1, 5, 20, 10**9, -1, "x")))
        name = self.rng.choice(("j.yaml", "j.yaml", "j.jsonl", "j.jsonl.gz", "half\udcff.jsonl"))
        form = "lines" if ".jsonl" in name else "yaml"
        if self.rng.random() < 0.1:
            world = self.rng.choice(list(WORLDS))
        self._file(files, name, WORLDS[world][1], form)
        if name.endswith(".gz") and self.rng.random() < 0.8:
            files[name] = {"gzip": files[name]}
        return name

    def _incidents(self, files: Files, world: str, words: list[str]) -> str:
        name = self.rng.choice(("i.yaml", "i.jsonl"))
        return self._file(files, name, documents.INCIDENTS, "yaml" if name == "i.yaml" else "lines")

    def _cloning(self, files: Files, world: str, words: list[str]) -> str:
        measured = self.rng.random() < 0.3
        if measured:
            files["d.csv"] = documents.DURATIONS
            if self.rng.random() < 0.5:
                files["d.csv"] = documents.damaged_text(documents.DURATIONS, self.rng)
        return self._file(files, "f.yaml", documents.EMPIRICAL if measured else documents.CLONING)

    def _params(self, files: Files, world: str, words: list[str]) -> str:
        files["p.toml"] = documents.damaged_text(documents.PARAMS, self.rng)
        return "p.toml"

    def _prices(self, files: Files, world: str, words: list[str]) -> str:
        rng = self.rng
        if words[0] == "bound" and rng.random() < 0.7:  # here it is a file to write
            return self._place(files, world, words) if rng.random() < 0.7 else "new.json"
        document = documents.mutated(documents.PRICES, rng, rng.choice((0, 1, 1, 2)))
        text = json.dumps(document, default=str)
        files["p.json"] = documents.damaged_text(text, rng) if rng.random() < 0.2 else text
        return "p.json"

    def _trace(self, files: Files, world: str, words: list[str]) -> str:
        rng = self.rng
        spec, found = trace_files(rng.choice([*TRACES]), rng)
        files.update(found)
        form, path = spec.split(":")
        if rng.random() < 0.1:
            form = rng.choice(self._formats)
        nasty = documents.nasty(rng)
        options = rng.choice((*OPTIONS, f"?bandwidth={nasty}", f"?stretch={nasty}"))
        return f"{form}:{path}{options}"

    def _run(self, files: Files, world: str, words: list[str]) -> str:
        name = "run" if "run" not in files else "run2"
        files[name] = {"run": self.rng.choice(self._runs), "damage": damage(self.rng)}
        return name

    def _journal_path(self, files: Files, world: str, words: list[str]) -> str:
        rng = self.rng
        if self._journal and rng.random() < 0.7:
            actions = journal_damage(self._journal, rng)
            files["run"] = {"run": "eventful", "damage": actions}
            return rng.choice(("run", "run/journal.jsonl"))
        return self._run(files, world, words)

    def _data(self, files: Files, world: str, words: list[str]) -> str:
        """Return a data directory of a service: usually a new folder, sometimes an invalid one."""
        rng = self.rng
        kind = rng.randrange(6)
        if kind == 0:  # a damaged database, or none
            text = rng.choice(
                ("", "SQLite format 3\0", "x" * 5000, documents.text_of(documents.CLUSTER))
            )
            files["kept/shadowprice.db"] = text
            return "kept"
        if kind == 1:
            files["kept/operator.token"] = rng.choice(("", "x", "\n", "t" * 5000, "\x1b[2J"))
            return "kept"
        if kind == 2:
            urls = ("postgresql+psycopg://127.0.0.1:1/x", "sqlite:///x", "x://", "postgresql://")
            return rng.choice(urls)
        return "kept" if kind < 5 else self._place(files, world, words)

    def _place(self, files: Files, world: str, words: list[str]) -> str:
        files.setdefault("mine/notes.txt", "mine")
        files.setdefault("mine.jsonl", '{"name": "mine"}\n')
        files.setdefault("loose", {"link": "nowhere"})
        files.setdefault("bent", {"link": "mine"})
        files.setdefault("empty/", "")
        if words[0] in ALONE:
            return self.rng.choice(("mine", "mine.jsonl", "loose", "bent", "/dev/null", "mine/x/y"))
        return self.rng.choice(PLACES)

    # ------------------------------------------------------------ words

    def _some_policy(self, files: Files, world: str, words: list[str]) -> str:
        return self.rng.choice((*self._policies, "fif", *documents.TEXTS[:6]))

    def _name(self, files: Files, world: str, words: list[str]) -> str:
        if words[0] not in ALONE:
            return self._some_policy(files, world, words)
        files.setdefault("mine/notes.txt", "mine")
        names = ("list", "oasis-fig", "nothing", "../x", *documents.TEXTS)
        return str(self.rng.choice(names))

    def _policy(self, files: Files, world: str, words: list[str]) -> str:
        rng = self.rng
        names = self._policies + ["fifo"] * (4 if world == "training" else 0)
        if words[0] not in {"compare", "whatif"}:
            return rng.choice(names)
        chosen = [rng.choice(names) for _ in range(rng.randrange(1, 4))]
        if rng.random() < 0.2:
            at = rng.randrange(len(chosen))
            chosen[at] += f"?{self._setting(chosen[at], files)}"
        if rng.random() < 0.02:
            chosen *= 30
        return ",".join(chosen)

    def _set(self, files: Files, world: str, words: list[str]) -> str:
        flags = [index for index, word in enumerate(words) if word == "--policy"]
        policy = words[flags[0] + 1] if flags else DEFAULT_POLICY
        return self._setting(policy, files)

    def _setting(self, policy: str, files: Files) -> str:
        rng = self.rng
        if policy == "oasis" and rng.random() < 0.2:
            return f"prices=fixed:{self._prices(files, 'training', ['simulate'])}"
        names = self._parameters.get(policy) or ["prices"]
        name = rng.choice((*names, *names, str(documents.nasty(rng))))
        words = (
            "auto",
            "online",
            "offline",
            "paper",
            "clearing",
            "0.5",
            "[1, 2]",
            "{a = 1}",
            "none",
        )
        return f"{name}={rng.choice(words) if rng.random() < 0.3 else documents.nasty(rng)}"

    def _job(self, files: Files, world: str, words: list[str]) -> str:
        return str(self.rng.choice(("one", "two", "three", "thre", "bag", "t*", *documents.TEXTS)))


def _idle(option: Option, words: Sequence[str]) -> bool:
    """Whether an option has no effect beside the earlier arguments, and is refused for that."""
    flags = {word.partition("=")[0] for word in words}
    if option.name in {"slot", "load"} and words[0] not in {"generate", "cloning"}:
        return "--cluster" in flags or "--jobs" in flags
    needed = {"advice_time": "--advice", "bound_time": "--bound", "families": "--family"}
    return option.name in needed and needed[option.name] not in flags


def _argument(word: str) -> str:
    """Return an argument that a process can get: without NUL, surrogates as single bytes."""
    word = word.replace("\0", "")
    return "".join(c for c in word if not "\ud800" <= c <= "\udfff" or "\udc80" <= c <= "\udcff")

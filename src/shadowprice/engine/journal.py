"""The journal of a run, version 2: a header, then every event with what was decided on it.

JSON Lines. An engine takes nothing in but events, and the decisions stand beside them, so that a
journal replays without the policy, its version or its parameters: `replay` applies what was decided
back then. Servers go by name, jobs are written out in full, and now and then a line holds the
digest of the state, so that a journal is checked as it is read. It is read one line at a time.

A line that a crash cut short, the last one without its end, is dropped with a notice: what it told
never took effect. Any other damage is an error that names the line.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final

import shadowprice
from shadowprice.core import bounds
from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import Fault, InputError, ShadowpriceError
from shadowprice.core.events import CapacityChanged, Decision, PolicyEvent
from shadowprice.core.policy import Capabilities, Policy, View
from shadowprice.engine.capacity import changed_cluster
from shadowprice.engine.engine import Engine, Entry
from shadowprice.engine.records import (
    Fields,
    capabilities_of,
    capabilities_record,
    cluster_of,
    cluster_record,
    decision_of,
    decision_record,
    event_of,
    event_record,
)

FORMAT: Final = 1
"""Version of the format."""

DIGEST_EVERY: Final = 1000
"""Events between two digests."""

_ENCODE: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_WRONG: Final = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RecursionError,
)
"""What values that no engine wrote lead to, wherever they are used first."""

_MOST_ASKED: Final = 1000
"""Consultations of one event without a decision; an engine asks once or twice."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a journal begins with.

    Parameters
    ----------
    cluster : Cluster
        The cluster of the first event.
    policy : str
        Name of the policy.
    capabilities : Capabilities
        What it does; the engine's rules depend on it.
    parameters : mapping
        Its parameters, for readers.
    until : int or None
        End of the timespan.
    versions : mapping of str to str
        What wrote it.
    acknowledges : bool
        Whether the driver acknowledged commands.
    """

    cluster: Cluster
    policy: str
    capabilities: Capabilities
    parameters: Mapping[str, Any] = field(default_factory=dict)
    until: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    acknowledges: bool = False

    @classmethod
    def of(cls, engine: Engine, policy: str) -> Header:
        """Return the header of an engine that has not taken anything in."""
        return cls(
            engine.cluster,
            policy,
            engine.capabilities,
            engine.policy.parameters_in_force(),
            engine.until,
            {"shadowprice": shadowprice.__version__, "python": platform.python_version()},
            engine.acknowledges,
        )

    def line(self) -> str:
        """Return the header as the journal's first line, without the line's end."""
        return json.dumps(
            {
                "journal": FORMAT,
                "versions": dict(self.versions),
                "policy": self.policy,
                "parameters": dict(self.parameters),
                "capabilities": capabilities_record(self.capabilities),
                "until": self.until,
                "acknowledges": self.acknowledges,
                "cluster": cluster_record(self.cluster),
            },
            ensure_ascii=False,
            separators=(",", ":"),
            default=str,
        )

    @classmethod
    def read(cls, line: str, place: str) -> Header:
        """Return the header that a line tells.

        Raises
        ------
        InputError
            If the line is none, or one of another version.
        """
        try:
            record = json.loads(line)
            version = record.get("journal")
        except _WRONG as error:
            raise _damaged(place, "is no header of a journal") from error
        if version != FORMAT:
            raise InputError(
                Fault(
                    place,
                    f"unknown journal format {version!r}; expected {FORMAT}",
                    "use the version of shadowprice that wrote it",
                )
            )
        try:
            header = cls(
                cluster_of(record["cluster"]),
                record["policy"],
                capabilities_of(record["capabilities"]),
                record["parameters"],
                record["until"],
                record["versions"],
                record["acknowledges"],
            )
            header._check_types()
        except _WRONG as error:
            raise _damaged(place, "is no header of a journal") from error
        return header

    def _check_types(self) -> None:
        """Refuse what readers would stumble over later."""
        texts = [self.policy, *self.cluster.names, *self.cluster.resources, *self.versions.keys()]
        numbers = [self.cluster.horizon, *(() if self.until is None else (self.until,))]
        if not all(isinstance(text, str) for text in (*texts, *self.versions.values())):
            raise TypeError("a name is no text")
        if not all(type(number) is int for number in numbers):
            raise TypeError("a number of slots is none")
        self.parameters.keys()

    def engine(self, policy: Policy | None = None) -> Engine:
        """Return an engine to replay the journal into.

        Parameters
        ----------
        policy : Policy, optional
            Who decides what comes after; by default nobody.
        """
        return Engine(
            self.cluster,
            Absent(self.capabilities) if policy is None else policy,
            until=self.until,
            acknowledges=self.acknowledges,
        )


@dataclass(frozen=True, slots=True)
class Absent:
    """A policy that is not there: what it decided is known, what it would decide is not.

    Parameters
    ----------
    capabilities : Capabilities
        What the policy did.
    """

    capabilities: Capabilities

    def decide(self, view: View, event: PolicyEvent) -> Sequence[Decision]:
        """Refuse to decide."""
        del view
        raise ShadowpriceError(f"{event.tag}: no policy is there to decide")

    def parameters_in_force(self) -> Mapping[str, object]:
        """Return nothing: they are in the journal's header."""
        return {}

    def resume(self, view: View) -> None:
        """Take no note."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The digest of the state after an event."""

    sequence: int
    digest: str


# ---------------------------------------------------------------- writing


def entry_line(entry: Entry, names: Sequence[str]) -> str:
    """Return an entry as one line, without the line's end; ``names`` are those of the servers."""
    record: Fields = {"n": entry.sequence, **event_record(entry.event)}
    if any(entry.consultations):
        record["decided"] = [
            [decision_record(decision, names) for decision in consultation]
            for consultation in entry.consultations
        ]
    elif entry.consultations:
        record["asked"] = len(entry.consultations)
    return _ENCODE(record)


class JournalWriter:
    """Appends to a journal as things happen.

    Parameters
    ----------
    path : Path
        The file; it is begun anew.
    header : Header
        What it begins with.
    """

    def __init__(self, path: Path, header: Header) -> None:
        # Bytes of a path that are no text are written as the escapes that JSON has for them.
        self._file = path.open("w", encoding="utf-8", errors="backslashreplace", newline="\n")
        self._file.write(header.line() + "\n")
        self._since = 0

    def add(self, entry: Entry, engine: Engine) -> None:
        """Append what an engine has taken in last, and now and then the digest of its state."""
        self._file.write(entry_line(entry, engine.cluster.names) + "\n")
        self._since += 1
        if self._since >= DIGEST_EVERY:
            self.mark(engine)

    def mark(self, engine: Engine) -> None:
        """Append the digest of an engine's state."""
        mark = {"digest": engine.state_digest(), "n": engine.sequence}
        self._file.write(_ENCODE(mark) + "\n")
        self._since = 0

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


# ---------------------------------------------------------------- reading


class JournalReader:
    """A journal, read one line at a time.

    Parameters
    ----------
    path : Path
        The file.
    notice : callable, optional
        Told when a line that was cut short is dropped.

    Attributes
    ----------
    header : Header
        What it begins with.

    Raises
    ------
    InputError
        If the file is no journal of this version, at once; if a line is damaged, when it is read.
    """

    def __init__(self, path: Path, notice: Callable[[str], None] | None = None) -> None:
        self.path = path
        self._notice = notice
        try:
            if path.exists() and not path.is_file():
                raise InputError(Fault(str(path), "is no regular file", "give a journal's"))
            with path.open("rb") as file:
                first = self._line(file, 1)
        except OSError as error:
            raise InputError(Fault(str(path), f"cannot be read: {error.strerror}")) from error
        self.header = Header.read(_text(first, self._place(1)), self._place(1))

    def __iter__(self) -> Iterator[Entry | Mark]:
        """Yield events with their decisions, and digests, in order."""
        cluster, sequence = self.header.cluster, 0
        with self.path.open("rb") as file:
            file.readline()
            number = 1
            while line := self._line(file, number + 1):
                number += 1
                place = self._place(number)
                try:
                    item = _item(_text(line, place), cluster, place)
                except InputError:
                    if not line.endswith(b"\n") and _is_last(file):
                        self._tell(number)
                        return
                    raise
                if isinstance(item, Entry):
                    if item.sequence != sequence + 1:
                        raise _damaged(
                            place, f"is event {item.sequence}, but event {sequence + 1} is next"
                        )
                    sequence = item.sequence
                    if isinstance(item.event, CapacityChanged):
                        cluster = changed_cluster(cluster, item.event).cluster
                elif item.sequence != sequence:
                    raise _damaged(place, f"is the digest after event {item.sequence}")
                yield item

    def _line(self, file: IO[bytes], number: int) -> bytes:
        """Return the next line, empty at the end."""
        line = file.readline(int(bounds.JOURNAL_LINE.most) + 1)
        bounds.JOURNAL_LINE.check(len(line), self._place(number))
        return line

    def _place(self, number: int) -> str:
        return f"{self.path}: line {number}"

    def _tell(self, number: int) -> None:
        if self._notice is not None:
            self._notice(
                f"{self._place(number)}: cut short when it was written; what it told never took "
                "effect, and it is dropped"
            )


def replay(journal: JournalReader, engine: Engine) -> Engine:
    """Let a new engine take a journal in, decisions and all; the policy is not asked.

    Parameters
    ----------
    journal : JournalReader
        The journal.
    engine : Engine
        As `Header.engine` gives it.

    Returns
    -------
    Engine
        The same engine, in the state that the journal ends in.

    Raises
    ------
    ShadowpriceError
        If an event does not fit the state, or the state has not the digest that it had.
    """
    for item in journal:
        take(engine, item, journal.path)
    return engine


def take(engine: Engine, item: Entry | Mark, path: Path) -> None:
    """Let an engine take in the next item of a journal: an event, or a digest to compare with.

    Parameters
    ----------
    engine : Engine
        In the state before the item.
    item : Entry or Mark
        The item.
    path : Path
        What errors call the journal.

    Raises
    ------
    ShadowpriceError
        If the event does not fit the state, or the state has not the digest that it had.
    """
    try:
        if isinstance(item, Entry):
            engine.apply(item)
            return
        same = item.digest == engine.state_digest()
    except _WRONG as error:
        raise ShadowpriceError(
            f"{path}: event {item.sequence} does not fit the state "
            f"({type(error).__name__}: {error}); the journal was changed, or was written by "
            "another version"
        ) from error
    if not same:
        raise ShadowpriceError(
            f"{path}: after event {item.sequence} the state is not the one that was "
            "written down; the journal was changed, or was written by another version"
        )


def entry_of(line: str, cluster: Cluster, place: str = "journal") -> Entry:
    """Return the entry that `entry_line` wrote.

    Parameters
    ----------
    line : str
        The line.
    cluster : Cluster
        The servers before the event.
    place : str
        Where it stands, for errors.

    Raises
    ------
    InputError
        If it is none.
    """
    item = _item(line, cluster, place)
    if not isinstance(item, Entry):
        raise _damaged(place, "is no event of a journal")
    return item


def _item(line: str, cluster: Cluster, place: str) -> Entry | Mark:
    try:
        record = json.loads(line)
        if "digest" in record:
            return Mark(record["n"], record["digest"])
        sequence, asked = record.pop("n"), record.pop("asked", 0)
        if not 0 <= asked <= _MOST_ASKED:
            raise ValueError("was asked too often")
        decided = record.pop("decided", [[]] * asked)
        event = event_of(record)
        if type(event.slot) is not int or not 0 <= event.slot <= bounds.SLOT.most:
            raise ValueError("is in no slot")
        if isinstance(event, CapacityChanged):
            cluster = changed_cluster(cluster, event).cluster
        consultations = tuple(
            tuple(decision_of(decision, cluster.index) for decision in consultation)
            for consultation in decided
        )
    except _WRONG as error:
        raise _damaged(place, "is no event of a journal") from error
    return Entry(sequence, event, consultations)


def _text(line: bytes, place: str) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise _damaged(place, "is no text") from error


def _is_last(file: IO[bytes]) -> bool:
    return not file.peek(1) if hasattr(file, "peek") else not file.read(1)


def _damaged(place: str, message: str) -> InputError:
    mend = "the journal is damaged: restore it from a copy, or begin from a snapshot"
    return InputError(Fault(place, message, mend))

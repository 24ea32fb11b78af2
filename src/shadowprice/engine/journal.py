"""The journal of a run: a header, then every event with the decisions on it.

The format is JSON Lines. Only events change an engine, and the policy's decisions are stored with
them. So `replay` needs neither the policy nor its version or parameters. Servers are stored by name
and jobs in full. Every `DIGEST_EVERY` events a line holds the digest of the state, which replay
compares. The journal is read line by line.

If a crash cut off the last line, the line is dropped with a notice, because its event never took
effect. Any other damage is an error that names the line.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import shadowprice
from shadowprice.core import bounds
from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import Fault, InputError, ShadowpriceError
from shadowprice.core.events import CapacityChanged, Decision, PolicyEvent
from shadowprice.core.policy import Capabilities, Policy, View
from shadowprice.engine import records
from shadowprice.engine.engine import Engine, Entry
from shadowprice.engine.server_events import changed_cluster

FORMAT: Final = 1
"""Version of the format."""

DIGEST_EVERY: Final = 1000
"""Number of events between two digests."""

_ENCODE: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_INVALID_VALUE_ERRORS: Final = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RecursionError,
)
"""Errors that invalid values of a damaged journal can cause wherever they are first used."""

_MAX_CONSULTATIONS: Final = 1000
"""Maximum queries of one event without decisions; an engine makes one or two."""


@dataclass(frozen=True, slots=True)
class Header:
    """The first line of a journal: the cluster before the first event, and the engine's settings.

    Replay needs the capabilities, because the engine's rules depend on them. The policy's
    ``parameters`` are only for people. ``versions`` are those of shadowprice and Python that wrote
    the journal. ``until`` and ``acknowledges`` are as in `Engine`.
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
        """Return the header for an engine that has handled no event."""
        return cls(
            engine.cluster,
            policy,
            engine.capabilities,
            engine.policy.parameters_in_force(),
            engine.until,
            {"shadowprice": shadowprice.__version__, "python": platform.python_version()},
            engine.state.acknowledges,
        )

    def line(self) -> str:
        """Return the header as the journal's first line, without the newline."""
        return json.dumps(
            {
                "journal": FORMAT,
                "versions": dict(self.versions),
                "policy": self.policy,
                "parameters": dict(self.parameters),
                "capabilities": asdict(self.capabilities),
                "until": self.until,
                "acknowledges": self.acknowledges,
                "cluster": records.cluster_record(self.cluster),
            },
            ensure_ascii=False,
            separators=(",", ":"),
            default=str,
        )

    @classmethod
    def read(cls, line: str, location: str) -> Header:
        """Parse a header; ``location`` is for error messages.

        Raises InputError if the line isn't a header, or has another version.
        """
        try:
            record = json.loads(line)
            version = record.get("journal")
        except _INVALID_VALUE_ERRORS as error:
            raise _damage_error(location, "is not a header of a journal") from error
        if version != FORMAT:
            raise InputError(
                Fault(
                    location,
                    f"unknown journal format {version!r}; expected {FORMAT}",
                    "use the version of shadowprice that wrote it",
                )
            )
        try:
            header = cls(
                records.cluster_from_record(record["cluster"]),
                record["policy"],
                Capabilities(**record["capabilities"]),
                record["parameters"],
                record["until"],
                record["versions"],
                record["acknowledges"],
            )
            header._check_types()
        except _INVALID_VALUE_ERRORS as error:
            raise _damage_error(location, "is not a header of a journal") from error
        return header

    def _check_types(self) -> None:
        """Raise TypeError for values that would fail later."""
        texts = [self.policy, *self.cluster.names, *self.cluster.resources, *self.versions.keys()]
        slots = [self.cluster.horizon, *(() if self.until is None else (self.until,))]
        if not all(isinstance(text, str) for text in (*texts, *self.versions.values())):
            raise TypeError("a name is not text")
        if not all(type(slot) is int for slot in slots):
            raise TypeError("a number of slots is not an integer")
        self.parameters.keys()  # raises AttributeError for other values than mappings

    def engine(self, policy: Policy | None = None) -> Engine:
        """Return an engine to replay the journal into.

        ``policy`` is for events after the journal. Without it, the engine can only replay.
        """
        return Engine(
            self.cluster,
            ReplayOnlyPolicy(self.capabilities) if policy is None else policy,
            until=self.until,
            acknowledges=self.acknowledges,
        )


@dataclass(frozen=True, slots=True)
class ReplayOnlyPolicy:
    """Placeholder for a policy during replay: recorded decisions apply, new ones are an error."""

    capabilities: Capabilities

    def decide(self, view: View, event: PolicyEvent) -> Sequence[Decision]:
        """Raise ShadowpriceError: there is no policy."""
        del view
        raise ShadowpriceError(f"{event.tag}: this engine only replays, and has no policy")

    def parameters_in_force(self) -> Mapping[str, object]:
        """Return an empty mapping: the journal's header holds the parameters."""
        return {}

    def resume(self, view: View) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A line of the journal with the digest of the state after an event."""

    sequence: int
    digest: str


# ---------------------------------------------------------------- writing


def entry_line(entry: Entry, names: Sequence[str]) -> str:
    """Return an entry as one line, without the newline; ``names`` are the servers by row."""
    record: records.Fields = {"n": entry.sequence, **records.event_record(entry.event)}
    if any(entry.consultations):
        record["decided"] = [
            [records.decision_record(decision, names) for decision in consultation]
            for consultation in entry.consultations
        ]
    elif entry.consultations:
        record["consulted"] = len(entry.consultations)
    return _ENCODE(record)


class JournalWriter:
    """Appends events to a journal; an existing file is overwritten."""

    def __init__(self, path: Path, header: Header) -> None:
        # Paths may contain bytes that aren't valid text: these are written as JSON escapes.
        self._file = path.open("w", encoding="utf-8", errors="backslashreplace", newline="\n")
        self._events_since_digest = 0
        try:
            self._write(header.line(), "header")
        except BaseException:
            self.close()
            raise

    def add(self, entry: Entry, engine: Engine) -> None:
        """Append the engine's last entry, and a digest every `DIGEST_EVERY` events.

        Raises InputError if its line exceeds the limit of `JournalReader`.
        """
        self._write(entry_line(entry, engine.cluster.names), f"event {entry.sequence}")
        self._events_since_digest += 1
        if self._events_since_digest >= DIGEST_EVERY:
            self.mark(engine)

    def mark(self, engine: Engine) -> None:
        """Append the digest of an engine's state."""
        mark = {"digest": engine.state_digest(), "n": engine.sequence}
        self._write(_ENCODE(mark), "digest")
        self._events_since_digest = 0

    def _write(self, line: str, what: str) -> None:
        size = len(line.encode(errors="backslashreplace")) + 1
        location = f"{self._file.name}: {what}"
        bounds.JOURNAL_LINE.check(size, location, "run it without a journal")
        self._file.write(line + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(self, *_details: object) -> None:
        self.close()


# ---------------------------------------------------------------- reading


class JournalReader:
    """A journal, read line by line.

    ``notice`` is called with a message if an incomplete last line is dropped. Raises InputError if
    the file isn't a journal of this version, and while reading, if a line is damaged.
    """

    def __init__(self, path: Path, notice: Callable[[str], None] | None = None) -> None:
        self.path = path
        self._notice = notice
        try:
            if path.exists() and not path.is_file():
                raise InputError(Fault(str(path), "is not a regular file", "give a journal's"))
            with path.open("rb") as file:
                first = self._line(file, 1)
        except OSError as error:
            raise InputError(Fault(str(path), f"cannot be read: {error.strerror}")) from error
        self.header = Header.read(_decode(first, self._location(1)), self._location(1))

    def __iter__(self) -> Iterator[Entry | Mark]:
        """Yield events with their decisions, and digests, in order."""
        cluster, sequence = self.header.cluster, 0
        with self.path.open("rb") as file:
            file.readline()
            number = 1
            while line := self._line(file, number + 1):
                number += 1
                location = self._location(number)
                try:
                    item = _parse_line(_decode(line, location), cluster, location)
                except InputError:
                    if line.endswith(b"\n") or file.peek(1):  # not the last line
                        raise
                    if self._notice is not None:
                        self._notice(
                            f"{location}: incomplete line; its event never took effect, and the "
                            "line is dropped"
                        )
                    return
                if isinstance(item, Entry):
                    if item.sequence != sequence + 1:
                        raise _damage_error(
                            location, f"is event {item.sequence}, but event {sequence + 1} is next"
                        )
                    sequence = item.sequence
                    if isinstance(item.event, CapacityChanged):
                        cluster = changed_cluster(cluster, item.event).cluster
                elif item.sequence != sequence:
                    raise _damage_error(location, f"is the digest after event {item.sequence}")
                yield item

    def _line(self, file: IO[bytes], number: int) -> bytes:
        """Read the next line, empty at the end; raise InputError if it exceeds the limit."""
        line = file.readline(int(bounds.JOURNAL_LINE.maximum) + 1)
        bounds.JOURNAL_LINE.check(len(line), self._location(number))
        return line

    def _location(self, number: int) -> str:
        return f"{self.path}: line {number}"


def replay(journal: JournalReader, engine: Engine) -> Engine:
    """Apply a journal to a new engine from `Header.engine`, without querying the policy; return it.

    Raises ShadowpriceError if an event doesn't fit the state, or a digest doesn't match.
    """
    for item in journal:
        replay_item(engine, item, journal.path)
    return engine


def replay_item(engine: Engine, item: Entry | Mark, path: Path) -> None:
    """Apply the next item of a journal: handle an event, or compare a digest.

    ``path`` is that of the journal, for error messages. Raises ShadowpriceError if the event
    doesn't fit the state, or the digest doesn't match.
    """
    try:
        if isinstance(item, Entry):
            engine.apply(item)
            return
        matches = item.digest == engine.state_digest()
    except _INVALID_VALUE_ERRORS as error:
        raise ShadowpriceError(
            f"{path}: event {item.sequence} does not fit the state "
            f"({type(error).__name__}: {error}); the journal was changed, or was written by "
            "another version"
        ) from error
    if not matches:
        raise ShadowpriceError(
            f"{path}: the state after event {item.sequence} does not match the recorded digest; "
            "the journal was changed, or was written by another version"
        )


def parse_entry(line: str, cluster: Cluster) -> Entry:
    """Parse a line that `entry_line` wrote; raise InputError if it isn't an entry.

    ``cluster`` is the cluster before the event.
    """
    item = _parse_line(line, cluster, "journal")
    if not isinstance(item, Entry):
        raise _damage_error("journal", "is not an event of a journal")
    return item


def _parse_line(line: str, cluster: Cluster, location: str) -> Entry | Mark:
    try:
        record = json.loads(line)
        if "digest" in record:
            return Mark(record["n"], record["digest"])
        sequence, consultation_count = record.pop("n"), record.pop("consulted", 0)
        if not 0 <= consultation_count <= _MAX_CONSULTATIONS:
            raise ValueError("more consultations than recorded")
        decided = record.pop("decided", [[]] * consultation_count)
        event = records.event_from_record(record)
        if type(event.slot) is not int or not 0 <= event.slot <= bounds.SLOT.maximum:
            raise ValueError("is in no slot")
        if isinstance(event, CapacityChanged):  # the decisions may name its new servers
            cluster = changed_cluster(cluster, event).cluster
        consultations = tuple(
            tuple(
                records.decision_from_record(decision, cluster.index) for decision in consultation
            )
            for consultation in decided
        )
    except _INVALID_VALUE_ERRORS as error:
        raise _damage_error(location, "is not an event of a journal") from error
    return Entry(sequence, event, consultations)


def _decode(line: bytes, location: str) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise _damage_error(location, "is not text") from error


def _damage_error(location: str, message: str) -> InputError:
    hint = "the journal is damaged: restore it from a copy, or begin from a snapshot"
    return InputError(Fault(location, message, hint))

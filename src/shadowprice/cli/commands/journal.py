"""``shadowprice journal``: show a journal and check it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from shadowprice.cli.console import Output, print_json, print_line, print_note
from shadowprice.cli.options import PlainOutputOption
from shadowprice.core.errors import Fault, InputError


def journal(
    path: Annotated[
        Path, typer.Argument(help="Journal file, or run directory with a journal.", metavar="PATH")
    ],
    check: Annotated[
        bool,
        typer.Option(
            "--check/--no-check", help="Replay the journal and compare the state with its digests."
        ),
    ] = True,
    events: Annotated[
        int, typer.Option("--events", "-n", min=0, help="Number of latest events to show.")
    ] = 0,
    output: PlainOutputOption = Output.TABLE,
) -> None:
    """Show the content of a journal, and check it.

    The check replays every event with its recorded decisions, without the policy, and compares the
    state with every digest in the journal.

    [bold]Examples[/bold]
        shadowprice journal run
        shadowprice journal run/journal.jsonl --events 20 --no-check
    """
    from shadowprice.results.run_directory import JOURNAL

    file = path / JOURNAL if path.is_dir() else path
    if file != path and not file.exists():
        raise InputError(Fault(str(path), "has no journal", "simulate --journal writes one"))
    summary = _read(file, check=check, events=events)
    if output is Output.JSON:
        print_json(summary)
        return
    for line in _lines(summary):
        print_line(line)


def _read(path: Path, *, check: bool, events: int) -> dict[str, Any]:
    from collections import Counter, deque

    from shadowprice.engine.engine import Entry
    from shadowprice.engine.journal import JournalReader, replay_item

    notices: list[str] = []

    def notice(text: str) -> None:
        notices.append(text)
        print_note(f"note: {text}")

    reader = JournalReader(path, notice)
    header = reader.header
    engine = header.engine() if check else None
    kinds: Counter[str] = Counter()
    decisions: Counter[str] = Counter()
    digests, slots = 0, [-1, -1]
    last: deque[dict[str, Any]] = deque(maxlen=events)
    for item in reader:
        if not isinstance(item, Entry):
            digests += 1
            if engine is not None:
                replay_item(engine, item, path)
            continue
        if engine is not None:
            replay_item(engine, item, path)
            engine.state.collect()
        kinds[item.event.tag] += 1
        for consultation in item.consultations:
            decisions.update(decision.tag for decision in consultation)
        slots = [item.event.slot if slots[0] < 0 else slots[0], item.event.slot]
        last.append(_entry_record(item))
    return {
        "path": str(path),
        "policy": header.policy,
        "servers": header.cluster.servers,
        "until": header.until,
        "versions": dict(header.versions),
        "events": kinds.total(),
        "first_slot": slots[0] if kinds else None,
        "last_slot": slots[1] if kinds else None,
        "by_kind": dict(sorted(kinds.items())),
        "decisions": dict(sorted(decisions.items())),
        "digests": digests,
        "checked": check,
        "state_digest": None if engine is None else engine.state_digest(),
        "notices": notices,
        "last": list(last),
    }


def _entry_record(entry: Any) -> dict[str, Any]:
    event = entry.event
    about = getattr(event, "job", None) or getattr(event, "server", None)
    if hasattr(event, "jobs"):
        about = ", ".join(str(job.name) for job in event.jobs)
    return {
        "n": entry.sequence,
        "event": event.tag,
        "slot": event.slot,
        "about": getattr(about, "name", about),
        "decisions": [
            f"{decision.tag} {decision.job}"
            for consultation in entry.consultations
            for decision in consultation
        ],
    }


def _lines(record: dict[str, Any]) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    policy, servers = record["policy"], record["servers"]
    lines = [
        f"{record['path']}: journal of {policy} on {servers} servers ({versions})",
        f"{record['events']} events, slots {record['first_slot']} to {record['last_slot']}"
        if record["events"]
        else "no events",
    ]
    for title, counts in (("events", record["by_kind"]), ("decisions", record["decisions"])):
        if counts:
            lines.append(
                f"{title}: " + ", ".join(f"{name} {count}" for name, count in counts.items())
            )
    for entry in record["last"]:
        about = f" {entry['about']}" if entry["about"] else ""
        decided = "".join(f"; {text}" for text in entry["decisions"])
        lines.append(f"{entry['n']:>8}  slot {entry['slot']:>6}  {entry['event']}{about}{decided}")
    if record["checked"]:
        lines.append(
            f"replayed without the policy; {record['digests']} digests agree; "
            f"state {record['state_digest'][:16]}"
        )
    else:
        lines.append("not checked")
    return lines

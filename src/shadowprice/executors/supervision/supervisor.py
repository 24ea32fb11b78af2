"""The supervisor of one generation: begins its processes, keeps their logs, ends them, tells how.

It is a small program of its own, one a generation, so that the service may come and go: what it has
to say stands in the generation's directory (`generation`), and a line into the executor's pipe, the
bell, only tells that something is new there. It reads orders from that directory when it is sent
SIGTERM. It ends when nothing of the generation runs any more. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Final

from shadowprice.executors.generations.generation import ENDED, RUNNING, Generation, me, start_time
from shadowprice.executors.generations.logs import LogWriter
from shadowprice.executors.generations.verdict import decided, done, status, verdict
from shadowprice.executors.supervision import cgroups, children

STRAY_GRACE: Final = 2.0
"""Seconds that what a job left behind has to end, once its own processes are over."""

FLOOD: Final = 8 << 20
"""Bytes of output a second and process that are taken; who writes more waits."""

_PIECE: Final = 65_536
_LIFELINE: Final = "lifeline"
_AGAIN: Final = 0.2
"""Seconds between looks at what should have ended."""

_SOON: Final = 0.02
"""The same, once it was killed."""


_SHORT: Final = {-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS}
"""How programs end that get no more memory, where they do not say so themselves."""


class _Child:
    """One process of the generation."""

    def __init__(self, name: str, log: LogWriter, memory: int) -> None:
        self.name = name
        self.log = log
        self.memory = memory
        """Bytes that it may map privately, 0 for any."""
        self.process: subprocess.Popen[bytes] | None = None
        self.pipe = -1
        self.code: int | None = None
        self.taken = 0
        """Bytes of output taken in the running second."""


class Supervisor:
    """Runs one generation, once.

    Parameters
    ----------
    generation : Generation
        Claimed by this process.
    bell : str
        Path of the executor's pipe.
    lifeline : int
        A pipe's end: when the other is closed, everything is killed at once, for whoever held that
        may not be able to end it any more. -1 where there is none.
    """

    def __init__(self, generation: Generation, bell: str, lifeline: int = -1) -> None:
        self._generation = generation
        self._plan = generation.plan()
        self._bell = bell
        self._selector = selectors.DefaultSelector()
        self._children: dict[str, _Child] = {}
        self._exits: list[tuple[str, int]] = []
        self._notes: dict[str, str] = {}
        self._killed: set[str] = set()
        self._forced = False
        self._stopped = False
        """Ordered to stop before anything else decided."""
        self._outside = False
        self._cut = False
        """Ended because the lifeline was."""
        self._exited_at = 0.0
        self._settled = 0.0
        """Until when what the workers leave behind, which exited 0, may end by itself."""
        self._ending = False
        self._deadline = float("inf")
        self._second = 0.0
        self._alone = False
        """Whether there is no child, and so, as orphans become children, no descendant at all."""
        self._tolerant = bool(self._plan["tolerates_workers"])
        cgroup = self._plan["cgroup"]
        self._cgroup = Path(cgroup) if cgroup else None
        self._waking, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        self._selector.register(self._waking, selectors.EVENT_READ)
        if lifeline >= 0:
            self._selector.register(lifeline, selectors.EVENT_READ, _LIFELINE)

    def run(self) -> None:
        """Run it to its end."""
        self._begin()
        self._follow_orders()
        while True:
            self._reap()
            self._decide()
            self._enforce()
            if self._over():
                break
            self._wait()
        self._finish()

    # ------------------------------------------------------------------ beginning

    def _begin(self) -> None:
        children.adopt_orphans()
        if self._cgroup is not None:
            try:
                cgroups.make(self._cgroup)
                cgroups.limits_memory(self._cgroup)
            except OSError:  # it was allowed when the executor began
                self._cgroup = None
        secrets, limit = self._plan["secrets"], self._plan["log_bytes"]
        for plan in self._plan["processes"]:
            log = LogWriter(self._generation.logs, plan["name"], limit, secrets)
            child = self._children[plan["name"]] = _Child(plan["name"], log, plan["memory"])
            if not self._exits:  # one that cannot be begun ends them all
                self._spawn(child, plan)
        state = self._generation.state()
        now = time.time()
        running = {
            child.name: [child.process.pid, start_time(child.process.pid)]
            for child in self._children.values()
            if child.process is not None
        }
        self._tell({**state, "phase": RUNNING, "started": now, "at": now, "processes": running})

    def _spawn(self, child: _Child, plan: dict[str, Any]) -> None:
        group = None
        try:
            if self._cgroup is not None:
                group = self._cgroup / plan["name"]
                cgroups.make(group, plan["cgroup_memory"])
            child.process, child.pipe = children.spawn(plan, group)
        except (OSError, subprocess.SubprocessError) as error:
            missing = isinstance(error, FileNotFoundError)
            self._notes[child.name] = children.why_not_begun(error, plan)
            self._exited(child, 127 if missing else 126)
        else:
            self._selector.register(child.pipe, selectors.EVENT_READ, child)

    # ------------------------------------------------------------------ orders

    def _follow_orders(self) -> None:
        """Take in an order to stop, where there is one."""
        stop = self._generation.stop()
        if not stop["command"]:
            return
        # The clock may jump between the order and now; nobody waits longer than the grace for it.
        remaining = min(max(0.0, stop["until"] - time.time()), stop["grace"])
        if self._ending:
            self._deadline = min(self._deadline, time.monotonic() + remaining)
        else:
            self._stopped = True
            self._end(remaining)

    def _end(self, grace: float) -> None:
        """Tell everything to end; what is left after the grace will be killed."""
        self._ending = True
        self._deadline = time.monotonic() + grace
        leaders = {
            child.process.pid
            for child in self._children.values()
            if child.process is not None and child.code is None
        }
        for leader in leaders:
            children.signal_group(leader, signal.SIGTERM)
        for process, group in self._left().items():
            if group not in leaders:
                children.signal_process(process, signal.SIGTERM)

    def _left(self) -> dict[int, int]:
        """Return what of the generation is there, with its process groups."""
        found = children.descendants(os.getpid())
        if self._cgroup is not None:
            # Some may have been begun since: by a shell that was told to end, to save.
            new = cgroups.members(self._cgroup) - found.keys()
            found |= {one: children.group_of(one) for one in new}
        return found

    # ------------------------------------------------------------------ following

    def _wait(self) -> None:
        now = time.monotonic()
        timeout: float | None = None
        if self._ending:
            timeout = max(_SOON, min(self._deadline - now, _AGAIN))
        elif self._settled:
            timeout = max(_SOON, self._settled - now)
        if any(child.taken >= FLOOD for child in self._children.values()):
            timeout = min(timeout if timeout is not None else 1.0, max(0.0, self._second + 1 - now))
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                self._woken(os.read(self._waking, 512))
            elif key.data is _LIFELINE:
                self._selector.unregister(key.fileobj)
                self._cut_off()
            else:
                self._pump(key.data)
        if time.monotonic() - self._second >= 1:
            self._next_second()

    def _woken(self, signals: bytes) -> None:
        if signal.SIGTERM not in signals:
            return
        if self._generation.stop()["command"]:
            self._follow_orders()
        elif not self._ending:
            self._outside = True
            self._end(self._plan["grace"])

    def _cut_off(self) -> None:
        """End everything now: nobody may be able to order it later."""
        self._cut = self._cut or not self._exits
        if not self._ending:
            self._outside = True
            self._end(0.0)
        self._deadline = time.monotonic()

    def _pump(self, child: _Child) -> None:
        """Take output; at its end, or where it comes too fast, stop listening."""
        try:
            content = os.read(child.pipe, _PIECE)
        except BlockingIOError:
            return
        if not content:
            self._hang_up(child)
            return
        child.log.feed(content)
        child.taken += len(content)
        if child.taken >= FLOOD:
            self._selector.unregister(child.pipe)

    def _next_second(self) -> None:
        self._second = time.monotonic()
        for child in self._children.values():
            if child.taken >= FLOOD and child.pipe >= 0:
                self._selector.register(child.pipe, selectors.EVENT_READ, child)
            child.taken = 0

    def _hang_up(self, child: _Child) -> None:
        if child.pipe >= 0:
            if child.taken < FLOOD:
                self._selector.unregister(child.pipe)
            os.close(child.pipe)
            child.pipe = -1

    def _reap(self) -> None:
        own = {
            child.process.pid: child
            for child in self._children.values()
            if child.process is not None and child.code is None
        }
        while True:
            try:
                process, waited = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._alone = True
                return
            self._alone = False
            if not process:
                return
            child = own.get(process)
            if child is not None:
                returned = os.waitstatus_to_exitcode(waited)
                assert child.process is not None
                child.process.returncode = returned  # it was waited for here
                if self._forced and returned == -signal.SIGKILL:
                    self._killed.add(child.name)
                elif self._cgroup is not None and cgroups.out_of_memory(self._cgroup / child.name):
                    self._notes[child.name] = "it needed more memory than its job asks for"
                elif returned in _SHORT and child.memory and not self._ending:
                    self._notes[child.name] = (
                        f"what it maps is held to {child.memory >> 20} MiB, the memory that its "
                        "job asks for, which may be why"
                    )
                self._exited(child, status(returned))

    def _exited(self, child: _Child, code: int) -> None:
        child.code = code
        self._exited_at = self._exited_at or time.time()
        self._exits.append((child.name, code))

    def _decide(self) -> None:
        """End the rest once nothing that the others do can change how it ends."""
        if self._ending:
            return
        workers = self._workers()
        # Where there are servers only, whoever looks after the workers decides.
        over = decided(self._exits, workers, tolerant=self._tolerant) if workers else self._exits
        if over and not (workers and self._settles(workers)):
            others = any(child.code is None for child in self._children.values())
            grace = self._plan["grace"]
            self._end(grace if others else min(grace, STRAY_GRACE))

    def _settles(self, workers: int) -> bool:
        """Whether what workers that exited 0 left behind may still be ending; else note what it is.

        A job is done with its workers; one that went to the background would be so at once, and
        nobody told why nothing came of it. Helpers that see their parent go end in a moment.
        """
        if not done(self._exits, workers, tolerant=self._tolerant):
            return False
        self._settled = self._settled or time.monotonic() + _AGAIN
        if self._alone:
            return False
        # One look misses what is being forked; whoever has a child still has something there.
        if time.monotonic() < self._settled:
            return True
        strays = self._strays()
        of: dict[str, list[int]] = {}
        for process in strays:
            told = children.variables(process)
            name = f"{told.get('SHADOWPRICE_ROLE')}-{told.get('SHADOWPRICE_RANK')}"
            of.setdefault(name if name in self._children else self._exits[-1][0], []).append(
                process
            )
        for name, processes in of.items():
            if names := children.called(processes):
                self._notes[name] = (
                    f"what it left running in the background ({names}) was ended with it; "
                    "a job lasts as long as its command"
                )
        return False

    def _strays(self) -> set[int]:
        """Return what is there beside processes that go on, and what descends from those."""
        left = set(self._left())
        for child in self._children.values():
            if child.process is not None and child.code is None:
                left -= {child.process.pid, *children.descendants(child.process.pid)}
        return left

    def _workers(self) -> int:
        return sum(name.startswith("worker-") for name in self._children)

    def _enforce(self) -> None:
        """Kill what is left after its grace.

        What descends from processes that are over may still be writing a checkpoint (a shell dies
        of the signal that its child handles), so it has the grace too.
        """
        if not self._ending or time.monotonic() < self._deadline:
            return
        self._forced = True
        for child in self._children.values():
            if child.process is not None and child.code is None:
                children.signal_group(child.process.pid, signal.SIGKILL)
        if self._cgroup is not None:
            cgroups.kill(self._cgroup)
        for process in self._left():
            children.signal_process(process, signal.SIGKILL)

    def _over(self) -> bool:
        if not self._ending or not self._alone:
            return False
        return self._cgroup is None or not cgroups.members(self._cgroup)

    # ------------------------------------------------------------------ ending

    def _finish(self) -> None:
        for child in self._children.values():
            self._drain(child)
            child.log.close()
        if self._cgroup is not None:
            cgroups.remove(self._cgroup)
        known = verdict(
            self._exits,
            self._workers(),
            tolerant=self._tolerant,
            stopped=self._stopped,
            from_outside=self._outside,
            killed=self._killed,
            notes=self._notes,
        )
        self._tell(
            {
                **self._generation.state(),
                "phase": ENDED,
                "at": time.time(),
                "ending": known.ending,
                "process": known.process,
                "code": known.code,
                "reason": known.reason,
                "tail": self._children[known.process].log.tail(),
                "forced": self._forced,
                "told": self._stopped or self._outside,
                "cut": self._cut,
                "exited": self._exited_at,
                "killed": known.process in self._killed,
                "note": self._notes.get(known.process, ""),
            }
        )

    def _drain(self, child: _Child) -> None:
        """Take what is left of the output."""
        taken = 0
        while child.pipe >= 0 and taken < FLOOD:
            try:
                content = os.read(child.pipe, _PIECE)
            except BlockingIOError:
                break
            if not content:
                break
            child.log.feed(content)
            taken += len(content)
        self._hang_up(child)

    def _tell(self, state: dict[str, Any]) -> None:
        """Put a state on the disk, however long the disk takes, and ring the bell."""
        for attempt in range(60):
            try:
                self._generation.write_state(state)
                break
            except OSError:
                if attempt == 59:
                    raise
                time.sleep(1.0)
        ring(self._bell, self._generation.path)


def ring(bell: str, path: Path) -> None:
    """Tell the executor, if one listens, that something is new in a generation's directory."""
    with contextlib.suppress(OSError):  # nobody listens, or the pipe is full: it looks by itself
        descriptor = os.open(bell, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(descriptor, f"{path.parent.parent.name} {path.name}\n".encode())
        finally:
            os.close(descriptor)


def main(path: Path, lifeline: int = -1) -> int:
    """Claim a generation and run it; nothing happens where another did or it is to be stopped.

    Parameters
    ----------
    path : Path
        Its directory.
    lifeline : int
        As of `Supervisor`.
    """
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
        # Handled, not ignored: what is ignored stays so in the processes that are begun.
        signal.signal(number, lambda *_: None)
    generation = Generation(path)
    plan = generation.plan()
    if not plan:
        return 0
    lock = generation.claim(me())
    if lock is None:
        ring(plan["bell"], path)  # it may be refused now
        return 0
    with lock:
        Supervisor(generation, plan["bell"], lifeline).run()
    return 0

"""The supervisor of one generation: starts, logs and ends its processes.

It is a separate program, so that generations survive a restart of the service. It reads the plan
from the generation's directory and writes the state there (`generation`). To notify the executor of
a change, it writes a line into the executor's named pipe, the bell. On SIGTERM it reads the stop
command from the directory. It exits when none of the generation's processes run. Standard library
only.
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

from shadowprice.executors.generations.generation import (
    GenerationDirectory,
    Phase,
    own_identity,
    start_time,
)
from shadowprice.executors.generations.logs import LogWriter
from shadowprice.executors.generations.outcome import (
    all_succeeded,
    compute_outcome,
    has_outcome,
    shell_exit_status,
)
from shadowprice.executors.supervision import cgroups, children

STRAY_GRACE: Final = 2.0  # maximum grace period in seconds if only background processes are left
MAX_OUTPUT_BYTES_PER_SECOND: Final = 8 << 20  # of a process; more isn't read before the next second

_READ_BYTES: Final = 65_536
_LIFELINE: Final = "lifeline"
_WRITE_ATTEMPTS: Final = 60  # one per second
_POLL_SECONDS: Final = 0.2  # seconds between checks for processes that should have ended
_MIN_POLL_SECONDS: Final = 0.02  # minimum seconds between these checks, used after SIGKILL

_OUT_OF_MEMORY_STATUSES: Final = {-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS}
"""Wait statuses typical of a program whose allocations fail at its memory limit."""


class _Child:
    def __init__(self, name: str, log: LogWriter, memory: int) -> None:
        self.name = name
        self.log = log
        self.memory = memory  # limit of private memory in bytes, 0 for none
        self.process: subprocess.Popen[bytes] | None = None
        self.pipe = -1
        self.code: int | None = None
        self.taken = 0  # bytes of output read in the current second


class Supervisor:
    """Runs one generation, claimed by this process, to its end.

    When the write end of the pipe ``lifeline`` closes, everything is killed at once, because its
    holder may no longer be able to stop the generation.
    """

    def __init__(self, generation: GenerationDirectory, bell: str, lifeline: int = -1) -> None:
        self._generation = generation
        self._plan = generation.plan()
        self._bell = bell
        self._selector = selectors.DefaultSelector()
        self._children: dict[str, _Child] = {}
        self._exits: list[tuple[str, int]] = []
        self._reported_exit_count = 0  # number of exits in the stored state
        self._notes: dict[str, str] = {}  # explanations of exits, by process
        self._killed: set[str] = set()  # processes that died of `_enforce`
        self._forced = False
        self._stop_command = 0  # number of the stop command that was applied last
        self._stopped = False  # a stop command arrived before any process decided the result
        self._outside = False  # a signal without a command, or the lifeline, ended it
        self._cut = False  # the lifeline closed before any process exited
        self._exited_at = 0.0  # time of the first exit, seconds since 1970
        self._helpers_deadline = 0.0  # monotonic; until then, helpers may end by themselves
        self._ending = False
        self._deadline = float("inf")  # monotonic end of the grace period
        self._second = 0.0  # monotonic start of the second that limits output
        self._has_no_children = False  # if True, no descendants either: this is a subreaper
        self._tolerant = bool(self._plan["tolerates_workers"])
        cgroup = self._plan["cgroup"]
        self._cgroup = Path(cgroup) if cgroup else None
        self._waking, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        self._selector.register(self._waking, selectors.EVENT_READ)
        if lifeline >= 0:
            self._selector.register(lifeline, selectors.EVENT_READ, _LIFELINE)

    def run(self) -> None:
        """Run the generation to its end."""
        self._begin()
        self._apply_stop_command()
        while True:
            self._reap_children()
            self._end_if_decided()
            if self._is_finished():  # before `_enforce`, which would record a forced end
                break
            self._enforce()
            self._wait()
        self._finish()

    # ------------------------------------------------------------------ beginning

    def _begin(self) -> None:
        children.become_subreaper()
        if self._cgroup is not None:
            try:
                cgroups.make(self._cgroup)
                cgroups.enable_memory_controller(self._cgroup)
            except OSError:  # permitted at the executor's start, but no longer
                self._cgroup = None
        secrets, limit = self._plan["secrets"], self._plan["log_bytes"]
        for plan in self._plan["processes"]:
            log = LogWriter(self._generation.logs, plan["name"], limit, secrets)
            child = self._children[plan["name"]] = _Child(plan["name"], log, plan["memory"])
            if not self._exits:  # a failed start is an exit, which ends the generation
                self._spawn(child, plan)
        state = self._generation.state()
        now = time.time()
        running = {child.name: [pid, start_time(pid)] for pid, child in self._running().items()}
        self._write_state(
            {**state, "phase": Phase.RUNNING, "started": now, "at": now, "processes": running}
        )

    def _spawn(self, child: _Child, plan: dict[str, Any]) -> None:
        group = None
        try:
            if self._cgroup is not None:
                group = self._cgroup / plan["name"]
                cgroups.make(group, plan["cgroup_memory"])
            child.process, child.pipe = children.spawn(plan, group)
        except (OSError, subprocess.SubprocessError) as error:
            missing = isinstance(error, FileNotFoundError)
            self._notes[child.name] = children.spawn_error_message(error, plan)
            self._on_exit(child, 127 if missing else 126)
        else:
            self._selector.register(child.pipe, selectors.EVENT_READ, child)

    # ------------------------------------------------------------------ commands

    def _apply_stop_command(self) -> None:
        """Apply the stop command in the generation's directory, if there is a new one."""
        stop = self._generation.stop()
        # A repeated signal must not restart the grace period, as the clock may have been set.
        if stop["command"] == self._stop_command:
            return
        self._stop_command = stop["command"]
        # If the clock was set back since, ``until`` is too late: wait at most the grace period.
        remaining = min(max(0.0, stop["until"] - time.time()), stop["grace"])
        if self._ending:
            self._deadline = min(self._deadline, time.monotonic() + remaining)
        else:
            self._stopped = True
            self._end(remaining)

    def _end(self, grace: float) -> None:
        """Send SIGTERM to every process; `_enforce` kills the rest after the grace period."""
        self._ending = True
        self._deadline = time.monotonic() + grace
        leaders = self._running()
        for leader in leaders:
            children.signal_group(leader, signal.SIGTERM)
        for process, group in self._remaining_processes().items():
            if group not in leaders:
                children.signal_process(process, signal.SIGTERM)

    def _running(self) -> dict[int, _Child]:
        """Return the children that haven't ended, by pid."""
        return {
            child.process.pid: child
            for child in self._children.values()
            if child.process is not None and child.code is None
        }

    def _remaining_processes(self) -> dict[int, int]:
        """Return the generation's remaining processes with their process groups."""
        remaining = children.descendants(os.getpid())
        if self._cgroup is not None:
            # A process may have been forked since, for example by a shell's SIGTERM trap.
            new = cgroups.list_processes(self._cgroup) - remaining.keys()
            remaining |= {process: children.process_group(process) for process in new}
        return remaining

    # ------------------------------------------------------------------ following

    def _wait(self) -> None:
        """Wait for output, signals or the lifeline, up to the next time-dependent step."""
        now = time.monotonic()
        timeout: float | None = None
        if self._ending:
            timeout = max(_MIN_POLL_SECONDS, min(self._deadline - now, _POLL_SECONDS))
        elif self._helpers_deadline:
            timeout = max(_MIN_POLL_SECONDS, self._helpers_deadline - now)
        if any(child.taken >= MAX_OUTPUT_BYTES_PER_SECOND for child in self._children.values()):
            timeout = min(timeout if timeout is not None else 1.0, max(0.0, self._second + 1 - now))
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                self._on_signals(os.read(self._waking, 512))
            elif key.data is _LIFELINE:
                self._selector.unregister(key.fileobj)
                self._on_lifeline_closed()
            else:
                self._pump(key.data)
        if time.monotonic() - self._second >= 1:
            self._next_second()

    def _on_signals(self, signals: bytes) -> None:
        if signal.SIGTERM not in signals:
            return
        if self._generation.stop()["command"]:
            self._apply_stop_command()
        elif not self._ending:
            self._outside = True
            self._end(self._plan["grace"])

    def _on_lifeline_closed(self) -> None:
        """Kill everything now, because stop commands may not arrive any more."""
        self._cut = self._cut or not self._exits
        if not self._ending:
            self._outside = True
            self._end(0.0)
        self._deadline = time.monotonic()

    def _pump(self, child: _Child) -> bool:
        """Read output; return False at its end, above the rate limit, or if there is none."""
        try:
            content = os.read(child.pipe, _READ_BYTES)
        except BlockingIOError:
            return False
        if not content:
            self._close_pipe(child)
            return False
        child.log.feed(content)
        child.taken += len(content)
        if child.taken >= MAX_OUTPUT_BYTES_PER_SECOND:
            self._selector.unregister(child.pipe)
            return False
        return True

    def _next_second(self) -> None:
        """Read again from processes that had reached the limit of output per second."""
        self._second = time.monotonic()
        for child in self._children.values():
            if child.taken >= MAX_OUTPUT_BYTES_PER_SECOND and child.pipe >= 0:
                self._selector.register(child.pipe, selectors.EVENT_READ, child)
            child.taken = 0

    def _close_pipe(self, child: _Child) -> None:
        if child.pipe >= 0:
            if child.taken < MAX_OUTPUT_BYTES_PER_SECOND:
                self._selector.unregister(child.pipe)
            os.close(child.pipe)
            child.pipe = -1

    def _reap_children(self) -> None:
        own = self._running()
        while True:
            try:
                process, waited = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._has_no_children = True
                return
            self._has_no_children = False
            if not process:
                return
            child = own.get(process)
            if child is not None:
                return_code = os.waitstatus_to_exitcode(waited)
                assert child.process is not None
                child.process.returncode = return_code  # reaped here, so Popen must not wait
                if self._forced and return_code == -signal.SIGKILL:
                    self._killed.add(child.name)
                elif self._cgroup is not None and cgroups.was_oom_killed(self._cgroup / child.name):
                    self._notes[child.name] = "it used more memory than its job requests"
                elif return_code in _OUT_OF_MEMORY_STATUSES and child.memory and not self._ending:
                    self._notes[child.name] = (
                        f"its data memory is limited to {child.memory >> 20} MiB, the job's "
                        "request; this may be the cause"
                    )
                self._on_exit(child, shell_exit_status(return_code))

    def _on_exit(self, child: _Child, code: int) -> None:
        child.code = code
        self._exited_at = self._exited_at or time.time()
        self._exits.append((child.name, code))

    def _end_if_decided(self) -> None:
        """End the other processes once they can't change the generation's result."""
        if self._ending:
            return
        workers = self._workers()
        # On Ray, a parameter server has its own supervisor. It only reports the exit.
        is_decided = (
            has_outcome(self._exits, workers, tolerant=self._tolerant) if workers else self._exits
        )
        if is_decided and not (workers and self._waits_for_helpers(workers)):
            others = any(child.code is None for child in self._children.values())
            grace = self._plan["grace"]  # others may still save a checkpoint
            self._end(grace if others else min(grace, STRAY_GRACE))
        elif not is_decided and len(self._exits) > self._reported_exit_count:
            self._reported_exit_count = len(self._exits)
            # Only informs people about a job that continues, so a failed write isn't retried.
            with contextlib.suppress(OSError, ValueError):
                self._generation.write_state({**self._generation.state(), "exits": self._exits})
                notify_executor(self._bell, self._generation.path)

    def _waits_for_helpers(self, workers: int) -> bool:
        """Return whether to wait for helpers of workers that exited 0; note those that remain.

        Helpers are processes that a worker started and left. If they end with the worker, they need
        a moment, so they get `_POLL_SECONDS`. Later ones are ended with the generation. Their names
        are noted, because otherwise nothing would explain the early end of a daemonized job.
        """
        if not all_succeeded(self._exits, workers, tolerant=self._tolerant):
            return False
        self._helpers_deadline = self._helpers_deadline or time.monotonic() + _POLL_SECONDS
        if self._has_no_children:
            return False
        # There are children, although a list of processes may miss those that are being forked.
        if time.monotonic() < self._helpers_deadline:
            return True
        strays_by_name: dict[str, list[int]] = {}
        for process in self._strays():
            variables = children.read_environ(process)
            name = f"{variables.get('SHADOWPRICE_ROLE')}-{variables.get('SHADOWPRICE_RANK')}"
            owner = name if name in self._children else self._exits[-1][0]
            strays_by_name.setdefault(owner, []).append(process)
        for name, processes in strays_by_name.items():
            if names := children.process_names(processes):
                self._notes[name] = (
                    f"background processes ({names}) were stopped when the command ended; "
                    "keep the command running until they finish"
                )
        return False

    def _strays(self) -> set[int]:
        """Return the remaining processes, except running children and their descendants."""
        remaining = set(self._remaining_processes())
        for process in self._running():
            remaining -= {process, *children.descendants(process)}
        return remaining

    def _workers(self) -> int:
        return sum(name.startswith("worker-") for name in self._children)

    def _enforce(self) -> None:
        """Kill the remaining processes after the grace period.

        Descendants of ended processes get the grace period too: they may still write a checkpoint,
        for example if a shell dies of the signal that its child handles.
        """
        if not self._ending or time.monotonic() < self._deadline:
            return
        self._forced = True
        for leader in self._running():
            children.signal_group(leader, signal.SIGKILL)
        if self._cgroup is not None:
            cgroups.kill(self._cgroup)
        for process in self._remaining_processes():
            children.signal_process(process, signal.SIGKILL)

    def _is_finished(self) -> bool:
        if not self._ending or not self._has_no_children:
            return False
        return self._cgroup is None or not cgroups.list_processes(self._cgroup)

    # ------------------------------------------------------------------ ending

    def _finish(self) -> None:
        self._next_second()
        for child in self._children.values():
            while child.pipe >= 0 and self._pump(child):
                pass
            self._close_pipe(child)
            child.log.close()
        if self._cgroup is not None:
            cgroups.remove(self._cgroup)
        result = compute_outcome(
            self._exits,
            self._workers(),
            tolerant=self._tolerant,
            stopped=self._stopped,
            from_outside=self._outside,
            killed=self._killed,
            notes=self._notes,
        )
        self._write_state(
            {
                **self._generation.state(),
                "phase": Phase.ENDED,
                "at": time.time(),
                **result.record(),
                "tail": self._children[result.process].log.tail(),
                "forced": self._forced,
                "stop_requested": self._stopped or self._outside,
                "cut": self._cut,
                "exited": self._exited_at,
                "killed": result.process in self._killed,
                "note": self._notes.get(result.process, ""),
            }
        )

    def _write_state(self, state: dict[str, Any]) -> None:
        """Store a state, with retries for a minute, and ring the bell."""
        for attempt in range(_WRITE_ATTEMPTS):
            try:
                self._generation.write_state(state)
                break
            except OSError:
                if attempt == _WRITE_ATTEMPTS - 1:
                    raise
                time.sleep(1.0)
        notify_executor(self._bell, self._generation.path)


def notify_executor(bell: str, path: Path) -> None:
    """Notify the executor that a generation's directory changed."""
    with contextlib.suppress(OSError):  # no reader, or the pipe is full: the executor polls too
        descriptor = os.open(bell, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(descriptor, f"{path.parent.parent.name} {path.name}\n".encode())
        finally:
            os.close(descriptor)


def main(path: Path, lifeline: int = -1) -> int:
    """Claim a generation and run it; do nothing if it is claimed or to be stopped."""
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
        # Handled, not ignored: spawned processes would inherit an ignored signal.
        signal.signal(number, lambda *_: None)
    generation = GenerationDirectory(path)
    plan = generation.plan()
    if not plan:
        return 0
    lock = generation.claim(own_identity())
    if lock is None:
        notify_executor(plan["bell"], path)  # `claim` may have refused it
        return 0
    with lock:
        Supervisor(generation, plan["bell"], lifeline).run()
    return 0

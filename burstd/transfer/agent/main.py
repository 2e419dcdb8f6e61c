"""The agent on a node: reads one request from standard input, does it, and answers in lines of JSON.

Run as root. It ends when standard input does: whoever asked is gone then, and what was begun is gone on with later.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from burstd.domain.plugins.stager import StagerError
from burstd.transfer.agent.checkpoint import collect_checkpoint
from burstd.transfer.agent.collection import collect_output, owned_job_folder
from burstd.transfer.agent.job_command import run_job_command
from burstd.transfer.agent.job_folder import JobFolder, existing_job_folder
from burstd.transfer.agent.operations import OPERATIONS
from burstd.transfer.agent.placement import InputDelivery
from burstd.transfer.agent.shared_scratch import end_sharing, mount_shared, remove_shared, serve_shared
from burstd.transfer.agent.user_process import AgentFault, JsonObject, UserProcess, fault_from_oserror
from burstd.transfer.agent.workdir import clear_job
from burstd.transfer.protocol.transports import open_transport

_PROGRESS_S = 0.5
_HEARTBEAT_S = 5.0


class HeadConnection:
    """What is said to whoever runs the agent, and asked. For several threads at once."""

    def __init__(self, on_disconnect: Callable[[], None]) -> None:
        """``on_disconnect`` is called before the process ends where nobody is there any more to be answered."""
        self._on_disconnect = on_disconnect
        self._write_lock = threading.Lock()
        self._call_lock = threading.Lock()
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._bytes = self._total = 0
        self._reported_at = 0.0
        self._finished = threading.Event()

    def start_threads(self) -> None:
        """From now on lines that come are answers, and the end of them is ours; and burstd hears that we live."""
        threading.Thread(target=self._read_answers, name="listen", daemon=True).start()
        threading.Thread(target=self._send_heartbeats, name="beat", daemon=True).start()

    def report_final_progress(self) -> None:
        """Reports progress once more; then nothing but the answer is said."""
        if not self._finished.is_set():
            self._finished.set()
            self.send_line({"progress": {"bytes": self._bytes, "of": self._total}})

    def send_line(self, message: JsonObject) -> None:
        """One line. Ends the process where nobody reads it."""
        line = json.dumps(message).encode() + b"\n"
        with self._write_lock:
            try:
                while line:
                    line = line[os.write(1, line) :]
            except OSError:
                self._exit()

    def query_head(self, question: dict[str, Any]) -> dict[str, Any]:
        """Asks, and waits for the answer."""
        with self._call_lock:
            self.send_line(question)
            answer: dict[str, Any] = json.loads(self._answers.get())
        if "error" in answer:
            raise AgentFault("store", str(answer["error"]))
        return answer

    def report_progress(self, done: int, total: int) -> None:
        """Tells how far it is, now and then."""
        self._bytes, self._total = done, total
        now = time.monotonic()
        if now - self._reported_at >= _PROGRESS_S:
            self._reported_at = now
            self.send_line({"progress": {"bytes": done, "of": total}})

    def _send_heartbeats(self) -> None:
        while not self._finished.wait(_HEARTBEAT_S):
            self.send_line({"progress": {"bytes": self._bytes, "of": self._total}})

    def _read_answers(self) -> None:
        for line in sys.stdin:
            self._answers.put(line)
        if not self._finished.is_set():
            self._exit()

    def _exit(self) -> NoReturn:
        self._on_disconnect()
        os._exit(2)


def main() -> int:
    """The program: does one request. Returns the exit status: 0 where it was done, 1 where the answer is an error."""
    os.umask(0o077)
    user = UserProcess(OPERATIONS)
    head = HeadConnection(user.kill)
    answer: JsonObject
    try:
        # Not before: the child is to have nothing of the request in its memory.
        request = json.loads(sys.stdin.readline())
        head.start_threads()
        try:
            answer = {"done": _execute_request(request, user, head)}
        except StagerError as error:
            raise AgentFault("store", str(error)) from None
        except OSError as error:
            raise fault_from_oserror(error, f"{request['do']} of job {request['job']}") from None
    except AgentFault as fault:
        keys = {"keys": list(fault.keys)} if fault.keys else {}
        answer = {"error": str(fault), "kind": fault.kind, **keys}
    finally:
        head.report_final_progress()
        user.close()
    head.send_line(answer)
    return 0 if "done" in answer else 1


def _execute_request(request: JsonObject, user: UserProcess, head: HeadConnection) -> JsonObject:
    what, request = request["do"], {**request, "dir": existing_job_folder(request)}
    if what == "collect":
        # The job is over. Its output comes first: what is left in the directory does not matter.
        end_sharing(JobFolder(request["dir"]), request["job"])
    if what == "clear":
        remove_shared(JobFolder(request["dir"]), request["job"])
        clear_job(request["dir"], request["job"])
        return {}
    if what == "command":
        return run_job_command(request, user)
    if what == "serve_shared":
        return serve_shared(owned_job_folder(request), request)
    if what == "mount_shared":
        return mount_shared(owned_job_folder(request), request)
    if what not in {"place", "collect", "checkpoint"}:
        raise AgentFault("agent", f"the agent cannot do {what!r}")
    transport = open_transport(request["reach"], head.query_head)
    try:
        if what == "place":
            return InputDelivery(request, user, transport, head.report_progress).deliver()
        if what == "checkpoint":
            return collect_checkpoint(request, user, transport, head.report_progress, head.query_head)
        return collect_output(request, user, transport, head.report_progress)
    finally:
        transport.close()

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
from burstd.transfer.agent.collection import collect
from burstd.transfer.agent.operations import WORKS
from burstd.transfer.agent.placement import Placing, clear, folder_made
from burstd.transfer.agent.user_process import AgentFault, Message, UserSide, fault_of
from burstd.transfer.protocol.transports import open_reach

_PROGRESS_S = 0.5
_BEAT_S = 5.0


class Conversation:
    """What is said to whoever runs the agent, and asked. For several threads at once."""

    def __init__(self, leave: Callable[[], None]) -> None:
        """``leave`` is called before the process ends where nobody is there any more to be answered."""
        self._leave = leave
        self._writing = threading.Lock()
        self._asking = threading.Lock()
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._bytes = self._of = 0
        self._told = 0.0
        self._over = threading.Event()

    def begin(self) -> None:
        """From now on lines that come are answers, and the end of them is ours; and it is told that we live."""
        threading.Thread(target=self._listen, name="listen", daemon=True).start()
        threading.Thread(target=self._beat, name="beat", daemon=True).start()

    def end(self) -> None:
        """How far it came is told once more; then nothing but the answer is said."""
        if not self._over.is_set():
            self._over.set()
            self.say({"progress": {"bytes": self._bytes, "of": self._of}})

    def say(self, message: Message) -> None:
        """One line. Ends the process where nobody reads it."""
        line = json.dumps(message).encode() + b"\n"
        with self._writing:
            try:
                while line:
                    line = line[os.write(1, line) :]
            except OSError:
                self._exit()

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Asks, and waits for the answer."""
        with self._asking:
            self.say(question)
            answer: dict[str, Any] = json.loads(self._answers.get())
        if "error" in answer:
            raise AgentFault("store", str(answer["error"]))
        return answer

    def progress(self, done: int, of: int) -> None:
        """Tells how far it is, now and then."""
        self._bytes, self._of = done, of
        now = time.monotonic()
        if now - self._told >= _PROGRESS_S:
            self._told = now
            self.say({"progress": {"bytes": done, "of": of}})

    def _beat(self) -> None:
        while not self._over.wait(_BEAT_S):
            self.say({"progress": {"bytes": self._bytes, "of": self._of}})

    def _listen(self) -> None:
        for line in sys.stdin:
            self._answers.put(line)
        if not self._over.is_set():
            self._exit()

    def _exit(self) -> NoReturn:
        self._leave()
        os._exit(2)


def main() -> int:
    """The program: does one request. Returns the exit status: 0 where it was done, 1 where the answer is an error."""
    os.umask(0o077)
    user = UserSide(WORKS)
    talk = Conversation(user.kill)
    answer: Message
    try:
        # Not before: the child is to have nothing of the request in its memory.
        request = json.loads(sys.stdin.readline())
        talk.begin()
        try:
            answer = {"done": _do(request, user, talk)}
        except StagerError as error:
            raise AgentFault("store", str(error)) from None
        except OSError as error:
            raise fault_of(error, f"{request['do']} of job {request['job']}") from None
    except AgentFault as fault:
        keys = {"keys": list(fault.keys)} if fault.keys else {}
        answer = {"error": str(fault), "kind": fault.kind, **keys}
    finally:
        talk.end()
        user.close()
    talk.say(answer)
    return 0 if "done" in answer else 1


def _do(request: Message, user: UserSide, talk: Conversation) -> Message:
    what, request = request["do"], {**request, "dir": folder_made(request)}
    if what == "clear":
        clear(request["dir"], request["job"])
        return {}
    if what not in {"place", "collect"}:
        raise AgentFault("agent", f"the agent cannot do {what!r}")
    transport = open_reach(request["reach"], talk.ask)
    try:
        if what == "place":
            return Placing(request, user, transport, talk.progress).run()
        return collect(request, user, transport, talk.progress)
    finally:
        transport.close()

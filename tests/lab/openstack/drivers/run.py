"""Starts one service, by the services' own Python: ``run.py wsgi|main MODULE AFTER,AFTER WORDS``.

``wsgi`` serves the module's ``application``: the words are address, port, number of threads and the command line.
``main`` calls the module's ``main``, with the words for its command line. What takes long, the imports, is done before
the wait for what this service asks as it starts: ``PORT`` (of loopback) or ``ADDRESS:PORT`` listens, ``QUEUE@PORT`` has
someone who reads it, in the broker there.
"""

# mypy: disable-error-code="import-untyped, import-not-found"
from __future__ import annotations

import gc
import importlib
import socket
import sys
import time
from pathlib import Path


def _listens(place: str) -> bool:
    address, _, port = place.rpartition(":")
    with socket.socket() as probe:
        probe.settimeout(5)
        return probe.connect_ex((address or "127.0.0.1", int(port))) == 0


def _is_read(queue: str, port: str) -> bool:
    import amqp

    with amqp.Connection(f"127.0.0.1:{port}") as connection:
        try:
            return bool(connection.channel().queue_declare(queue, passive=True).consumer_count)
        except amqp.exceptions.NotFound:
            return False


def _wait(places: list[str]) -> None:
    for place in places:
        queue, at, port = place.rpartition("@")
        while not (_is_read(queue, port) if at else _listens(place)):
            time.sleep(0.1)


def main(argv: list[str]) -> None:
    """Does not return while the service runs."""
    kind, module, after, *words = argv
    # Looking for garbage meanwhile is a fifth of the work of the imports, and there is none.
    gc.disable()
    # Services read the command line as they are imported: it is theirs.
    sys.argv = [module, *(words if kind == "main" else words[3:])]
    if kind == "wsgi":
        import waitress

        _wait(after.split(","))
        host, port, threads = words[:3]
        application = importlib.import_module(module).application
        gc.freeze()
        gc.enable()
        # More connections than a client's pool keeps open; an image may be of any size.
        waitress.serve(
            application, host=host, port=int(port), threads=int(threads), connection_limit=500,
            max_request_body_size=1 << 40,
        )  # fmt: skip
        return
    loaded = importlib.import_module(module)
    if module.startswith("nova."):
        from nova.servicegroup import api

        # Else five seconds go by before a service says that it is up.
        api.INITIAL_REPORTING_DELAY = 0
    if module == "nova.cmd.compute":
        import nova.virt

        # Nova has drivers of this package only.
        nova.virt.__path__.append(str(Path(__file__).parent))
    gc.freeze()
    gc.enable()
    _wait(after.split(","))
    loaded.main()


if __name__ == "__main__":
    main(sys.argv[1:])

"""Programs for other machines: each has all modules that it imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from burstd.transfer.protocol.bundle import agent_zipapp
from staging.served import server_zipapp


@pytest.mark.parametrize("program", [agent_zipapp(), server_zipapp()], ids=["agent", "serve"])
def test_a_program_lacks_no_module(program: bytes, tmp_path: Path) -> None:
    file = tmp_path / "program.pyz"
    file.write_bytes(program)
    names = "import sys, zipfile; sys.path.insert(0, sys.argv[1])\n"
    names += "for path in zipfile.ZipFile(sys.argv[1]).namelist():\n"
    names += "    path == '__main__.py' or __import__(path[:-3].replace('/', '.').removesuffix('.__init__'))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", names, file], capture_output=True, text=True, check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")

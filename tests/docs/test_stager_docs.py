"""The world of docs/stager-authors.md, taken from the document, passes the suite as it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.programs import PROJECT

pytestmark = pytest.mark.slow


def test_the_world_of_the_guide_passes(tmp_path: Path) -> None:
    text = (PROJECT / "docs" / "stager-authors.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "test_folder.py").write_text(block, encoding="utf-8")
    # A folder of its own: pytest closes the one that all its runs share to others, below the feet of tests beside it.
    own = ["-p", "no:cacheprovider", "--basetemp", str(tmp_path / "inner")]
    words = [sys.executable, "-m", "pytest", "-q", *own, "test_folder.py"]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert re.search(r"\b1\d passed", done.stdout), done.stdout

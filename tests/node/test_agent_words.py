"""What the agent on a node says, read at the border."""

from __future__ import annotations

import json

import pytest

from burstd.node.agent import AgentError, _parse_line


def test_a_name_that_is_no_utf_8_leaves_an_answer_readable() -> None:
    said = _parse_line(json.dumps({"done": {"warnings": ["out/\udcff\udcfe is a pipe"]}}).encode())
    assert said.done == {"warnings": ["out/\ufffd\ufffd is a pipe"]}


@pytest.mark.parametrize("line", [b"", b"[]", b'{"done": 1}', b'{"kind": "' + b"x" * 21 + b'"}'])
def test_what_is_no_answer_is_an_error_of_the_agent(line: bytes) -> None:
    with pytest.raises(AgentError, match="no answer"):
        _parse_line(line)

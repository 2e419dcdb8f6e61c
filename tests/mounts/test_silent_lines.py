"""The kernel's table of TCP connections, as far as it tells of lines that are silent."""

from __future__ import annotations

import pytest

from burstd.mounts.silent_lines import silent_peers

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
ROW = "   5: 0100FEA9:BBD6 {} {} 00000024:00000000 {}:00000193 {} 0 0 45081 2 ffff9a00c5b1a300 3200 4 20 10 -1\n"
PEER = "01014D0A:0016"


@pytest.mark.parametrize(
    ("row", "peers"),
    [
        (ROW.format(PEER, "01", "01", "00000004"), {("10.77.1.1", 22)}),
        (ROW.format(PEER, "01", "01", "00000003"), set()),
        (ROW.format(PEER, "01", "02", "00000009"), set()),  # keepalive of an idle connection
        (ROW.format(PEER, "01", "04", "00000009"), set()),  # the peer lives, and its window is closed
        (ROW.format(PEER, "02", "01", "00000009"), set()),  # it is not established
        (ROW.format("0000000000000000FFFF000001014D0A:0016", "01", "01", "0000000A"), {("10.77.1.1", 22)}),
        (
            ROW.format("000080FE00000000FFFE540012005452:08AE", "01", "01", "0000000A"),
            {("fe80::54:feff:5254:12", 2222)},
        ),
    ],
)
def test_peers_that_acknowledge_nothing(row: str, peers: set[tuple[str, int]]) -> None:
    assert silent_peers([HEAD, HEAD + row]) == peers

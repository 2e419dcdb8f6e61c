"""What facts.sh makes of nvidia-smi's XML."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from burstd.node.facts import FactsRequest, GpuState, MachineFacts, facts_script, parse_facts

AMPERE = """\
	<gpu id="00000000:19:00.0">
		<gpu_recovery_action>{recovery}</gpu_recovery_action>
			<link_widths>
				<max_link_width>16x</max_link_width>
				<current_link_width>{width}</current_link_width>
			</link_widths>
		<clocks_event_reasons>
			<clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle>
			<clocks_event_reason_sw_power_cap>Active</clocks_event_reason_sw_power_cap>
			<clocks_event_reason_hw_slowdown>{slowed}</clocks_event_reason_hw_slowdown>
			<clocks_event_reason_hw_thermal_slowdown>{slowed}</clocks_event_reason_hw_thermal_slowdown>
		</clocks_event_reasons>
		<ecc_errors>
			<volatile>
				<sram_correctable>5</sram_correctable>
				<sram_uncorrectable_parity>{errors}</sram_uncorrectable_parity>
				<sram_uncorrectable_secded>0</sram_uncorrectable_secded>
				<dram_uncorrectable>{errors}</dram_uncorrectable>
			</volatile>
			<aggregate>
				<dram_uncorrectable>77</dram_uncorrectable>
			</aggregate>
		</ecc_errors>
		<retired_pages>
			<pending_blacklist>N/A</pending_blacklist>
			<pending_retirement>N/A</pending_retirement>
		</retired_pages>
		<remapped_rows>
			<remapped_row_pending>{pending}</remapped_row_pending>
			<remapped_row_failure>{failed}</remapped_row_failure>
		</remapped_rows>
	</gpu>
"""
WELL = {"recovery": "None", "width": "16x", "slowed": "Not Active", "errors": "0", "pending": "No", "failed": "No"}
VOLTA = """\
	<gpu id="00000000:3B:00.0">
		<clocks_throttle_reasons>
			<clocks_throttle_reason_sw_thermal_slowdown>Active</clocks_throttle_reason_sw_thermal_slowdown>
		</clocks_throttle_reasons>
		<ecc_errors>
			<volatile>
				<single_bit>
					<total>4</total>
				</single_bit>
				<double_bit>
					<device_memory>3</device_memory>
					<total>3</total>
				</double_bit>
			</volatile>
			<aggregate>
				<double_bit>
					<total>9</total>
				</double_bit>
			</aggregate>
		</ecc_errors>
		<retired_pages>
			<pending_retirement>Yes</pending_retirement>
		</retired_pages>
	</gpu>
"""
HEAD = "<nvidia_smi_log>\n\t<driver_version>550.54.15</driver_version>\n\t<cuda_version>12.4</cuda_version>\n"
Facts = Callable[[str], MachineFacts]


@pytest.fixture
def facts(tmp_path: Path) -> Facts:
    """What is found out of a machine whose nvidia-smi -q -x is this script."""

    def found(says: str) -> MachineFacts:
        program = tmp_path / "nvidia-smi"
        program.write_text(f'#!/bin/sh\n[ "$1" != -L ] || exit 0\n{says}\n')
        program.chmod(0o755)
        script = facts_script(FactsRequest(within_s=2)).replace("PATH=/usr/sbin", f"PATH={tmp_path}:/usr/sbin")
        done = subprocess.run(["sh"], input=script, capture_output=True, text=True, check=True, timeout=30)
        assert len(done.stdout) < 1 << 16
        read = parse_facts(done.stdout, asked=0, answered=0)
        assert read is not None
        return read

    return found


def xml(*gpus: str) -> str:
    return f"cat <<'END'\n{HEAD}{''.join(gpus)}</nvidia_smi_log>\nEND\n"


@pytest.mark.parametrize(
    ("gpu", "state"),
    [
        (AMPERE.format_map(WELL), GpuState("00000000:19:00.0", width=16, max_width=16)),
        (
            AMPERE.format(recovery="GPU Reset", width="8x", slowed="Active", errors="2", pending="Yes", failed="Yes"),
            GpuState(
                "00000000:19:00.0", 4, True, True, "GPU Reset", ("hw_slowdown", "hw_thermal_slowdown"), 8, 16
            ),
        ),
        (AMPERE.format_map(dict.fromkeys(WELL, "N/A")), GpuState("00000000:19:00.0", max_width=16)),
        (VOLTA, GpuState("00000000:3B:00.0", 3, remap_pending=True, slowed=("sw_thermal_slowdown",))),
    ],
)  # fmt: skip
def test_the_state_of_a_gpu(facts: Facts, gpu: str, state: GpuState) -> None:
    found = facts(xml(gpu))
    assert found.gpu_states == (state,)
    assert found.cuda == "12.4"


@pytest.mark.parametrize(
    "says",
    [
        "exec sleep 60",
        "head -c 10000000 /dev/zero | tr '\\0' x",
        "yes '<gpu id=\"1\">'",
        "head -c 1000000 /dev/urandom",
        "echo 'NVIDIA-SMI est en échec'; exit 9",
    ],
)
def test_an_nvidia_smi_that_says_nothing_of_use(facts: Facts, says: str) -> None:
    assert facts(says).gpu_states == ()

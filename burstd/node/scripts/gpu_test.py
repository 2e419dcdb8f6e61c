"""Has each GPU of this machine compute something whose result is known, through the CUDA driver alone.

Arguments: seconds for all of it; "long", for dcgmi's own test after it; GB/s that nvbandwidth must then find. Prints
a line for each GPU, or part of one (MIG): "ok UUID" or "failed UUID WHY"; then the same of "dcgmi" and "nvbandwidth";
then "end".

The kernels are what NVRTC 12.9 makes for compute_50 of

    extern "C" __global__ void vector_add(const float *a, const float *b, float *c, unsigned n)
    {
        unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) c[i] = a[i] + b[i];
    }
    extern "C" __global__ void matrix_product(const float *a, const float *b, float *c, unsigned n)
    {
        unsigned row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
        if (row >= n || column >= n) return;
        float sum = 0;
        #pragma unroll 1
        for (unsigned k = 0; k < n; k++) sum += a[row * n + k] * b[k * n + column];
        c[row * n + column] = sum;
    }
"""

from __future__ import annotations

import array
import ctypes
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

KERNELS = b"""\
.version 6.3
.target sm_50
.address_size 64
.visible .entry vector_add(
.param .u64 vector_add_param_0,
.param .u64 vector_add_param_1,
.param .u64 vector_add_param_2,
.param .u32 vector_add_param_3
)
{
.reg .pred %p<2>;
.reg .f32 %f<4>;
.reg .b32 %r<6>;
.reg .b64 %rd<11>;
ld.param.u64 %rd1, [vector_add_param_0];
ld.param.u64 %rd2, [vector_add_param_1];
ld.param.u64 %rd3, [vector_add_param_2];
ld.param.u32 %r2, [vector_add_param_3];
mov.u32 %r3, %ctaid.x;
mov.u32 %r4, %ntid.x;
mov.u32 %r5, %tid.x;
mad.lo.s32 %r1, %r3, %r4, %r5;
setp.ge.u32 %p1, %r1, %r2;
@%p1 bra $L__BB0_2;
cvta.to.global.u64 %rd4, %rd1;
mul.wide.u32 %rd5, %r1, 4;
add.s64 %rd6, %rd4, %rd5;
cvta.to.global.u64 %rd7, %rd2;
add.s64 %rd8, %rd7, %rd5;
ld.global.f32 %f1, [%rd8];
ld.global.f32 %f2, [%rd6];
add.f32 %f3, %f2, %f1;
cvta.to.global.u64 %rd9, %rd3;
add.s64 %rd10, %rd9, %rd5;
st.global.f32 [%rd10], %f3;
$L__BB0_2:
ret;
}
.visible .entry matrix_product(
.param .u64 matrix_product_param_0,
.param .u64 matrix_product_param_1,
.param .u64 matrix_product_param_2,
.param .u32 matrix_product_param_3
)
{
.reg .pred %p<5>;
.reg .f32 %f<7>;
.reg .b32 %r<22>;
.reg .b64 %rd<13>;
ld.param.u64 %rd4, [matrix_product_param_0];
ld.param.u64 %rd5, [matrix_product_param_1];
ld.param.u64 %rd6, [matrix_product_param_2];
ld.param.u32 %r10, [matrix_product_param_3];
mov.u32 %r11, %ntid.y;
mov.u32 %r12, %ctaid.y;
mov.u32 %r13, %tid.y;
mad.lo.s32 %r1, %r12, %r11, %r13;
mov.u32 %r14, %ntid.x;
mov.u32 %r15, %ctaid.x;
mov.u32 %r16, %tid.x;
mad.lo.s32 %r2, %r15, %r14, %r16;
setp.ge.u32 %p1, %r1, %r10;
setp.ge.u32 %p2, %r2, %r10;
or.pred %p3, %p2, %p1;
@%p3 bra $L__BB1_4;
mul.lo.s32 %r3, %r1, %r10;
cvta.to.global.u64 %rd1, %rd6;
cvta.to.global.u64 %rd2, %rd4;
cvta.to.global.u64 %rd3, %rd5;
mov.f32 %f6, 0f00000000;
mov.u32 %r21, 0;
mov.u32 %r19, %r2;
mov.u32 %r20, %r3;
$L__BB1_2:
.pragma "nounroll";
mul.wide.u32 %rd7, %r20, 4;
add.s64 %rd8, %rd2, %rd7;
mul.wide.u32 %rd9, %r19, 4;
add.s64 %rd10, %rd3, %rd9;
ld.global.f32 %f4, [%rd10];
ld.global.f32 %f5, [%rd8];
fma.rn.f32 %f6, %f5, %f4, %f6;
add.s32 %r20, %r20, 1;
add.s32 %r19, %r19, %r10;
add.s32 %r21, %r21, 1;
setp.lt.u32 %p4, %r21, %r10;
@%p4 bra $L__BB1_2;
add.s32 %r18, %r3, %r2;
mul.wide.u32 %rd11, %r18, 4;
add.s64 %rd12, %rd1, %rd11;
st.global.f32 [%rd12], %f6;
$L__BB1_4:
ret;
}
"""
COUNT = 1 << 20
SIDE = 128
BLOCK = 16
SAID = 300
if TYPE_CHECKING:
    Floats = array.array[float]


class Failed(Exception):
    """Why a GPU is not to be used."""


class Driver:
    """The CUDA driver, on the one GPU that this process sees. Raises Failed."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise Failed(f"the CUDA driver is missing: {error}") from None
        self._call("cuInit", 0)
        device, context, self._module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._call("cuModuleLoadData", ctypes.byref(self._module), ctypes.c_char_p(KERNELS))

    def _call(self, name: str, *words: object) -> None:
        status = getattr(self._library, name)(*words)
        if status:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(status, ctypes.byref(text))
            raise Failed(f"{name}: {(text.value or b'an error without a name').decode()} ({status})")

    def compute(self, kernel: bytes, a: Floats, b: Floats, number: int, grid: int, block: tuple[int, int]) -> Floats:
        """What a kernel makes of two arrays. ``grid``: blocks in each of the dimensions that a block has."""
        function, size = ctypes.c_void_p(), ctypes.c_size_t(len(a) * a.itemsize)
        self._call("cuModuleGetFunction", ctypes.byref(function), self._module, ctypes.c_char_p(kernel))
        result = array.array("f", bytes(size.value))
        memory = [ctypes.c_uint64() for _ in range(3)]
        for pointer, values in zip(memory, (a, b, result), strict=True):
            self._call("cuMemAlloc_v2", ctypes.byref(pointer), size)
            self._call("cuMemcpyHtoD_v2", pointer, _address(values), size)
        words = [*memory, ctypes.c_uint(number)]
        parameters = (ctypes.c_void_p * len(words))(*(ctypes.addressof(word) for word in words))
        rows = grid if block[1] > 1 else 1
        self._call("cuLaunchKernel", function, grid, rows, 1, *block, 1, 0, None, parameters, None)
        self._call("cuCtxSynchronize")
        self._call("cuMemcpyDtoH_v2", _address(result), memory[2], size)
        for pointer in memory:
            self._call("cuMemFree_v2", pointer)
        return result


def _address(values: Floats) -> ctypes.c_void_p:
    return ctypes.c_void_p(values.buffer_info()[0])


def check_gpu() -> None:
    """Raises Failed where the GPU that this process sees does not compute."""
    driver = Driver()
    a, b = _numbers(4093, COUNT), _numbers(251, COUNT)
    found = driver.compute(b"vector_add", a, b, COUNT, COUNT // 256, (256, 1))
    _compare("vector addition", found, map(float.__add__, a, b))
    a, b = _numbers(31, SIDE * SIDE), _numbers(29, SIDE * SIDE)
    found = driver.compute(b"matrix_product", a, b, SIDE, SIDE // BLOCK, (BLOCK, BLOCK))
    rows, columns = [a[n * SIDE : (n + 1) * SIDE] for n in range(SIDE)], [b[n::SIDE] for n in range(SIDE)]
    # Whole numbers below 2^24, which floats have exactly.
    _compare("matrix product", found, (sum(map(float.__mul__, row, column)) for row in rows for column in columns))


def _numbers(below: int, count: int) -> Floats:
    """0, 1, 2 and so on, over and over."""
    return (array.array("f", range(below)) * (count // below + 1))[:count]


def _compare(what: str, found: Floats, numbers: Iterable[float]) -> None:
    expected = array.array("f", numbers)
    wrong = [i for i in range(len(expected)) if found[i] != expected[i]] if found != expected else []
    if wrong:
        first = f"{found[wrong[0]]:g} in the place of {expected[wrong[0]]:g}"
        raise Failed(f"{what}: {len(wrong)} of {len(expected)} numbers are wrong, the first is {first}")


def start(uuid: str) -> tuple[int, int]:
    """Tests a GPU in a process of its own, which may hang for ever. Returns where it says how it went, and its pid."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return read, pid
    os.environ["CUDA_VISIBLE_DEVICES"] = uuid
    said = "ok"
    try:
        # What the driver prints is nobody's answer.
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        check_gpu()
    except Failed as error:
        said = str(error)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is told, and this process ends
        said = repr(error)
    os.write(write, said.encode()[:SAID])
    os._exit(0)


def check_gpus(uuids: Sequence[str], deadline: float) -> dict[str, str]:
    """All at once. A process that cannot be killed is left behind."""
    started = {uuid: start(uuid) for uuid in uuids}
    waiting, heard = {read: uuid for uuid, (read, _) in started.items()}, {}
    while waiting:
        ready = select.select(list(waiting), [], [], max(0.0, deadline - time.monotonic()))[0]
        for read in ready:
            heard[waiting.pop(read)] = os.read(read, SAID).decode("utf-8", "replace") or "the driver ended the test"
        if not ready:
            break
    for uuid in waiting.values():
        heard[uuid] = "does not answer in time"
        with suppress(ProcessLookupError):
            os.kill(started[uuid][1], signal.SIGKILL)
    return heard


def run_dcgmi(deadline: float) -> str:
    """DCGM's diagnosis of level 2: ``ok``, or what failed."""
    try:
        done = _run(["dcgmi", "diag", "-r", "2"], max(1.0, deadline - time.monotonic()))
    except FileNotFoundError:
        return "dcgmi is missing: install NVIDIA's datacenter-gpu-manager in the image"
    except subprocess.TimeoutExpired:
        return "does not answer in time"
    lines = [" ".join(re.sub(r"[|+-]+", " ", line).split()) for line in _text(done.stdout).splitlines()]
    failed = [line for line in lines if re.search(r"\bfail", line, re.IGNORECASE)]
    if done.returncode or failed:
        return "; ".join(failed or [line for line in lines if line][-1:]) or f"exit status {done.returncode}"
    return "ok"


def run_nvbandwidth(least: float, deadline: float) -> str:
    """``ok`` where every GPU takes so many GB/s from the host's memory, or what is wrong.

    The figures are in the row after "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)" and the numbers of the GPUs:
    https://github.com/NVIDIA/nvbandwidth
    """
    try:
        done = _run(["nvbandwidth", "-t", "host_to_device_memcpy_ce"], max(1.0, deadline - time.monotonic()))
    except FileNotFoundError:
        return "nvbandwidth is missing: install it in the image"
    except subprocess.TimeoutExpired:
        return "does not answer in time"
    lines = _text(done.stdout).splitlines()
    rows = [line.split() for line in lines]
    start = next((number for number, line in enumerate(lines) if "bandwidth (GB/s)" in line), len(lines))
    figures = next((row[1:] for row in rows[start + 2 :] if row[:1] == ["0"]), [])
    try:
        found = [float(figure) for figure in figures]
    except ValueError:
        found = []
    if done.returncode or not found:
        return next((line for line in reversed(lines) if line.strip()), f"exit status {done.returncode}")
    slow = [f"GPU {number} takes {figure:g} GB/s" for number, figure in enumerate(found) if not figure >= least]
    return f"{'; '.join(slow)}, and the pool wants {least:g}" if slow else "ok"


def _run(words: list[str], timeout_s: float) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout_s,
        check=False,
    )


def _text(said: bytes) -> str:
    return said.decode("utf-8", "replace")


def print_result(of: str, heard: str) -> None:
    """One line of the answer."""
    text = " ".join(heard[:SAID].split())
    sys.stdout.write(f"ok {of}\n" if text == "ok" else f"failed {of} {text}\n")


def main() -> None:
    """Says all that it found."""
    deadline = time.monotonic() + float(sys.argv[1])
    try:
        listed = _text(_run(["nvidia-smi", "-L"], float(sys.argv[1])).stdout)
    except (OSError, subprocess.TimeoutExpired) as error:
        listed = ""
        print_result("nvidia-smi", str(error))
    parts = re.findall(r"\(UUID: (MIG-[^)\s]+)\)", listed)
    uuids = parts or re.findall(r"\(UUID: (GPU-[^)\s]+)\)", listed)
    heard = check_gpus(uuids, deadline)
    for uuid in uuids:
        print_result(uuid, heard[uuid])
    if "long" in sys.argv[2:] and all(said == "ok" for said in heard.values()):
        print_result("dcgmi", run_dcgmi(deadline))
        if len(sys.argv) > 3:
            print_result("nvbandwidth", run_nvbandwidth(float(sys.argv[3]), deadline))
    sys.stdout.write("end\n")
    sys.stdout.flush()
    # Nobody waits for a child that hangs in the driver.
    os._exit(0)


if __name__ == "__main__":
    main()

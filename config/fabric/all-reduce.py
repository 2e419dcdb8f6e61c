#!/usr/bin/env python3
"""An all-reduce by NCCL between the first GPUs of two nodes, for fabric_test: put it into the image, with PyTorch.

burstd sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. The figure is what nccl-tests calls the bus bandwidth, which
for two ranks is bytes by seconds. A sum that is wrong fails the test.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

NUMBERS = 64 << 20  # of four bytes
ROUNDS = 20

torch.cuda.set_device(0)
dist.init_process_group("nccl")
rank = int(os.environ["RANK"])
data = torch.full((NUMBERS,), float(rank + 1), device="cuda")
dist.all_reduce(data)
torch.cuda.synchronize()
if not bool((data == 3.0).all()):
    sys.exit("the sum over both nodes is wrong")
began = time.perf_counter()
for _ in range(ROUNDS):
    dist.all_reduce(data)
torch.cuda.synchronize()
seconds = time.perf_counter() - began
if rank == 1:
    sys.stdout.write(f"{ROUNDS * NUMBERS * 4 / seconds / 1e9:.2f} GB/s\n")
dist.destroy_process_group()

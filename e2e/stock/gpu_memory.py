"""A stock engine of the CUDA wheel writes GPU memory to a target and reads it back, and compares each byte.

Needs a GPU of NVIDIA, torch, and `pip install mooncake-transfer-engine==0.3.13.post1`. Run a target first:

    mooncake-bench --mode=target --buffer_size=134217728
    MC_FORCE_TCP=1 python3 gpu_memory.py 127.0.0.1:PORT
"""

import sys
import time

import torch
from mooncake.engine import TransferEngine

SIZES = (4096, 65536, 1 << 20, 64 << 20)
ROUNDS = 5

target = sys.argv[1]
engine = TransferEngine()
if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
    raise SystemExit("the stock engine does not start")
source = torch.zeros(SIZES[-1], dtype=torch.uint8, device="cuda")
copy = torch.zeros(SIZES[-1], dtype=torch.uint8, device="cuda")
for tensor in (source, copy):
    if engine.register_memory(tensor.data_ptr(), SIZES[-1]) != 0:
        raise SystemExit("GPU memory is not registered")
base = engine.get_first_buffer_address(target)
print(f"{torch.cuda.get_device_name(0)}, buffer of the target at {base:#x}")


def timed(transfer, tensor, size):
    torch.cuda.synchronize()
    begun = time.monotonic()
    if transfer(target, tensor.data_ptr(), base, size) != 0:
        raise SystemExit(f"a transfer of {size} bytes failed")
    return size / (time.monotonic() - begun) / 1e6


for size in SIZES:
    rates = []
    for _ in range(ROUNDS):
        source.random_(0, 256)
        copy.zero_()
        put = timed(engine.transfer_sync_write, source, size)
        got = timed(engine.transfer_sync_read, copy, size)
        torch.cuda.synchronize()
        if not torch.equal(source[:size], copy[:size]) or copy[size:].any():
            raise SystemExit(f"bytes differ after {size} bytes")
        rates.append((put, got))
    put, got = (sorted(column)[ROUNDS // 2] for column in zip(*rates))
    print(f"{size:9} bytes: equal {ROUNDS} times; median write {put:.0f} MB/s, read {got:.0f} MB/s")

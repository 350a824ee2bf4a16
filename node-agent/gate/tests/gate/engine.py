"""One stock Transfer Engine with one registered buffer; prints its name and address, then waits."""

import ctypes
import sys

from mooncake.engine import TransferEngine

engine = TransferEngine()
code = engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "")
buffer = ctypes.create_string_buffer(1 << 20)
address = ctypes.addressof(buffer)
code = code or engine.register_memory(address, 1 << 20)
print(code, engine.get_rpc_port(), address, flush=True)
sys.stdin.read()

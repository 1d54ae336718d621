"""NCCL between two devices: TEST SIZE[,SIZE...] SECONDS WINDOW[,WINDOW...], one JSON object a line as `cableway pingpong` prints.

A message counts as arrived once the host knows that it is there, as after MPI_Recv; a window is one group call.
"""

import json
import os
import subprocess
import sys
import time


def measure(test, sizes, seconds, windows, rank):
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2)
    peer = 1 - rank

    def turn(buffer, _):
        for way in (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send):
            way(buffer, peer)
            torch.cuda.current_stream().synchronize()

    def windowed(buffer, window):
        way = dist.isend if rank == 0 else dist.irecv
        for work in dist.batch_isend_irecv([dist.P2POp(way, buffer, peer) for _ in range(window)]):
            work.wait()
        torch.cuda.current_stream().synchronize()

    once = turn if test == "latency" else windowed

    def timed(rounds, *message):
        dist.barrier()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(rounds):
            once(*message)
        return time.perf_counter() - began

    for size, window in zip(sizes, windows):
        buffer = torch.zeros(size, dtype=torch.uint8, device="cuda")
        timed(3, buffer, window)
        # Both have to agree on how many rounds fill the time.
        rounds = torch.tensor([max(3, int(seconds / (timed(3, buffer, window) / 3)))], device="cuda")
        dist.broadcast(rounds, 0)
        rounds = int(rounds.item())
        taken = timed(rounds, buffer, window)
        if rank == 0:
            value, unit = {
                "latency": (taken / rounds / 2 * 1e6, "us"),
                "message-rate": (rounds * window / taken, "messages/s"),
                "bandwidth": (rounds * window * size / taken / 1e6, "MB/s"),
            }[test]
            line = dict(test=test, btl="nccl", src="device", dst="device", size=size, value=value, unit=unit)
            print(json.dumps(line), flush=True)
    dist.destroy_process_group()


def main():
    test, sizes, seconds, windows = sys.argv[1:5]
    numbers = [[int(number) for number in text.split(",")] for text in (sizes, windows)]
    arguments = (test, numbers[0], float(seconds), numbers[1])
    rank = os.environ.get("RANK")
    if rank is not None:
        return measure(*arguments, int(rank))
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    program = [sys.executable, "-c", sys.orig_argv[sys.orig_argv.index("-c") + 1], *sys.argv[1:]]
    ranks = []
    for rank in ("0", "1"):
        place = dict(os.environ, RANK=rank, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        ranks.append(subprocess.Popen(program, env=place))
    sys.exit(max(rank.wait() for rank in ranks))


main()

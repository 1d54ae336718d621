"""Messages and collectives on GPU memory under an unmodified Open MPI, every element checked; then latencies.

    mpirun -np 2 --mca pml cableway python3 device_mpi.py      (needs mpi4py and CuPy)
"""
import sys, time
import cupy as cp
from mpi4py import MPI
w = MPI.COMM_WORLD
me, n = w.rank, w.size
cp.cuda.Device(me % cp.cuda.runtime.getDeviceCount()).use()
import numpy as np
bad = 0
def check(what, ok):
    global bad
    if not bool(ok):
        bad += 1
        print(f"rank {me}: WRONG {what}", flush=True)
# MPI does not wait for kernels.
ready = lambda: cp.cuda.get_current_stream().synchronize()
other = 1 - me
for place in ("device-device", "device-host", "host-device"):
    for size in (1, 7, 1000, 4096, 65536, 1 << 20, 1 << 24):
        src_dev = place.startswith("device") if me == 0 else place.endswith("device")
        xp = cp if src_dev else np
        out = xp.arange(size, dtype=np.float32) + me
        box = xp.zeros(size, dtype=np.float32)
        ready()
        w.Sendrecv(out, other, 0, box, other, 0)
        check(f"{place} {size}", (box == xp.arange(size, dtype=np.float32) + other).all())
for size in (1, 1000, 1 << 20):
    a = cp.full(size, me + 1, dtype=np.float64); b = cp.empty_like(a)
    ready(); w.Allreduce(a, b); check(f"Allreduce {size}", (b == sum(range(1, n + 1))).all())
    w.Bcast(a, 0); check(f"Bcast {size}", (a == 1).all())
    g = cp.empty(n * size, dtype=np.float64); a[:] = me
    ready(); w.Allgather(a, g); check(f"Allgather {size}", (g.reshape(n, size) == cp.arange(n)[:, None]).all())
    t = cp.repeat(cp.arange(n, dtype=np.float64) + 10 * me, size); r = cp.empty_like(t)
    ready(); w.Alltoall(t, r); check(f"Alltoall {size}", (r.reshape(n, size) == (10 * cp.arange(n) + me)[:, None]).all())
    q = w.Iallreduce(a, b); q.Wait(); check(f"Iallreduce {size}", (b == sum(range(n))).all())
# a column of a matrix
m = cp.zeros((512, 512), dtype=np.float32); m[:, 3] = me + 1
col = MPI.FLOAT.Create_vector(512, 1, 512).Commit()
box = cp.zeros((512, 512), dtype=np.float32)
ready()
w.Sendrecv([m.ravel()[3:], 1, col], other, 0, [box.ravel()[5:], 1, col], other, 0)
check("column", (box[:, 5] == other + 1).all() and float(box.sum()) == 512 * (other + 1))
for size, rounds in ((8, 2000), (65536, 1000), (1 << 26, 50)):
    buf = cp.zeros(size, dtype=np.uint8)
    ready()
    for k in (20, rounds):
        w.Barrier(); t0 = time.perf_counter()
        for _ in range(k):
            if me == 0: w.Send(buf, 1, 1); w.Recv(buf, 1, 1)
            elif me == 1: w.Recv(buf, 0, 1); w.Send(buf, 0, 1)
        t = (time.perf_counter() - t0) / k / 2
    if me == 0: print(f"half ping-pong {size} B: {t*1e6:.2f} us", flush=True)
total = w.allreduce(bad)
if me == 0: print("wrong results:", total, flush=True)
sys.exit(1 if total else 0)

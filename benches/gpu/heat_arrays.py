"""Heat on GPU memory under an unmodified Open MPI: results checked, median times of the calls that redistribute arrays.

    mpirun -np 2 --mca pml cableway python3 heat_arrays.py direct      (needs PyTorch, mpi4py and Heat 1.8)

With `direct` Heat hands device memory to MPI, which it leaves switched off under Open MPI; with `staged` it copies
through host memory itself. SciPy and torchvision are replaced by empty modules if they are missing: nothing here calls them.
"""
import statistics, sys, time, types, warnings

warnings.simplefilter("ignore")


class Empty(types.ModuleType):
    """A module of which any name can be imported."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


for name in ("scipy", "scipy.sparse", "scipy.special", "torchvision"):
    try:
        __import__(name)
    except ImportError:
        sys.modules[name] = Empty(name)

import torch
from mpi4py import MPI

world = MPI.COMM_WORLD
torch.cuda.set_device(world.rank % torch.cuda.device_count())
import heat as ht
import heat.core.communication as communication

communication.GPU_AWARE_MPI = sys.argv[1] == "direct"
ht.use_device("gpu")

EDGE = 4096
wrong = 0


def check(what, right):
    global wrong
    if not bool(right):
        wrong += 1
        print(f"rank {world.rank}: WRONG {what}", flush=True)


def milliseconds(prepare, act, rounds=9):
    """Returns the median over the rounds of the slowest rank's time, without a first round."""
    times = []
    for _ in range(rounds + 1):
        subject = prepare()
        torch.cuda.synchronize()
        world.Barrier()
        begun = time.perf_counter()
        act(subject)
        torch.cuda.synchronize()
        times.append(world.allreduce(time.perf_counter() - begun, op=MPI.MAX))
    return 1000 * statistics.median(times[1:])


def whole():
    """Returns the array on this rank's device, every element of a value of its own."""
    return torch.arange(EDGE * EDGE, dtype=torch.float32, device="cuda").reshape(EDGE, EDGE)


def rows():
    return ht.array(whole(), split=0, device="gpu")


def mine(axis):
    """Returns this rank's part of the array, split along an axis."""
    part = EDGE // world.size
    return whole().narrow(axis, world.rank * part, part)


def report(what, value):
    if world.rank == 0:
        print(f"{sys.argv[1]:8s} {what:28s} {value:10.3f} ms", flush=True)


columns = rows()
columns.resplit_(1)
check("resplit 0 to 1", torch.equal(columns.larray, mine(1)))
everything = rows()
everything.resplit_(None)
check("resplit 0 to none", torch.equal(everything.larray, whole()))
check("sum", abs(float(ht.sum(ht.ones((EDGE, EDGE), split=0, device="gpu"))) - EDGE * EDGE) < 1)
small = ht.array(whole()[:512, :512] % 7, split=0, device="gpu")
product = ht.matmul(small, small)
product.resplit_(None)
block = whole()[:512, :512] % 7
check("matmul", torch.equal(product.larray, block @ block))

report("resplit 0 to 1", milliseconds(rows, lambda a: a.resplit_(1)))
report("resplit 0 to none", milliseconds(rows, lambda a: a.resplit_(None)))
ones = ht.ones((EDGE, EDGE), split=0, device="gpu")
report("matmul", milliseconds(lambda: ones, lambda a: ht.matmul(a, a)))
report("sum", milliseconds(lambda: ones, ht.sum))
bad = world.allreduce(wrong)
if world.rank == 0:
    print(f"{sys.argv[1]:8s} {'wrong results':28s} {bad:10d}", flush=True)
sys.exit(bad != 0)

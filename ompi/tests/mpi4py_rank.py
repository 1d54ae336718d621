"""One rank of mpi4py's test program: python mpi4py_rank.py OUT ARGUMENTS..., in mpi4py's folder.

What the rank prints goes to OUT/RANK.log, what became of each test to OUT/RANK.results: a status (began, ok, skipped,
failed), the test's name and, for a skipped one, the reason; all separated by tabs.
"""
import faulthandler
import os
import runpy
import sys
import unittest

out, rank = sys.argv[1], os.environ["OMPI_COMM_WORLD_RANK"]
log = os.open(os.path.join(out, rank + ".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.dup2(log, 1)
os.dup2(log, 2)
os.close(log)
results = open(os.path.join(out, rank + ".results"), "w", buffering=1)

# Seconds after which a test says where it hangs, shortly before the whole run is ended from outside.
limit = float(os.environ.get("MPI4PY_RANK_LIMIT", 0))


def note(status, test, reason=""):
    print(status, test.id().replace(" ", "_"), " ".join(reason.split()), sep="\t", file=results)


class Result(unittest.TextTestResult):
    def startTest(self, test):
        note("began", test)
        if limit > 0:
            faulthandler.dump_traceback_later(limit, exit=False)
        super().startTest(test)

    def addSuccess(self, test):
        note("ok", test)
        super().addSuccess(test)

    def addExpectedFailure(self, test, error):
        note("ok", test)
        super().addExpectedFailure(test, error)

    def addSkip(self, test, reason):
        note("skipped", test, reason)
        super().addSkip(test, reason)

    def addFailure(self, test, error):
        note("failed", test)
        super().addFailure(test, error)

    def addError(self, test, error):
        note("failed", test)
        super().addError(test, error)

    def addUnexpectedSuccess(self, test):
        note("failed", test)
        super().addUnexpectedSuccess(test)

    def addSubTest(self, test, part, error):
        if error is not None:
            note("failed", test)
        super().addSubTest(test, part, error)


unittest.TextTestRunner.resultclass = Result
program = os.path.join("test", "main.py")
sys.argv = [program, "-v", *sys.argv[2:]]
sys.path[0] = os.path.abspath("test")
sys.dont_write_bytecode = True
runpy.run_path(program, run_name="__main__")

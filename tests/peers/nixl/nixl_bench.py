"""NIXL's side of `bench-transfer`: two processes with memory of their own, and KV from one to the other.

This process is the decode side and starts the prefill side. Orders come on standard input, each answered on standard
output: `WRITE BYTES RUN REPEATS` and `READ ...` by `took NANOSECONDS` (the mean), `check WRITE BYTES RUN` by `done`.

All bytes go in runs of one length, out of order on both sides. A WRITE is over when the decode side has the
notification that comes behind the data, a READ when its request says that it is done. Descriptors are prepared
beforehand, which is not counted. Nothing is installed here: a Python that can import NIXL runs this.
"""

import argparse
import ctypes
import importlib
import importlib.metadata
import mmap
import multiprocessing
import os
import random
import sys
import time

NO_NIXL = "nixl_bench: this Python has no NIXL, or no numpy: `make bench-transfer-peers` makes one that has both"
try:
    import numpy as np
except ModuleNotFoundError:
    sys.exit(NO_NIXL)

# Past it something hangs: the longest transfer takes some hundred milliseconds.
PATIENCE_S = 30
SEEDS = {"prefill": 1, "decode": 2}
MARK = np.uint64(0x9E3779B97F4A7C15)


def api():
    """NIXL's Python API, whichever build of it is there, and its version."""
    for distribution in ("nixl-cu12", "nixl-cu13"):
        try:
            version = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
        return importlib.import_module(f"{distribution.replace('-', '_')}._api"), version
    sys.exit(NO_NIXL)


def pending(state):
    """A state that is an end, or nothing."""
    return None if state == "PROC" else state


def until(ask, what):
    """Asks until there is an answer, and leaves the core to others in between."""
    deadline = time.monotonic_ns() + PATIENCE_S * 10**9
    while not (answer := ask()):
        if time.monotonic_ns() > deadline:
            raise TimeoutError(f"{what} did not come within {PATIENCE_S} s")
        os.sched_yield()
    return answer


def marks(offset, length):
    """What the prefill side's memory holds from an offset on: each word tells where it is."""
    first = offset // 8
    return np.arange(first + 1, first + 1 + length // 8, dtype=np.uint64) * MARK


def places(side, length, run):
    """Where the runs begin: a side's own order."""
    order = list(range(length // run))
    random.Random(SEEDS[side]).shuffle(order)
    return np.array(order, dtype=np.uint64) * np.uint64(run)


class Side:
    """An agent, its memory and what was prepared of both."""

    def __init__(self, name, length, progress):
        nixl, self.version = api()
        self.name = name
        self.memory = mmap.mmap(-1, length)
        self.words = np.frombuffer(self.memory, dtype=np.uint64)
        # Touches every page.
        self.words[:] = marks(0, length) if name == "prefill" else 0
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        config = nixl.nixl_agent_config(enable_prog_thread=progress == "thread", backends=["UCX"])
        self.agent = nixl.nixl_agent(name, config)
        self.registered = self.agent.register_memory([(self.address, length, 0, "")], mem_type="DRAM")
        self.prepared = {}
        self.told = []

    def meet(self, pipe):
        """Exchanges names and addresses with the other side."""
        pipe.send((self.agent.get_agent_metadata(), self.address))
        metadata, self.other_address = pipe.recv()
        name = self.agent.add_remote_agent(metadata)
        self.other = name.decode() if isinstance(name, bytes) else name

    def request(self, verb, length, run):
        """A request that can be posted again and again; made once."""
        key = (verb, length, run)
        if key not in self.prepared:
            other = "prefill" if self.name == "decode" else "decode"

            def side(agent, name, base):
                rows = np.zeros((length // run, 3), dtype=np.uint64)
                rows[:, 0] = places(name, length, run) + np.uint64(base)
                rows[:, 1] = run
                return self.agent.prep_xfer_dlist(agent, rows, mem_type="DRAM")

            mine = side("", self.name, self.address)
            theirs = side(self.other, other, self.other_address)
            indices = np.arange(length // run, dtype=np.int32)
            request = self.agent.make_prepped_xfer(verb, mine, indices, theirs, indices, b"here")
            self.prepared[key] = (request, mine, theirs)
        return self.prepared[key][0]

    def post(self, request):
        """Moves it; when it began, by the clock that all processes of a machine share."""
        began = time.monotonic_ns()
        state = self.agent.transfer(request, b"here")
        if state == "PROC":
            state = until(lambda: pending(self.agent.check_xfer_state(request)), "a transfer's end")
        if state != "DONE":
            raise RuntimeError(f"a transfer ended with {state}")
        return began

    def notified(self):
        """Waits for the other side's notification."""

        def came():
            for messages in self.agent.get_new_notifs().values():
                self.told.extend(messages)
            return self.told

        until(came, "a notification").pop()


def prefill(pipe, length, progress):
    """The other process: writes when it is told to, and stands by while its memory is read."""
    side = Side("prefill", length, progress)
    side.meet(pipe)
    while (order := pipe.recv()) is not None:
        if order[0] == "WRITE":
            request = side.request(*order)
            pipe.send("ready")
            pipe.recv()
            pipe.send(side.post(request))
        else:
            # NIXL without its thread moves only while somebody asks.
            pipe.send("ready")
            side.notified()
            pipe.send("read")


def transfer(side, pipe, verb, length, run):
    """One transfer, in nanoseconds."""
    pipe.send((verb, length, run))
    pipe.recv()
    if verb == "READ":
        request = side.request(verb, length, run)
        began = side.post(request)
        ended = time.monotonic_ns()
        pipe.recv()
        return ended - began
    pipe.send("go")
    side.notified()
    ended = time.monotonic_ns()
    return ended - pipe.recv()


def check(side, pipe, verb, length, run):
    """That a transfer brings all bytes."""
    side.words[:] = 0
    transfer(side, pipe, verb, length, run)
    for source, sink in zip(places("prefill", length, run).tolist(), places("decode", length, run).tolist()):
        if not np.array_equal(side.words[sink // 8 : (sink + run) // 8], marks(source, run)):
            raise RuntimeError(f"{verb}: the run of {run} bytes at {sink} did not arrive")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", type=int, required=True, help="memory of either side")
    parser.add_argument("--progress", choices=("thread", "polled"), required=True, help="NIXL's own thread, or none")
    arguments = parser.parse_args()
    # NIXL and UCX may write to standard output, which is for answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    spawning = multiprocessing.get_context("spawn")
    pipe, theirs = spawning.Pipe()
    other = spawning.Process(target=prefill, args=(theirs, arguments.bytes, arguments.progress), daemon=True)
    other.start()
    theirs.close()
    side = Side("decode", arguments.bytes, arguments.progress)
    side.meet(pipe)
    print("ready", side.version, file=answers)
    for line in sys.stdin:
        verb, *numbers = line.removeprefix("check ").split()
        if line.startswith("check "):
            check(side, pipe, verb, *map(int, numbers))
            print("done", file=answers)
            continue
        length, run, repeats = map(int, numbers)
        taken = [transfer(side, pipe, verb, length, run) for _ in range(repeats)]
        print("took", sum(taken) // repeats, file=answers)
    pipe.send(None)
    other.join()


if __name__ == "__main__":
    main()

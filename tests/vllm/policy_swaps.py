"""Policies replaced by file drop while requests run: nothing is lost and no answer changes."""

import dataclasses
import itertools
import threading
import time

from client import CHAT, COMPLETIONS, Answer, ask

CLIENT_THREADS = 3
# How many answers must come from a generation before the next file is dropped.
ANSWERS_PER_GENERATION = 6
ANSWERS_TIMEOUT_S = 30
POLL_INTERVAL_S = 0.05
# Lengths on both sides of a block, and enough to make splitting worth while for a policy that weighs it.
REPEATS = (0, 1, 6, 20)
SENTENCE = "One gate holds the river back while the other lets the barges through. "


@dataclasses.dataclass
class Sent:
    case: object
    answer: Answer
    live_before: int  # the newest generation known to be live when the request was sent

    @property
    def generation(self):
        return int(self.answer.decision.get("generation", 0))


class Traffic:
    """Threads that ask without pause until told to stop. Reads and writes under one lock."""

    def __init__(self, maker, port, generation):
        self._maker = maker
        self._port = port
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._ways = itertools.cycle(itertools.product(REPEATS, (COMPLETIONS, CHAT), (False, True)))
        self._failure = None
        self.live_generation = generation
        self.sent = []

    def __enter__(self):
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(CLIENT_THREADS)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._failure:
            raise self._failure

    def _run(self):
        try:
            while not self._stop.is_set():
                with self._lock:
                    repeats, path, stream = next(self._ways)
                    more = {"stream_options": {"include_usage": True}} if stream else {}
                    case = self._maker.case("swap", path, SENTENCE * repeats, stream=stream, **more)
                    live = self.live_generation
                answer = ask(self._port, case.path, case.body)
                with self._lock:
                    self.sent.append(Sent(case, answer, live))
        except Exception as failure:  # of the test itself: ask() turns the router's failures into answers
            self._failure = failure

    def swapped(self, generation):
        with self._lock:
            self.live_generation = generation

    def wait_for_answers(self, generation):
        deadline = time.monotonic() + ANSWERS_TIMEOUT_S
        while time.monotonic() < deadline:
            with self._lock:
                if sum(each.generation >= generation for each in self.sent) >= ANSWERS_PER_GENERATION:
                    return True
            time.sleep(POLL_INTERVAL_S)
        return False


def swap_under_load(policies, maker, servers, sluice, ledger, report):
    """Swaps each of `policies` in while requests run, then compares every answer."""
    generation = sluice.generation()
    with Traffic(maker, sluice.port, generation) as traffic:
        report.check("swap: answers before the first swap", traffic.wait_for_answers(generation))
        for policy in policies:
            sluice.drop(policy)
            swapped = sluice.wait_for_generation_after(generation)
            report.check(f"swap to {policy}: a new generation", swapped is not None, f"still generation {generation}")
            if swapped is None:
                continue
            generation = swapped
            traffic.swapped(generation)
            report.check(f"swap to {policy}: answers decided by it", traffic.wait_for_answers(generation))
    for number, each in enumerate(traffic.sent, 1):
        name = f"swap, request {number}, generation {each.generation}"
        expected = ask(servers.monolithic, each.case.path, each.case.body)
        report.compare(name, each.answer, expected)
        ledger.book_answer(each.case.prompt_tokens, each.answer)
        if not each.answer.error:
            report.check(
                f"{name}: decided by a live generation",
                each.live_before <= each.generation <= generation,
                f"{each.live_before} was live when it was sent, {generation} in the end",
            )
    return len(traffic.sent)

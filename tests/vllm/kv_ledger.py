"""Proof that KV moved: what the engines counted, against what the requests should have cost.

For a request of n prompt tokens that was split over prefill and decode, with nothing of it cached:

- prefill computes n tokens (local_compute) and decode computes none;
- decode takes all n from outside (external_kv_transfer);
- whole blocks travel, for every layer and KV head, K and V: ceil(n / block) x block x bytes per token,
  where bytes per token = 2 x layers x KV heads x head size x bytes per number, from the model's config.

A request that went to decode alone is computed there, all n tokens.

Of a conversation's later turns each engine has a part: see `book_turn`.
"""

import collections
import math
import re
import time

from client import connect, post_json
from servers import BLOCK_TOKENS, MODEL

# Engines count a request when its last step is done, a little after the client has its answer.
SETTLE_TIMEOUT_S = 10
POLL_INTERVAL_S = 0.1

PROMPT_TOKENS = 'vllm:prompt_tokens_by_source_total{source="%s"}'
COMPUTED = PROMPT_TOKENS % "local_compute"
CACHED = PROMPT_TOKENS % "local_cache_hit"
RECEIVED = PROMPT_TOKENS % "external_kv_transfer"
BYTES_MOVED = "vllm:nixl_bytes_transferred_sum"
FAILED = ("vllm:nixl_num_failed_transfers_total", "vllm:nixl_num_failed_notifications_total")
SOURCES = (COMPUTED, CACHED, RECEIVED)
BLOCKS_IN_USE = "vllm:kv_cache_usage_perc"
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
GENERATED = "vllm:generation_tokens_total"

ENGINE_LABELS = re.compile(r'(engine|model_name)="[^"]*",?')


def scrape(port):
    """An engine's metrics, {name and labels: value}, without the labels that name the engine itself."""
    connection = connect(port)
    try:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    finally:
        connection.close()
    metrics = {}
    for line in lines:
        if line and not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            name = ENGINE_LABELS.sub("", name).replace(",}", "}").removesuffix("{}")
            metrics[name] = float(value)
    return metrics


class KvLedger:
    """Books requests phase by phase and settles each phase against the engines' own counters."""

    def __init__(self, servers):
        self._ports = {"prefill": servers.prefill, "decode": servers.decode}
        self._bytes_per_block = BLOCK_TOKENS * servers.kv_bytes_per_token
        self._at_start = self._scrape()
        self._at_last_settle = self._at_start
        self._expected = collections.Counter()

    def book_answer(self, prompt_tokens, answer):
        """As its decision says. An answer without one was refused or lost and should have cost nothing."""
        if answer.decision:
            self.book(prompt_tokens, answer.disaggregated)

    def book(self, prompt_tokens, disaggregated):
        if disaggregated:
            self.book_turn(prompt_tokens)
        else:
            self._expected["decode", COMPUTED] += prompt_tokens

    def book_turn(self, prompt_tokens, prefill_has=0, decode_has=0, kept=0):
        """A request that was split. Of its prompt the engines' own caches have the first tokens, whole blocks; of the
        `kept` first ones, which decode keeps for it, prefill reads those that it lacks."""
        read = max(kept - prefill_has, 0)
        self._expected["prefill", CACHED] += prefill_has
        self._expected["prefill", RECEIVED] += read
        self._expected["prefill", COMPUTED] += prompt_tokens - prefill_has - read
        self._expected["prefill", BYTES_MOVED] += self._bytes(read)
        self._expected["decode", CACHED] += decode_has
        self._expected["decode", RECEIVED] += prompt_tokens - decode_has
        self._expected["decode", BYTES_MOVED] += self._bytes(prompt_tokens - decode_has)

    def settle(self, report, phase, by_source=True):
        """`by_source`: whether it is known which engine had what; else only that all prompts were answered by both."""
        engines, counters = self._ports, (*SOURCES, BYTES_MOVED, *FAILED)
        expected = {(engine, counter): self._expected[engine, counter] for engine in engines for counter in counters}
        if not by_source:
            expected = _all_sources(expected)
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while True:
            now = self._scrape()
            rose = collections.Counter(now)
            rose.subtract(self._at_last_settle)
            rose = rose if by_source else _all_sources(rose)
            if all(rose[key] == amount for key, amount in expected.items()) or time.monotonic() > deadline:
                break
            time.sleep(POLL_INTERVAL_S)
        for (engine, counter), amount in expected.items():
            measured = rose[engine, counter]
            report.check(
                f"{phase}: {engine}, {counter}",
                measured == amount,
                f"should rise by {amount:.0f}, rose by {measured:.0f}",
            )
        self._at_last_settle = now
        self._expected.clear()

    def check_all_released(self, report):
        """Prefill must hold no blocks once decode has read them, long before their lease would end."""
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while (held := scrape(self._ports["prefill"])[BLOCKS_IN_USE]) > 0 and time.monotonic() < deadline:
            # An idle engine without a progress thread does not look for notices: give it a step to make.
            post_json(self._ports["prefill"], "/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": 1})
        report.check("prefill released all blocks", held == 0, f"{held:.2%} of its blocks are still held")

    def check_let_go(self, report, what, engines=("prefill", "decode"), timeout_s=SETTLE_TIMEOUT_S):
        """No blocks are held, though nobody gives the engines anything to do."""
        for engine in engines:
            deadline = time.monotonic() + timeout_s
            while (held := self.held(engine)) > 0 and time.monotonic() < deadline:
                time.sleep(POLL_INTERVAL_S)
            report.check(f"{what}: {engine} holds nothing", held == 0, f"{held:.2%} of its blocks are still held")

    def held(self, engine):
        """The share of an engine's blocks that are in use."""
        return scrape(self._ports[engine])[BLOCKS_IN_USE]

    def bytes_moved(self):
        """From the opening of the ledger to the last settled phase, as the engines counted them."""
        keys = [(engine, BYTES_MOVED) for engine in self._ports]
        return int(sum(self._at_last_settle.get(key, 0) - self._at_start.get(key, 0) for key in keys))

    def _bytes(self, tokens):
        """Whole blocks travel."""
        return math.ceil(tokens / BLOCK_TOKENS) * self._bytes_per_block

    def _scrape(self):
        return {(engine, name): value for engine, port in self._ports.items() for name, value in scrape(port).items()}


def _all_sources(counts):
    """Prompt tokens of each engine, wherever it had them from."""
    engines = {engine for engine, _ in counts}
    return collections.Counter({(each, "all sources"): sum(counts.get((each, source), 0) for source in SOURCES) for each in engines})

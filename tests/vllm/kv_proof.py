"""What `sluice doctor` and the host's own probe say of the real pair: KV moves, and nothing is wrong."""

import json
import subprocess
import time

from client import get_json

# A probe is two small requests; the first handshake between two engines takes a second or two.
PROVEN_TIMEOUT_S = 60
DOCTOR_TIMEOUT_S = 120
POLL_INTERVAL_S = 0.1


def check(sluice, report, comes_back=False):
    """Ends before the ledger of transfers is opened: probes move KV too. `comes_back`: whether kept turns must come back to prefill."""
    _check_host(sluice, report)
    _check_doctor(sluice, report, comes_back)


def _check_host(sluice, report):
    deadline = time.monotonic() + PROVEN_TIMEOUT_S
    while True:
        pool = get_json(sluice.port, "/ready")["pools"][0]
        if pool["kv"] == "moved" or time.monotonic() > deadline:
            break
        time.sleep(POLL_INTERVAL_S)
    report.check("the host proved that KV moves", pool["kv"] == "moved", f"/ready says {pool}")


def _check_doctor(sluice, report, comes_back):
    command = [sluice.binary, "doctor", "--json", "--config", sluice.config]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=DOCTOR_TIMEOUT_S, check=False)
    report.check("doctor says that all is well", ended.returncode == 0, ended.stdout + ended.stderr)
    if not ended.stdout.startswith("{"):
        return
    seen = json.loads(ended.stdout)
    report.check("doctor finds nothing", seen["findings"] == [], json.dumps(seen["findings"]))
    for pair in seen["pairs"]:
        proof = pair["proof"] or {}
        outcome = proof.get("outcome", {})
        moved = outcome.get("outcome") == "moved" and outcome["detail"]["sure"] == "exactly"
        report.check(f"doctor: KV moves from {pair['prefill']} to {pair['decode']}", moved, json.dumps(pair))
        if comes_back:
            back = proof.get("back") or {}
            fetched = back.get("outcome") == "fetched" and back["detail"]["sure"] == "exactly"
            report.check(f"doctor: turns come from {pair['decode']} back to {pair['prefill']}", fetched, json.dumps(pair))
    for worker in seen["workers"]:
        agrees = worker["tokenized"] is not None and worker["tokenized"] == worker["prompt_tokens"]
        report.check(f"doctor: {worker['worker']} counts tokens as usage does", agrees, json.dumps(worker))

#!/usr/bin/env python3
"""Sluice in front of real vLLM: every answer equal, the KV really moved, nothing lost when policies change.

    vllm-cpu/venv/bin/python tests/vllm/run.py --sluice PATH --policies DIR [--setup DIR] [--pair NAME]

PATH is the sluice binary, DIR the folder of built policies (round-robin.wasm and so on). Starts all it
needs on free loopback ports and ends all it started. Exit code 0 only if everything held; 1 with a table
of differences; 2 if something to test with is missing. Logs stay when something failed.
"""

import argparse
import contextlib
import pathlib
import shutil
import sys
import tempfile
import traceback

import disconnect
import kv_proof
import official_client
import sessions
from cases import CaseMaker
from equality import compare_all
from kv_ledger import KvLedger
from policy_swaps import swap_under_load
from processes import StartFailed, exit_on_signals
from report import Report
from servers import BIDIRECTIONAL, DEFAULT_SETUP_DIR, PAIRS, PULL, VllmServers
from sluice import Sluice

# Splits every request, so the amounts of KV are known beforehand.
FIRST_POLICY = "round-robin"
SWAPPED_IN = ("least-loaded", "vllm-defaults", "adaptive", FIRST_POLICY)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sluice", type=pathlib.Path, required=True, help="the sluice binary")
    parser.add_argument("--policies", type=pathlib.Path, required=True, help="folder of built policies, *.wasm")
    parser.add_argument("--setup", type=pathlib.Path, default=DEFAULT_SETUP_DIR, help="what setup.sh built")
    parser.add_argument("--pair", choices=PAIRS, action="append", help="only this pair's part; all by default")
    arguments = parser.parse_args()
    needed = [arguments.sluice, *(arguments.policies / f"{name}.wasm" for name in {FIRST_POLICY, *SWAPPED_IN, sessions.POLICY, sessions.ADAPTIVE_POLICY})]
    missing = [str(path) for path in needed if not path.is_file()]
    if missing:
        parser.error(f"no such file: {', '.join(sorted(missing))} (build them first)")
    if not (arguments.setup / "stamp").is_file():
        parser.error(f"{arguments.setup} is not set up: run tests/vllm/setup.sh {arguments.setup}")
    return arguments


def prove(servers, sluice, ledger, report):
    """All phases, each settled against the engines' counters before the next begins."""
    maker = CaseMaker(servers.monolithic)

    report.phase("equality, every request split")
    compare_all(maker.must_move(), servers, sluice, report, ledger, must_move=True)
    ledger.settle(report, "equality")

    report.phase("equality, where splitting is the router's choice, and in a pool without a pair")
    compare_all(maker.may_move(), servers, sluice, report, ledger)
    compare_all(maker.unified(), servers, sluice, report)
    ledger.settle(report, "choice")

    report.phase("the official openai client")
    official_client.check(maker, servers, sluice, ledger, report)
    ledger.settle(report, "openai")

    report.phase("clients that go away")
    disconnect.check(maker, servers, sluice, ledger, report)
    ledger.settle(report, "disconnect")

    report.phase(f"policies swapped under load: {', '.join(SWAPPED_IN)}")
    asked = swap_under_load(SWAPPED_IN, maker, servers, sluice, ledger, report)
    ledger.settle(report, "swaps")
    report.phase(f"{asked} requests ran through {len(SWAPPED_IN)} swaps")

    ledger.check_all_released(report)


def on_pull_pair(start, servers, report):
    """Returns the KV bytes that requests moved."""
    with start(PULL.name, FIRST_POLICY) as sluice:
        report.phase("KV moves, as the host and the doctor prove it")
        kv_proof.check(sluice, report)
        ledger = KvLedger(servers)
        to_the_end(report, lambda: prove(servers, sluice, ledger, report))
        return ledger.bytes_moved()


def on_bidirectional_pair(start, servers, report):
    """Returns the KV bytes that requests moved."""
    with (
        start(BIDIRECTIONAL.name, sessions.POLICY, sessions.SETTINGS, sessions.UNDER_TEST) as sluice,
        start("adaptive", sessions.ADAPTIVE_POLICY, pool_keys=sessions.ADAPTIVE) as adaptive,
        start("mistaken", sessions.POLICY, sessions.SETTINGS, sessions.MISTAKEN) as mistaken,
    ):
        report.phase("KV moves both ways, as the host and the doctor prove it")
        kv_proof.check(sluice, report, comes_back=True)
        ledger = KvLedger(servers)
        ledger.check_let_go(report, "probes", timeout_s=sessions.LET_GO_TIMEOUT_S)
        maker = CaseMaker(servers.monolithic)
        to_the_end(report, lambda: sessions.prove(sluice, adaptive, mistaken, maker, servers, ledger, report))
        return ledger.bytes_moved()


PARTS = {PULL: on_pull_pair, BIDIRECTIONAL: on_bidirectional_pair}


def to_the_end(report, part):
    """One that breaks off is one fault more: the table still tells what was found until then."""
    try:
        part()
    except Exception as failure:
        traceback.print_exc()
        report.check("the test ran to its end", False, repr(failure))


def run(arguments, work_dir):
    report, logs, bytes_moved = Report(), [], 0

    @contextlib.contextmanager
    def start(name, policy, settings="", pool_keys='mode = "pull"'):
        """A router in front of the servers, ready. Its end is part of the test."""
        sluice = Sluice(arguments.sluice, arguments.policies, work_dir / name, servers, pool_keys)
        try:
            sluice.start(policy, settings)
            yield sluice
        finally:
            exit_code = sluice.stop()
            report.check(f"sluice {name} drained and exited", exit_code == 0, f"exit code {exit_code}")
            logs.append((name, sluice.log_tail()))

    pairs = [PAIRS[name] for name in arguments.pair or PAIRS]
    report.phase(f"starting three vLLM servers, logs in {work_dir}")
    with VllmServers(arguments.setup, work_dir, pairs[0]) as servers:
        for pair in pairs:
            servers.use(pair)
            report.phase(f"servers ready, {pair.name} pair")
            bytes_moved += PARTS[pair](start, servers, report)
    code = report.finish(bytes_moved)
    if code:
        for name, tail in logs:
            print(f"vllm: the end of the log of sluice {name}:\n{tail}", file=sys.stderr)
    return code


def main():
    exit_on_signals()
    arguments = parse_arguments()
    work_dir = pathlib.Path(tempfile.mkdtemp(prefix="sluice-vllm-"))
    code = 1
    try:
        code = run(arguments, work_dir)
    except StartFailed as failure:
        print(f"vllm: {failure}", file=sys.stderr)
    except KeyboardInterrupt:
        code = 130
    finally:
        if code == 0:
            shutil.rmtree(work_dir)
        else:
            print(f"vllm: logs are in {work_dir}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()

"""A client that goes away in mid-answer must not leave the engines working for nobody."""

import time

from client import CHAT, COMPLETIONS, connect, send_only
from kv_ledger import GENERATED, RUNNING, WAITING, scrape

# Many seconds of work: an engine that is not told to stop is caught making all of them.
MAX_TOKENS = 3500
# For an engine to begin, and to notice that nobody listens any more.
DEADLINE_S = 10
POLL_INTERVAL_S = 0.05
BYTES_READ_BEFORE_LEAVING = 1000


def check(maker, servers, sluice, ledger, report):
    for path, stream in ((COMPLETIONS, True), (CHAT, True), (CHAT, False)):
        case = maker.case("client goes away", path, "Tell me a very long story.", stream=stream)
        body = case.body | {"max_tokens": MAX_TOKENS, "ignore_eos": True}
        before = scrape(servers.decode)
        _ask_and_leave(case, body, servers, sluice, report)
        after = _wait(servers.decode, lambda now: now[RUNNING] == now[WAITING] == 0)
        report.check(f"{case.name}: decode is idle again", after[RUNNING] == after[WAITING] == 0, _load(after))
        made = after[GENERATED] - before[GENERATED]
        report.check(f"{case.name}: cut short", made < MAX_TOKENS, f"decode made all {made:.0f} tokens")
        idle = _wait(servers.prefill, lambda now: now[RUNNING] == now[WAITING] == 0)
        report.check(f"{case.name}: prefill is idle", idle[RUNNING] == idle[WAITING] == 0, _load(idle))
        ledger.book(case.prompt_tokens, disaggregated=True)


def _ask_and_leave(case, body, servers, sluice, report):
    connection = connect(sluice.port)
    response = None
    try:
        send_only(connection, case.path, body)
        if body.get("stream"):
            response = connection.getresponse()
            response.read(BYTES_READ_BEFORE_LEAVING)
        busy = _wait(servers.decode, lambda now: now[RUNNING] == 1)
        report.check(f"{case.name}: decode was at work", busy[RUNNING] == 1, _load(busy))
    finally:
        if response:
            response.close()  # it holds the socket open too
        connection.close()


def _wait(port, reached):
    """Scrapes until `reached(metrics)` or the deadline; the last metrics either way."""
    deadline = time.monotonic() + DEADLINE_S
    while not reached(now := scrape(port)) and time.monotonic() < deadline:
        time.sleep(POLL_INTERVAL_S)
    return now


def _load(metrics):
    return f"{metrics[RUNNING]:.0f} running, {metrics[WAITING]:.0f} waiting"

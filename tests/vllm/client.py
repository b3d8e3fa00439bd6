"""Requests as a client sends them, and what came back in a form that can be compared."""

import dataclasses
import http.client
import json

# A request on a busy two-core machine takes well under a second; nothing may wait for ever.
REQUEST_TIMEOUT_S = 60
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
DECISION_HEADER = "x-sluice-decision"


@dataclasses.dataclass
class Answer:
    """One answer, streamed or not, brought to the same form."""

    status: int = 0
    token_ids: list = dataclasses.field(default_factory=list)
    prompt_token_ids: list | None = None
    text: str = ""
    finish_reason: str | None = None
    usage: dict | None = None
    # Paths of all JSON members, such as "choices[].token_ids": tells what a router added or took away.
    members: set = dataclasses.field(default_factory=set)
    decision: dict = dataclasses.field(default_factory=dict)
    # Why this is not a whole answer; None if it is one.
    error: str | None = None

    @property
    def disaggregated(self):
        return self.decision.get("placement") == "disaggregated"

    def differences(self, expected):
        """What a client would see differ from `expected`, as lines for a person. Empty if nothing does."""
        found = []
        if self.error:
            return [self.error]
        for name in ("status", "token_ids", "prompt_token_ids", "text", "finish_reason", "usage"):
            ours, theirs = getattr(self, name), getattr(expected, name)
            if ours != theirs:
                found.append(f"{name}: expected {theirs!r}, got {ours!r}")
        for member in sorted(self.members ^ expected.members):
            found.append(f"member {member} is {'extra' if member in self.members else 'missing'}")
        return found


def connect(port):
    return http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_TIMEOUT_S)


def send_only(connection, path, body, more_headers=None):
    headers = {"Content-Type": "application/json", DECISION_HEADER: "1"} | (more_headers or {})
    connection.request("POST", path, json.dumps(body), headers)


def send(connection, path, body, more_headers=None):
    send_only(connection, path, body, more_headers)
    return connection.getresponse()


def get_json(port, path):
    connection = connect(port)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        if response.status != 200:
            raise OSError(f"GET {path} answered {response.status}")
        return json.load(response)
    finally:
        connection.close()


def post_json(port, path, body):
    """For engine endpoints that must answer 200, such as /tokenize."""
    connection = connect(port)
    try:
        response = send(connection, path, body)
        if response.status != 200:
            raise OSError(f"POST {path} answered {response.status}: {response.read()[:300]!r}")
        return json.load(response)
    finally:
        connection.close()


def delete(port, path):
    """The status of the answer."""
    connection = connect(port)
    try:
        connection.request("DELETE", path)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def ask(port, path, body, headers=None):
    """Sends one request and reads the whole answer. Never raises: a failure is an answer with `error`."""
    connection = connect(port)
    answer = Answer()
    try:
        response = send(connection, path, body, headers)
        answer.status = response.status
        answer.decision = parse_decision(response.getheader(DECISION_HEADER))
        if response.status != 200:
            answer.error = f"status {response.status}: {response.read()[:300]!r}"
        elif body.get("stream"):
            _read_stream(answer, response)
        else:
            _take(answer, json.load(response))
    except (OSError, http.client.HTTPException, ValueError) as failure:
        answer.error = f"{type(failure).__name__}: {failure}"
    finally:
        connection.close()
    return answer


def parse_decision(header):
    """`policy=a; generation=3; reason=...` as a dict."""
    pairs = (part.partition("=") for part in (header or "").split("; "))
    return {name.strip(): value.strip() for name, _, value in pairs if name.strip()}


def _read_stream(answer, response):
    ended = False
    for line in map(bytes.strip, response):
        if not line:
            continue
        if ended:
            raise ValueError(f"bytes after [DONE]: {line[:80]!r}")
        if not line.startswith(b"data: "):
            raise ValueError(f"not an SSE data line: {line[:80]!r}")
        if line == b"data: [DONE]":
            ended = True
        else:
            _take(answer, json.loads(line[len(b"data: ") :]))
    if not ended:
        raise ValueError("the stream ended without [DONE]")


def _take(answer, body):
    """Adds one body or one stream chunk to the answer."""
    if "error" in body:
        raise ValueError(f"error in the answer: {json.dumps(body['error'])[:300]}")
    # Notes between an engine and the router. They may be dropped or null, but never reach a client with content.
    for internal in ("kv_transfer_params", "ec_transfer_params"):
        if body.pop(internal, None):
            raise ValueError(f"the answer carries {internal}")
    answer.members |= set(_members(body))
    answer.prompt_token_ids = answer.prompt_token_ids or body.get("prompt_token_ids")
    answer.usage = answer.usage or body.get("usage")
    for choice in body["choices"]:
        said = choice.get("message") or choice.get("delta") or {"content": choice.get("text")}
        answer.text += said.get("content") or ""
        answer.token_ids += choice.get("token_ids") or []
        answer.prompt_token_ids = answer.prompt_token_ids or choice.get("prompt_token_ids")
        answer.finish_reason = answer.finish_reason or choice.get("finish_reason")


def _members(value, path=""):
    if isinstance(value, dict):
        for key, inner in value.items():
            member = f"{path}.{key}".lstrip(".")
            yield member
            yield from _members(inner, member)
    elif isinstance(value, list):
        for inner in value:
            yield from _members(inner, f"{path}[]")

"""The requests of the test: every way of asking, with prompts of every interesting length.

No two prompts share a first block, so that no prefix cache ever holds a part of one: all tokens of a
prompt then have to come over the wire, and the amounts can be checked exactly.
"""

import dataclasses
import itertools

from client import CHAT, COMPLETIONS, post_json
from servers import BLOCK_TOKENS, MODEL, UNIFIED_MODEL

# A byte that the tokenizer's training text lacks: always a token by itself, so it fills up exactly.
FILLER = "~"
MAX_TOKENS = 24

# Name -> (text, exact length in tokens or None for as long as it gets).
PROMPTS = {
    "shorter than a block": ("Hi", None),
    "exactly one block": ("One gate.", BLOCK_TOKENS),
    "one block and a token": ("One gate.", BLOCK_TOKENS + 1),
    "exactly three blocks": ("The keeper counted the boats.", 3 * BLOCK_TOKENS),
    "many blocks": ("One gate holds the river back while the other lets the barges through. " * 12, None),
    "non-ASCII": ("Grüße aus Köln — Ελλάδα, 世界の水門, שלום, नमस्ते, 👩‍🚀🌊 e\u0301!", None),
}


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    path: str
    body: dict
    prompt_tokens: int


class CaseMaker:
    """Makes cases with distinct prompts. `tokenizer_port` is any engine that serves the model."""

    def __init__(self, tokenizer_port):
        self._port = tokenizer_port
        self._serial = itertools.count(1)

    def distinct(self, text):
        """The text behind a number that no other prompt has."""
        return f"{next(self._serial)}) {text}"

    def case(self, name, path, text, length=None, stream=False, **more):
        """One case; the prompt is `text`, made distinct and filled up to `length` tokens."""
        prompt = self.distinct(text)
        if length is not None:
            prompt += FILLER * (length - self._count(said(path, prompt)))
        content = said(path, prompt)
        count = self._count(content)
        if length is not None and count != length:
            raise ValueError(f"{name}: the prompt has {count} tokens and should have {length}")
        body = {"model": MODEL, "max_tokens": MAX_TOKENS, "temperature": 0, "return_token_ids": True}
        body |= content | ({"stream": True} if stream else {}) | more
        ways = f"{'chat' if path == CHAT else 'completions'}, {'streamed' if stream else 'whole'}"
        return Case(f"{ways}, {name}", path, body, count)

    def every_way(self, name, text, length=None, **more):
        """Completions and chat, streamed and not."""
        for path, stream in itertools.product((COMPLETIONS, CHAT), (False, True)):
            yield self.case(name, path, text, length, stream, **more)

    def must_move(self):
        """Cases whose KV has to travel whenever the policy splits every request."""
        for name, (text, length) in PROMPTS.items():
            yield from self.every_way(name, text, length)
        for path in (COMPLETIONS, CHAT):
            usage = {"stream_options": {"include_usage": True}}
            yield self.case("usage asked", path, "Count it.", stream=True, **usage)
        # The router may ask engines for token ids; a client that did not must not see any.
        yield from self.every_way("no token ids asked", "Nothing extra, please.", return_token_ids=False)
        yield from self.every_way("log probabilities", "How sure?", logprobs=1)
        yield from self.every_way("stop string", "Stop early.", stop=["e", "a"])
        yield self._turns()
        yield self._token_prompt()

    def may_move(self):
        """Cases that a router may rightly answer from one engine alone."""
        yield from self.every_way("one token", "Just one.", max_tokens=1)

    def unified(self):
        """Cases for the pool that has no pair behind it."""
        yield from self.every_way("unified pool", "No pair here.", model=UNIFIED_MODEL)

    def _turns(self):
        turns = [
            {"role": "system", "content": self.distinct("You are a careful assistant.")},
            {"role": "user", "content": [{"type": "text", "text": "How high is the dam?"}]},
            {"role": "assistant", "content": "32 m."},
            {"role": "user", "content": "And the gate?"},
        ]
        made = self.case("several turns, content parts, max_completion_tokens", CHAT, "")
        body = made.body | {"messages": turns, "max_completion_tokens": MAX_TOKENS}
        del body["max_tokens"]
        return dataclasses.replace(made, body=body, prompt_tokens=self._count({"messages": turns}))

    def _token_prompt(self):
        made = self.case("token ids as prompt", COMPLETIONS, "These are numbers.")
        tokens = post_json(self._port, "/tokenize", {"model": MODEL, "prompt": made.body["prompt"]})["tokens"]
        return dataclasses.replace(made, body=made.body | {"prompt": tokens})

    def _count(self, content):
        return post_json(self._port, "/tokenize", {"model": MODEL} | content)["count"]


def said(path, prompt):
    return {"prompt": prompt} if path == COMPLETIONS else {"messages": [{"role": "user", "content": prompt}]}

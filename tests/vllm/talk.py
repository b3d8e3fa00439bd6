"""A conversation through the router, and what each of its turns must find in the engines' caches.

What decode keeps of a turn is its prompt and its answer, all but the last token, which was never computed with. The next
turn's prefill may have as many whole blocks of that as are the same tokens in its own prompt. Both engines' own caches
have whole blocks of what they computed or read before.
"""

import copy
import dataclasses
import time

from client import CHAT, COMPLETIONS, Answer, ask, post_json
from servers import BLOCK_TOKENS, MODEL

# More than a block, so that an answer alone makes a difference.
ANSWER_TOKENS = 48
CLEARED_TIMEOUT_S = 10
POLL_INTERVAL_S = 0.05
# Bytes that the tokenizer's training text lacks: each is a token by itself, whatever stands beside it.
UNMERGED = "~^|#$&*=@"

# How the history is sent again: as messages, as one text, or as the token ids that it was.
TEXT = "text"
IDS = "ids"


def same(one, other):
    """How many tokens are the same from the beginning."""
    length = 0
    for ours, theirs in zip(one, other):
        if ours != theirs:
            break
        length += 1
    return length


def whole_blocks(tokens):
    return tokens // BLOCK_TOKENS * BLOCK_TOKENS


class Cache:
    """What an engine's prefix cache has: whole blocks of these token lists."""

    def __init__(self):
        self._computed = []

    def add(self, tokens):
        self._computed.append(tokens)

    def clear(self):
        self._computed.clear()

    def has_of(self, prompt):
        """The last token of a prompt is always computed, and with it its block."""
        return max((whole_blocks(min(same(each, prompt), len(prompt) - 1)) for each in self._computed), default=0)


@dataclasses.dataclass
class Turn:
    answer: Answer
    prompt: list
    output: list
    # Of the prompt, first tokens that come from what decode kept.
    kept: int
    # None of it came, since the router did not wait so long for the prompt's token ids.
    is_late: bool

    @property
    def held(self):
        return self.prompt + self.output[:-1]


class Scene:
    """The servers, the router and the books that a conversation needs."""

    def __init__(self, servers, sluice, ledger, report):
        self.servers, self.sluice, self.ledger, self.report = servers, sluice, ledger, report
        self.on_prefill, self.on_decode = Cache(), Cache()
        # For each booked turn, whether the engine could not tokenise its prompt in the router's time for that.
        self.lateness = []
        self.unmerged = [self._token(letter) for letter in UNMERGED]

    def of(self, sluice):
        """The same engines behind another router."""
        other = copy.copy(self)
        other.sluice = sluice
        return other

    def forget_on_prefill(self):
        """Prefill's own cache is gone: what it does not compute now came from decode."""
        deadline = time.monotonic() + CLEARED_TIMEOUT_S
        # Decode's notice that it has read the last turn's blocks may be on its way.
        while not (cleared := post_json(self.servers.prefill, "/reset_prefix_cache", {})["success"]):
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_INTERVAL_S)
        self.report.check("prefill's cache was cleared", cleared, "it says that blocks are in use")
        self.on_prefill.clear()

    def late_prompts(self):
        return self.sluice.metric("sluice_prompts_tokenized_total", result="late")

    def _token(self, letter):
        (token,) = post_json(self.servers.monolithic, "/tokenize", {"model": MODEL, "prompt": letter})["tokens"]
        return token


class Talk:
    """One conversation. `form`: CHAT, TEXT or IDS; `more`: members of each request's body."""

    def __init__(self, scene, name, opening, form=CHAT, repeats_well=True, **more):
        """`repeats_well`: answers are of tokens that become the same tokens when their text is sent again."""
        self._scene, self.name, self.form, self.id = scene, name, form, name
        self._more = more
        if repeats_well:
            self._more = more | {"allowed_token_ids": scene.unmerged}
        self.messages = []  # of any form: {"role", "content"}
        self.kept = []  # token lists that decode keeps for this conversation
        self.ids = []  # of the history, for the form IDS
        self.say(opening)

    def branch(self):
        """Another client's copy of the same conversation."""
        other = copy.copy(self)
        other.messages, other.ids = list(self.messages), list(self.ids)
        return other  # `kept` is one for both

    def say(self, text):
        self.messages.append({"role": "user", "content": text})
        if self.form == IDS:
            tokens = post_json(self._scene.servers.monolithic, "/tokenize", {"model": MODEL, "prompt": text})["tokens"]
            self.ids = self.ids + tokens

    def rewrite(self, index, text):
        self.messages[index] = self.messages[index] | {"content": text}

    def shorten(self, messages):
        """To its first ones."""
        self.messages = self.messages[:messages]

    @property
    def path(self):
        return CHAT if self.form == CHAT else COMPLETIONS

    def body(self, **more):
        said = {
            CHAT: lambda: {"messages": self.messages},
            TEXT: lambda: {"prompt": "".join(message["content"] for message in self.messages)},
            IDS: lambda: {"prompt": self.ids},
        }[self.form]()
        usual = {"model": MODEL, "max_tokens": ANSWER_TOKENS, "temperature": 0, "return_token_ids": True}
        return usual | said | self._more | more

    def ask(self, headers=None, reuses=True, **more):
        """Sends the turn to the router alone, and to the monolithic server for what is right. Books nothing."""
        scene, body = self._scene, self.body(**more)
        expected = ask(scene.servers.monolithic, self.path, body)
        whole = {name: value for name, value in body.items() if not name.startswith("stream")}
        told = ask(scene.servers.monolithic, self.path, whole | {"return_token_ids": True})
        late_before = scene.late_prompts()
        answer = ask(scene.sluice.port, self.path, body | {"conversation_id": self.id}, headers)
        is_late = scene.late_prompts() > late_before
        scene.report.compare(f"{self.name}, turn {self._number()}", answer, expected)
        prompt = told.prompt_token_ids
        kept = max((min(whole_blocks(same(each, prompt)), len(prompt) - 1) for each in self.kept), default=0)
        return Turn(answer, prompt, told.token_ids, kept if reuses and not is_late else 0, is_late)

    def turn(self, cold=False, headers=None, reuses=True, keeps=True, **more):
        """The same, booked and taken into the history. `reuses`: what is kept is used; `keeps`: this turn is kept."""
        scene = self._scene
        if cold:
            scene.forget_on_prefill()
        turn = self.ask(headers, reuses, **more)
        scene.lateness.append(turn.is_late)
        prompt = turn.prompt
        prefill_has, decode_has = scene.on_prefill.has_of(prompt), scene.on_decode.has_of(prompt)
        scene.ledger.book_turn(len(prompt), prefill_has, decode_has, turn.kept)
        self.take(turn)
        self.kept[:] = [turn.held] if keeps else []
        return turn

    def take(self, turn):
        self._scene.on_prefill.add(turn.prompt)
        self._scene.on_decode.add(turn.held)
        self.messages = self.messages + [{"role": "assistant", "content": turn.answer.text}]
        self.ids = turn.prompt + turn.output

    def _number(self):
        return sum(message["role"] == "user" for message in self.messages)

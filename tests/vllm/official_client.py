"""The official `openai` package talks to the router as it talks to vLLM."""

import openai

from cases import FILLER
from client import REQUEST_TIMEOUT_S
from servers import MODEL, UNIFIED_MODEL

UNKNOWN_MODEL = "no-such-model"
COMMON = {"model": MODEL, "max_tokens": 16, "temperature": 0}
# Every one is a token; the servers take 4096.
TOO_LONG = FILLER * 5000


def library(port):
    # No retries: a failure that the library hides would count as a success.
    return openai.OpenAI(
        base_url=f"http://127.0.0.1:{port}/v1", api_key="unused", timeout=REQUEST_TIMEOUT_S, max_retries=0
    )


def check(maker, servers, sluice, ledger, report):
    ours, theirs = library(sluice.port), library(servers.monolithic)
    models = sorted(model.id for model in ours.models.list())
    report.check("openai: models.list", models == sorted([MODEL, UNIFIED_MODEL]), f"got {models}")
    asks = [chat_whole, chat_streamed, completions_whole, completions_streamed]
    for ask in asks:
        name = f"openai: {ask.__name__}"
        text = maker.distinct("How high is the dam? Grüße!")
        expected = ask(theirs, text)
        try:
            report.check(name, (got := ask(ours, text)) == expected, f"expected {expected}, got {got}")
        except openai.OpenAIError as failure:
            report.check(name, False, repr(failure))
        ledger.book(expected[-1], disaggregated=True)
    check_errors(ours, report)


# Each answers (text, finish reason, completion tokens, prompt tokens).


def chat_whole(client, text):
    made = client.chat.completions.create(**chat(text))
    return made.choices[0].message.content, made.choices[0].finish_reason, *spent(made.usage)


def completions_whole(client, text):
    made = client.completions.create(**completion(text))
    return made.choices[0].text, made.choices[0].finish_reason, *spent(made.usage)


def chat_streamed(client, text):
    stream = client.chat.completions.create(**chat(text), stream=True, stream_options={"include_usage": True})
    return gathered(stream, lambda choice: choice.delta.content)


def completions_streamed(client, text):
    stream = client.completions.create(**completion(text), stream=True, stream_options={"include_usage": True})
    return gathered(stream, lambda choice: choice.text)


def gathered(stream, said):
    text, reasons, usages = "", [], []
    for chunk in stream:
        text += "".join(said(choice) or "" for choice in chunk.choices)
        reasons += [choice.finish_reason for choice in chunk.choices if choice.finish_reason]
        usages += [chunk.usage] if chunk.usage else []
    return text, ",".join(reasons), *(count for usage in usages for count in spent(usage))


def spent(usage):
    return usage.completion_tokens, usage.prompt_tokens


def chat(text):
    return COMMON | {"messages": [{"role": "user", "content": text}]}


def completion(text):
    return COMMON | {"prompt": text}


def check_errors(ours, report):
    """The library picks its exception by status and reads the body: both must be as it expects."""
    chats, completions = ours.chat.completions.create, ours.completions.create
    unknown = {"model": UNKNOWN_MODEL}
    wrong = [
        ("unknown model, chat", openai.NotFoundError, chats, chat("Anyone?") | unknown),
        ("unknown model, completions", openai.NotFoundError, completions, completion("Anyone?") | unknown),
        ("prompt too long, chat", openai.BadRequestError, chats, chat(TOO_LONG)),
        ("prompt too long, completions", openai.BadRequestError, completions, completion(TOO_LONG)),
        ("prompt too long, streamed", openai.BadRequestError, completions, completion(TOO_LONG) | {"stream": True}),
    ]
    for what, kind, create, arguments in wrong:
        try:
            create(**arguments)
            report.check(f"openai: {what}", False, "no error")
        except openai.OpenAIError as error:
            body = getattr(error, "body", None)
            shaped = isinstance(body, dict) and body.get("message") and {"type", "param", "code"} <= body.keys()
            report.check(f"openai: {what}", isinstance(error, kind) and bool(shaped), f"{error!r}, body {body}")

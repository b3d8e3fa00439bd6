"""The same request to the monolithic server and through the router: a client must see no difference."""

from client import ask


def compare_all(cases, servers, sluice, report, ledger=None, must_move=False):
    """Without a ledger the cases are expected to run on the pool that has no pair."""
    for case in cases:
        expected = ask(servers.monolithic, case.path, case.body)
        answer = ask(sluice.port, case.path, case.body)
        report.compare(case.name, answer, expected)
        if ledger:
            ledger.book_answer(case.prompt_tokens, answer)
        if must_move or not ledger:
            report.check(
                f"{case.name}: {'split' if must_move else 'not split'} over prefill and decode",
                answer.disaggregated == must_move,
                f"decision: {answer.decision}",
            )

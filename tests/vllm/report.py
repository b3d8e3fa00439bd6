"""What was compared and checked, and the last word on it."""

import time

# A difference is told in full up to here; token lists can be long.
DETAIL_CHARACTERS = 400


class Report:
    def __init__(self):
        self._started = time.monotonic()
        self._equal = 0
        self._compared = 0
        self._checks = 0
        self._faults = []  # (what, detail)

    def compare(self, what, answer, expected):
        """Counts one answer, equal to the monolithic server's or not."""
        self._compared += 1
        if expected.error:
            self._faults.append((what, f"the monolithic server itself failed: {expected.error}"))
            return
        differences = answer.differences(expected)
        self._equal += not differences
        self._faults += [(what, difference) for difference in differences]

    def check(self, what, holds, detail=""):
        """Anything else that must hold."""
        self._checks += 1
        if not holds:
            self._faults.append((what, detail or "does not hold"))

    def phase(self, name):
        print(f"vllm: {time.monotonic() - self._started:4.0f} s  {name}", flush=True)

    def finish(self, bytes_moved):
        """Prints the table of faults, if any, and the last line. Returns the exit code."""
        if self._faults:
            width = min(60, max(len(what) for what, _ in self._faults))
            print(f"\n{'what':{width}}  difference")
            for what, detail in self._faults:
                print(f"{what:{width}}  {detail[:DETAIL_CHARACTERS]}")
            print()
        self.phase(f"{self._checks} checks made besides, {len(self._faults)} faults in all")
        # Nothing is ever skipped: what cannot run ends the test.
        print(f"vllm: {self._equal} of {self._compared} equal, {bytes_moved} bytes moved, 0 skipped")
        return 1 if self._faults else 0

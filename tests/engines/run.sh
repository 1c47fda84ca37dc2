#!/usr/bin/env bash
# The export, tried in real engines: an environment for each in WORK, then its runs. `run.sh WORK [ENGINE…]`
# Needs Python 3.11, g++, 10 GB and half an hour. An environment that is there already is used as it is; CASES names some
# of the cases of run_ENGINE.py.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
work="$(realpath -m "${1:?give a folder to work in}")"
shift
engines=("$@")
[ ${#engines[@]} -gt 0 ] || engines=(vllm sglang)
python="${PYTHON:-python3.11}"
ours="${DAY0_PYTHON:-$here/../../.venv/bin/python}"

make_env() {
    [ -e "$work/$1/.ready" ] && return
    echo "engines: making the environment of $1; this fetches gigabytes"
    rm -rf "${work:?}/$1"
    "$python" -m venv "$work/$1"
    for list in "$here/$1.txt" "$here/$1-nodeps.txt"; do
        # Everything is named with its hash, so nothing is resolved.
        [ ! -e "$list" ] || "$work/$1/bin/python" -m pip install -q --no-deps --require-hashes -r "$list"
    done
    touch "$work/$1/.ready"
}

failed=0
for engine in "${engines[@]}"; do
    make_env "$engine"
    echo "engines: $engine"
    "$ours" "$here/run_$engine.py" "$work/$engine/bin/python" "$work/run-$engine" ${CASES:-} || failed=1
    if [ "$engine" = vllm ] && [ -z "${CASES:-}" ]; then
        echo "engines: converted checkpoints in $engine"
        "$ours" "$here/run_convert.py" "$work/$engine/bin/python" "$work/run-convert" || failed=1
    fi
done
exit "$failed"

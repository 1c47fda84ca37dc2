#!/usr/bin/env bash
# All that needs a GPU, in order of worth, each step under a time limit, results under $OUT: about half an hour.
# Steps by name: benchmarks/gpu/all.sh [kda] [scaled] [tune] [figures] [whole] [playbooks] [models] [sparse]; without a name, all.
# PYTHON names an interpreter with torch, triton and what day0 needs; the repository itself need not be installed.
set -u
cd "$(dirname "$0")/../.."
OUT=${OUT:-out}
PYTHON=${PYTHON:-python3}
mkdir -p "$OUT"
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}

step() { # step NAME SECONDS COMMAND...: runs it, keeps what it says, and goes on whatever it returns
  local name=$1 seconds=$2
  shift 2
  local begin=$SECONDS
  timeout --kill-after=10 "$seconds" "$@" > "$OUT/$name.log" 2>&1
  local rc=$?
  echo "$name: exit $rc after $((SECONDS - begin)) s" | tee -a "$OUT/steps.txt"
  tail -n 3 "$OUT/$name.log"
}

wanted() { [ ${#names[@]} -eq 0 ] || [[ " ${names[*]} " == *" $1 "* ]]; }
names=("$@")

step environment 60 "$PYTHON" -c 'import torch, triton, day0.kernels.load as k; print(torch.__version__, triton.__version__, torch.cuda.get_device_name(), len(k.load_implementations()))'

if wanted kda; then # right, then tiles that belong together, then beside its peer
  step kda_check 120 "$PYTHON" -c 'from day0.analyzers.kernel_check import check_kernel as check; from day0.kernels.load import load_implementations as load; from tests.kernels.hard_calls import hard_calls as hard; one = next(i for i in load() if i.operator == "day0::kda_chunked" and "triton" in i.origin); bad = [f for calls in (None, hard(one.operator)) for f in check(one, "cuda", calls=calls) if f.status not in ("pass", "skipped")]; print(*bad, sep="\n"); raise SystemExit(len(bad))'
  step kda_tune 420 "$PYTHON" benchmarks/gpu/kernels.py --only kda_chunked --tune --in-process --seconds 380 --minutes 7 --tuned "$OUT/kda.yaml" --out "$OUT/kda.json"
fi
if wanted scaled; then # the same for FP8 with scales; the quickest choice belongs into TILES of converters/tiers/_triton_scaled.py
  step scaled_tiles 90 "$PYTHON" benchmarks/gpu/mxfp4_decode.py --tiles
fi
if wanted tune; then # right, and quicker tiles; the file belongs into kernels/triton/tuned/
  step tune 530 "$PYTHON" benchmarks/gpu/kernels.py --tune --no-peers --minutes 8.5 --seconds 45 --tuned "$OUT/h200.yaml" --out "$OUT/tuned.json"
  if [ -s "$OUT/h200.yaml" ]; then mkdir -p kernels/triton/tuned && cp "$OUT/h200.yaml" kernels/triton/tuned/; fi
fi
if wanted figures; then # the table
  step mxfp4 60 "$PYTHON" benchmarks/gpu/mxfp4_decode.py
  step sparse_decode 120 "$PYTHON" benchmarks/gpu/sparse_decode.py
  step figures 400 "$PYTHON" benchmarks/gpu/kernels.py --no-check --minutes 6.5 --seconds 40 --out "$OUT/figures.json" --figures "$OUT/mxfp4.log" "$OUT/sparse_decode.log"
fi
if wanted whole; then # whole models, and the sweep of sparse attention
  step model 300 "$PYTHON" benchmarks/gpu/model.py --out "$OUT/model.json"
  step sweep 150 "$PYTHON" benchmarks/gpu/sparse_decode.py --sweep --out "$OUT/sweeps.json"
fi
if wanted sparse; then # below, at and beyond the top-k, sparse against dense
  step sparse_against_dense 120 "$PYTHON" benchmarks/gpu/sparse_decode.py --context 1024 2048 4096 --batch 2 --compare-only
fi
if wanted playbooks; then # all five stages
  for name in kimi-k31-on-cuda deepseek-v32-on-cuda; do
    step "$name" 240 "$PYTHON" -m day0 run "playbooks/$name.yaml" --run "$OUT/$name"
  done
fi
if wanted models; then # the traced shapes of three more models
  for model in kimi_linear glm_moe_dsa gpt_oss; do
    step "trace-$model" 90 "$PYTHON" -m day0 trace "hf:$model" --adapt all --shrink --run "$OUT/$model"
    step "register-$model" 60 "$PYTHON" -m day0 register --device cuda --run "$OUT/$model"
    step "check-$model" 120 "$PYTHON" -m day0 check --run "$OUT/$model"
  done
fi
cat "$OUT/steps.txt"
echo "the page: $PYTHON benchmarks/gpu/table.py docs/figures/NAME.json docs/NAME.md --merge $OUT/*.json $OUT/mxfp4.log $OUT/sparse_decode.log"

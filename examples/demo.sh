#!/usr/bin/env bash
# demo.sh: one real model, end to end. Exports GPT-2 from PyTorch, plans it for four devices under a
# memory limit that plain data parallelism breaks, trains it with four local processes, and compares
# every loss, gradient and weight with one device. Run it by `make demo`, which builds first.
set -euo pipefail
cd "$(dirname "$0")/.."

program=build/shardplan
out=out/demo
cluster=local:4
memory=${SHARDPLAN_DEMO_MEMORY:-1600MiB}
steps=${SHARDPLAN_DEMO_STEPS:-3}
mkdir -p "$out"
began=$SECONDS

title() { printf '\n== %s\n' "$*"; }
show() {
  printf '$ shardplan %s\n' "$*"
  "$program" "$@"
}

title "1. GPT-2 (124 M parameters) as PyTorch has it"
# Warnings of PyTorch about itself are not part of the story.
PYTHONWARNINGS=ignore .venv/bin/python examples/export_gpt2.py "$out/gpt2.pt2"

title "2. Four copies of it (data parallelism) do not fit in $memory"
code=0
show plan "$out/gpt2.pt2" --cluster "$cluster" --memory "$memory" --planner dp || code=$?
if [ "$code" -ne 1 ]; then
  echo "error: dp was expected not to fit (exit code 1), and ended with $code" >&2
  exit 1
fi

title "3. A plan that fits"
show plan "$out/gpt2.pt2" --cluster "$cluster" --memory "$memory" -o "$out/plan.json"
show simulate "$out/plan.json" --trace "$out/trace.json"

title "4. $steps training steps on four processes, against one device"
show run "$out/plan.json" --verify --steps "$steps"

title "Done in $((SECONDS - began)) s"
cat <<END
plan      $out/plan.json
trace     $out/trace.json  open it at ui.perfetto.dev
next      $program explain $out/plan.json
          $program compare $out/gpt2.pt2 --cluster 8xA100-80GB
          $program profile gpt:layers=96,hidden=12288,heads=96
END

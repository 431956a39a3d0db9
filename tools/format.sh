#!/usr/bin/env bash
# format.sh [check]: formats all C++ sources with clang-format-16, or lists those that differ.
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t files < <(find shardplan tests benchmarks examples \( -name '*.h' -o -name '*.cc' \) \
  2>/dev/null | sort)
if [ "${1:-}" = check ]; then
  clang-format-16 --dry-run -Werror "${files[@]}" || {
    echo "error: format differs; run: make format" >&2
    exit 1
  }
  echo "format    ${#files[@]} files as .clang-format says"
else
  clang-format-16 -i "${files[@]}"
fi

#!/usr/bin/env bash
# setup.sh [core]: installs what is missing and says so, one line a step.
#   core   Debian packages only (all that a build without torch needs)
#   (none) the packages, and .venv with the pinned Python packages of requirements.txt
# Does nothing, and asks no network, when everything is there.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup     %s\n' "$*"; }
fail() {
  printf 'error: %s\n' "$*" >&2
  exit 2
}

install_packages() {
  local wanted missing
  mapfile -t wanted < <(sed -e 's/#.*//' -e '/^[[:space:]]*$/d' tools/packages.txt)
  if ! command -v dpkg-query >/dev/null; then
    say "this is not Debian; it needs the counterparts of: ${wanted[*]}"
    return
  fi
  missing=$(comm -23 <(printf '%s\n' "${wanted[@]}" | sort) \
    <(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${wanted[@]}" 2>/dev/null |
      sed -n 's/^installed //p' | sort))
  if [ -z "$missing" ]; then
    say "all ${#wanted[@]} Debian packages are there"
    return
  fi
  local root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "installing packages needs root or sudo:" $missing
    root=(sudo)
  fi
  say "installing Debian packages:" $missing
  "${root[@]}" apt-get update -q >/dev/null ||
    fail "apt-get update failed: check the network and /etc/apt/sources.list"
  # shellcheck disable=SC2086  # one word a package
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
    $missing >/dev/null || fail "apt-get could not install:" $missing
}

install_python() {
  if [ -L .venv ]; then
    say ".venv is a link to $(readlink .venv): left as it is"
    return
  fi
  local stamp=.venv/requirements.sha256 wanted
  wanted=$(sha256sum <requirements.txt)
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    say "Python packages in .venv are up to date"
  else
    say "installing the Python packages of requirements.txt in .venv (about 1 GB, a minute or two)"
    python3 -m venv .venv || fail "python3 -m venv .venv failed"
    .venv/bin/python -m pip install -qq --disable-pip-version-check -r requirements.txt ||
      fail "pip could not install requirements.txt"
    printf '%s\n' "$wanted" >"$stamp"
  fi
  local packages
  packages=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  printf '%s\n' "$PWD/shardplan/python" >"$packages/shardplan.pth"
}

install_packages
if [ "${1:-}" != core ]; then
  install_python
fi

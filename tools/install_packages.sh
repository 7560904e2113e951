#!/usr/bin/env bash
# Installs the Debian packages that the named groups need, and only those that are missing: a second call asks dpkg and is done.
# Groups: build, test, compile, lint, clang, frameworks. Usage: tools/install_packages.sh build test
set -euo pipefail

declare -A group=(
  [build]="g++ cmake ninja-build ccache libfmt-dev nlohmann-json3-dev libcli11-dev libdnnl-dev python3 python3-dev"
  [test]="libgtest-dev libgmock-dev libbenchmark-dev python3-pytest python3-numpy"
  [compile]="clang-22 lld-22 python3-venv python3-pip"
  [lint]="git clang-format clang-tidy-16 binutils"
  [clang]="clang-16 libclang-rt-16-dev libomp-16-dev llvm-16"
  [frameworks]="python3-venv python3-pip"
)

wanted=()
for name in "$@"; do
  [[ -v group[$name] ]] || { echo "install_packages: no group '$name'; known: ${!group[*]}" >&2; exit 2; }
  read -ra packages <<<"${group[$name]}"
  wanted+=("${packages[@]}")
done

missing=()
if ! command -v dpkg-query >/dev/null; then
  echo "install_packages: this is no Debian or Ubuntu; assuming that you have installed: ${wanted[*]}" >&2
  exit 0
fi
for package in "${wanted[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $status == installed ]] || missing+=("$package")
done
[[ ${#missing[@]} -gt 0 ]] || exit 0

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "install_packages: missing packages, and neither root nor sudo here. As root: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "install_packages: installing ${missing[*]}"
# A path that no other call shares: two users of one machine may install at once.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}" >"$log" 2>&1
}
# The package lists may be absent or old: refresh them once, only when the first attempt fails.
if ! install; then
  "${as_root[@]}" apt-get update >>"$log" 2>&1 || true
  if ! install; then
    tail -n 15 "$log" >&2
    echo "install_packages: apt-get could not install: ${missing[*]}" >&2
    exit 1
  fi
fi

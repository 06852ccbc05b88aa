#!/usr/bin/env bash
# Installs the Debian packages that Backstay is built from. Asks nothing; does nothing when all are there.
# As root or with passwordless sudo it installs; else it names what is missing and the command, and exits 1.
set -euo pipefail

usage() {
  echo "usage: $(basename "$0") [--check]"
  echo "  --check   only say what is missing (exit 1) or that nothing is (exit 0)"
}

# One group a line: tools, messages and storage, service, tests.
packages=(
  g++ cmake ninja-build ccache lld patch pkg-config git ca-certificates python3
  protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libgrpc++-dev libprotozero-dev libsqlite3-dev libxxhash-dev libssl-dev
  libspdlog-dev libcli11-dev prometheus-cpp-dev nlohmann-json3-dev libsystemd-dev
  libgloo-dev libgtest-dev libgmock-dev iperf3
)

check_only=no
for argument in "$@"; do
  case "$argument" in
    --check) check_only=yes ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done

if ! command -v dpkg-query > /dev/null; then
  echo "setup: this is not Debian; install by hand what corresponds to: ${packages[*]}" >&2
  exit 1
fi
# shellcheck source=/dev/null
system="$(. /etc/os-release && echo "${PRETTY_NAME:-unknown}|${ID:-}-${VERSION_ID:-}")"
if [ "${system#*|}" != debian-12 ]; then
  echo "setup: warning: made for Debian 12, this is ${system%|*}" >&2
fi

missing=()
for package in "${packages[@]}"; do
  # shellcheck disable=SC2016  # dpkg-query expands it.
  state="$(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2> /dev/null || true)"
  [ "${state:0:2}" = ii ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "setup: all ${#packages[@]} packages are installed"
  exit 0
fi

if [ "$(id -u)" -eq 0 ]; then
  as_root=()
elif command -v sudo > /dev/null && sudo -n true 2> /dev/null; then
  as_root=(sudo -n)
else
  as_root=(none)
fi
if [ "$check_only" = yes ] || [ "${as_root[*]}" = none ]; then
  echo "setup: missing: ${missing[*]}" >&2
  echo "setup: as root: apt-get update && apt-get install --no-install-recommends -y ${missing[*]}" >&2
  exit 1
fi

log="$(mktemp)"
trap 'rm -f "$log"' EXIT

# Runs apt-get without questions; waits for another apt to finish. Quiet unless it fails.
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 "$@" > "$log" 2>&1
}
update() {
  echo "setup: fetching the list of packages"
  apt update || { cat "$log" >&2; echo "setup: apt-get update failed" >&2; exit 1; }
}

# A fresh machine has no list yet, an old one may name versions that the mirror has dropped.
updated=no
if ! apt install --simulate --no-install-recommends "${missing[@]}"; then
  update
  updated=yes
fi
echo "setup: installing ${#missing[@]} packages: ${missing[*]}"
if ! apt install --no-install-recommends "${missing[@]}"; then
  if [ "$updated" = no ]; then
    update
    apt install --no-install-recommends "${missing[@]}" && exit 0
  fi
  cat "$log" >&2
  echo "setup: apt-get could not install: ${missing[*]}" >&2
  exit 1
fi

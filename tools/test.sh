#!/usr/bin/env bash
# Installs what is missing, builds, and runs all tests. The last lines are ctest's own; its exit status is ours.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

preset=release
ctest_arguments=()

usage() {
  echo "usage: $(basename "$0") [--preset dev|release|asan|tsan] [-- CTEST ARGUMENTS ...]"
  echo "  for one test: $(basename "$0") -- -R NAME"
}

while [ $# -gt 0 ]; do
  case "$1" in
    --preset) preset="${2:?--preset needs a name}"; shift 2 ;;
    --preset=*) preset="${1#*=}"; shift ;;
    --) shift; ctest_arguments=("$@"); break ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done
case "$preset" in
  dev | release | asan | tsan) ;;
  *) usage >&2; exit 2 ;;
esac

"$root/tools/setup.sh"

"$root/tools/build.sh" "$preset"
build="$root/build/$preset"

# Says what did not run and why: ctest's list of skipped tests, with the reason that each printed. A test skips itself
# only where the machine lacks something that it names.
report_skipped() {
  python3 - "$1" << 'PYTHON'
import sys
import xml.etree.ElementTree as ElementTree

skipped = 0
for case in ElementTree.parse(sys.argv[1]).getroot().iter("testcase"):
    output = [line.strip() for line in (case.findtext("system-out") or "").splitlines()]
    if case.get("status") in ("notrun", "disabled"):
        skipped += 1
        reason = next((line for line in reversed(output) if line), "") or case.find("skipped").get("message", "")
        print(f"test: not run: {case.get('name')}: {reason}")
    # GoogleTest prints "file:line: Skipped", then the reason, then "[  SKIPPED ] Suite.Name".
    for index, line in enumerate(output):
        if line.startswith("[  SKIPPED ]") and line.endswith("ms)"):
            skipped += 1
            reason = next((before for before in reversed(output[:index]) if before), "no reason given")
            print(f"test: not run: {line.split()[3]}: {reason}")
if skipped == 0:
    print("test: nothing was skipped")
PYTHON
}

results="$build/test-results.xml"
output="$build/test-output.txt"
closing='^[0-9]*% tests passed'
rm -f "$results"
set +e
ctest --test-dir "$build" -j2 --output-on-failure --no-tests=error --output-junit "$results" \
  --test-output-size-passed 1048576 "${ctest_arguments[@]}" 2>&1 | tee "$output" | sed "/$closing/,\$d"
status=${PIPESTATUS[0]}
set -e
[ ! -f "$results" ] || report_skipped "$results"
sed -n "/$closing/,\$p" "$output"
exit "$status"

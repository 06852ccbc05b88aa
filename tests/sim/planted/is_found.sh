#!/bin/bash
# is_found.sh PROGRAM PATCH: the simulation with a planted bug must fail, and say what is wrong.
set -uo pipefail
program=$1 patch=$2

echo "planted: $(head -1 "$patch")"
output=$(BACKSTAY_SIM_LAST=1500 BACKSTAY_SIM_FRESH=0 "$program" --gtest_filter='Cluster.SurvivesWhatThePolicyPromises' 2>&1)
code=$?
if [ $code -eq 0 ]; then
  echo "FAILED: no seed has found it"
  exit 1
fi
# A failure of the test or a broken assertion of the code; anything else is not a finding.
if ! grep -qE 'scenario_test\.cc:[0-9]+: Failure|check failed' <<<"$output"; then
  echo "FAILED: exit code $code without a finding"
  tail -20 <<<"$output"
  exit 1
fi
grep -E -m1 -A1 'scenario_test\.cc:[0-9]+: Failure|check failed' <<<"$output"
grep -m1 'replay with' <<<"$output" || true

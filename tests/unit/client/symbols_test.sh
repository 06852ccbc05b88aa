#!/bin/bash
# symbols_test.sh SHARED STATIC NM READELF: the client library shows the C ABI to its host, and nothing else.
set -euo pipefail
shared=$1 static=$2 nm=$3 readelf=$4

fail() {
  echo "FAILED: $1"
  exit 1
}

header=$(dirname "$0")/../../../client/include/backstay.h
declared=$(tr '\n' ' ' <"$header" | grep -oE 'BACKSTAY_API [^;{(]*\(' | grep -oE 'backstay_[a-z_]+\($' | tr -d '(' | sort -u)
exported=$("$nm" -D --defined-only "$shared" | awk '$2 == "T" {print $3}' | sed 's/@.*//' | sort -u)
[ "$(wc -w <<<"$declared")" -gt 40 ] || fail "only $(wc -w <<<"$declared") functions found in the header"
[ "$declared" = "$exported" ] || fail "exported and declared functions differ: $(diff <(echo "$declared") <(echo "$exported"))"

defined=$("$nm" -D --defined-only "$shared" | awk '{print $3}' | sed 's/@.*//')
others=$(grep -vE '^(backstay_[a-z_]+|BACKSTAY_1)$' <<<"$defined" || true)
[ -z "$others" ] || fail "the shared library also exports: $others"

defined=$("$nm" -g --defined-only "$static" | awk 'NF == 3 {print $3}')
strong=$(grep -vE '^backstay_[a-z_]+$' <<<"$defined" || true)
[ -z "$strong" ] || fail "the static library also defines: $strong"
in_static=$("$nm" -g --defined-only "$static" | awk '$2 == "T" {print $3}' | sort -u)
[ "$in_static" = "$declared" ] || fail "the static library lacks: $(diff <(echo "$declared") <(echo "$in_static"))"

allowed='^(libstdc\+\+\.so\.6|libgcc_s\.so\.1|libc\.so\.6|libm\.so\.6|ld-linux-[a-z0-9_.-]+|libasan\.so\.[0-9]+|libubsan\.so\.[0-9]+|libtsan\.so\.[0-9]+)$'
needed=$("$readelf" -d "$shared" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
[ -n "$needed" ] || fail "no DT_NEEDED found at all"
bad=$(grep -vE "$allowed" <<<"$needed" || true)
[ -z "$bad" ] || fail "the shared library needs more than the C++ runtime: $bad"
"$readelf" -d "$shared" | grep -q 'SONAME.*\[libbackstay\.so\.1\]' || fail "the soname is not libbackstay.so.1"
echo "ok"

#!/usr/bin/env bash
# Are the kernels' bits on ARM those of x86? Runs the self-test here and, emulated, on ARM
# processors with and without dot product instructions. Installs nothing; needs an ARM compiler
# that links statically (CROSS_CC) and qemu-user (QEMU). On Debian:
#     apt install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static
# or a compiler from PyPI: CROSS_CC="python -m ziglang cc -target aarch64-linux-musl"
set -euo pipefail
cd "$(dirname "$0")/.."

CROSS_CC=${CROSS_CC:-aarch64-linux-gnu-gcc}
QEMU=${QEMU:-$(command -v qemu-aarch64-static qemu-aarch64 | head -n 1 || true)}
FLAGS=(-std=c11 -O3 -g0 -ffp-contract=off -fno-trapping-math -Wno-psabi -Imiractl/native/src)
SOURCES=(bench/cross_isa.c miractl/native/src/*.c)
expected=$(sed -n 's/^SELF_TEST = //p' miractl/native/library.py)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0

check() { # check WHERE COMMAND...: every line it prints has the expected number
    local where=$1 isa number
    while read -r isa number; do
        if [ "$number" = "$expected" ]; then
            echo "ok    $where $isa $number"
        else
            echo "FAIL  $where $isa $number, expected $expected"
            failed=1
        fi
    done < <("${@:2}")
}

${CC:-cc} "${FLAGS[@]}" "${SOURCES[@]}" -o "$folder/here" -lm -pthread
check "here" "$folder/here"

if [ -z "$QEMU" ]; then
    echo "skip  ARM: no qemu-aarch64-static and no QEMU"
elif ! $CROSS_CC "${FLAGS[@]}" "${SOURCES[@]}" -static -o "$folder/arm" -lm -pthread; then
    echo "skip  ARM: $CROSS_CC does not build; set CROSS_CC"
else
    for cpu in max cortex-a72; do
        check "qemu $cpu" "$QEMU" -cpu "$cpu" "$folder/arm"
    done
fi
exit $failed

#!/usr/bin/env bash
# The tests of the library, kernels and brain, with GCC's address and undefined-behaviour sanitizers in the library. Works in
# a copy, so the checkout keeps its own library.
#     PYTHON=.venv/bin/python bench/sanitize.sh [PYTEST ARGUMENTS]
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=$(realpath -s "$(command -v "${PYTHON:-.venv/bin/python}")")
CC=${CC:-gcc}
sanitizers="-fsanitize=address,undefined -fno-sanitize-recover=all"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp -r miractl bench docs profiles pyproject.toml setup.py README.md LICENSE "$folder"
mkdir "$folder/tests"
cp -r tests/__init__.py tests/conftest.py tests/native tests/policy tests/simulate "$folder/tests"
cd "$folder"
find . -name '*.so' -delete

CC=$CC CFLAGS=$sanitizers LDFLAGS=$sanitizers MIRACTL_REQUIRE_NATIVE=1 \
    "$PYTHON" setup.py --quiet build_ext --inplace
# The interpreter is not built with the sanitizers, so their runtime comes first; it never frees
# everything at exit, so leaks are not looked for. The build's test would build without them.
LD_PRELOAD="$($CC -print-file-name=libasan.so) $($CC -print-file-name=libubsan.so)" \
    ASAN_OPTIONS=detect_leaks=0 MIRACTL_REQUIRE_NATIVE=1 \
    "$PYTHON" -m pytest -q -p no:cacheprovider --ignore tests/native/test_build.py \
    tests/native tests/policy tests/simulate "$@"

#!/usr/bin/env bash
# Build the extensions under a sanitizer and run Python with them: sanitize.sh thread|address
# [what Python is given], such as tests/concurrency/stress.py or -m pytest FILE
#
# Every report about our code fails the run. The interpreter itself is not instrumented, so the
# sanitizer's run-time library is preloaded into it. That must be the real binary: a version
# manager's shim is a shell script, and the preloaded library would watch the shell.
set -euo pipefail
cd "$(dirname "$0")/../.."

sanitizer=$1
shift
python=$("${PYTHON:-python3}" -c 'import os, sys; print(os.path.realpath(sys.executable))')
site=$("${PYTHON:-python3}" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
build=build/sanitize-$sanitizer
case $sanitizer in
    thread) library=libtsan.so ;;
    address) library=libasan.so ;;
    *) echo "the sanitizer must be thread or address, got $sanitizer" >&2; exit 2 ;;
esac

mkdir -p build
KARY_REPLAY_SANITIZER=$sanitizer KARY_REPLAY_BUILD=$build/cython \
    "${PYTHON:-python3}" setup.py --quiet build --build-base "$build" --build-lib "$build/lib" \
    > "$build.log" 2>&1 || { cat "$build.log"; exit 1; }

# Python leaks on purpose at exit; a leak of a block would show as growth in the stress test's own
# figures.
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1
# A thread that ends frees what earlier ones had for themselves. The C library orders that by a lock
# of its own, which the sanitizer does not see.
echo "race:_dl_deallocate_tls" > "$build.suppressions"
export TSAN_OPTIONS=halt_on_error=1:exitcode=66:report_signal_unsafe=0
TSAN_OPTIONS+=:suppressions=$PWD/$build.suppressions
export LD_PRELOAD=$(${CXX:-g++} -print-file-name=$library)
export PYTHONPATH=$PWD/$build/lib:$site
export PYTHONSAFEPATH=1  # the extensions here, which are not instrumented, must not come first
exec "$python" "$@"

#!/bin/sh
# RUSTC_WORKSPACE_WRAPPER of release builds: programs are linked statically, but for those that DYNAMIC_PROGRAMS names. With
# RUSTFLAGS instead, two builds would be needed, and every crate would be compiled in both.
set -eu
# Cargo sets it where it builds a program.
program=${CARGO_BIN_NAME:-}
case " ${DYNAMIC_PROGRAMS:-} " in
*" $program "*) ;;
*) [ -z "$program" ] || set -- "$@" -C target-feature=+crt-static ;;
esac
exec "$@"

#!/bin/sh
# Compile the kernels for 64-bit ARM processors and compare the NEON ones with the scalar ones, under an emulator.
# Needs Debian's gcc-aarch64-linux-gnu and qemu-user.
set -eu
cc=aarch64-linux-gnu-gcc
for tool in $cc qemu-aarch64; do
  command -v $tool >/dev/null || { echo "$tool is missing: apt-get install gcc-aarch64-linux-gnu qemu-user" >&2; exit 2; }
done
here=$(cd "$(dirname "$0")" && pwd)
kernels=$here/../src/unlimiformer/datastore/kernels
build=$(mktemp -d)
trap 'rm -r "$build"' EXIT
flags="-O3 -funroll-loops -fno-math-errno -fno-trapping-math -fopenmp-simd"
for file in scan mix ivf; do
  $cc $flags -DINSTRUCTIONS=scalar -c -o "$build/$file-scalar.o" "$kernels/$file.c"
  $cc $flags -march=armv8.2-a+dotprod -DINSTRUCTIONS=neon -c -o "$build/$file-neon.o" "$kernels/$file.c"
done
$cc $flags -march=armv8.2-a+dotprod -static -o "$build/check" "$here/neon_check.c" "$kernels/cpu.c" "$build"/*.o -lm
qemu-aarch64 -cpu max "$build/check"

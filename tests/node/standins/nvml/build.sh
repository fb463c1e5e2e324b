#!/bin/sh
# Builds the stand-in library: build.sh OUTPUT-DIRECTORY
set -eu
here=$(dirname "$0")
out=$1
mkdir -p "$out"
${CC:-cc} -std=gnu11 -O1 -g -Wall -Wextra -Werror -fPIC -shared -Wl,-soname,libnvidia-ml.so.1 \
    -o "$out/libnvidia-ml.so.1.tmp" "$here/libnvidia-ml.c"
mv "$out/libnvidia-ml.so.1.tmp" "$out/libnvidia-ml.so.1"

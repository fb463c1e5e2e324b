#!/bin/sh
# What the stand-ins need and the repository does not hold: build.sh OUTPUT-DIRECTORY builds the libraries there,
# and fetches nvidia-ml-py's one module beside the stand-ins (ignored by git), as the package's build does.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$1
mkdir -p "$out"
${CC:-cc} -std=gnu11 -O1 -g -Wall -Wextra -Werror -fPIC -shared -Wl,-soname,libnvidia-ml.so.1 \
    -o "$out/libnvidia-ml.so.1.tmp" "$here/libnvidia-ml.c"
${CC:-cc} -std=gnu11 -O1 -g -Wall -Wextra -Werror -fPIC -shared -Wl,-soname,libcuda.so.1 \
    -o "$out/libcuda.so.1" "$here/libcuda.c"
mv "$out/libnvidia-ml.so.1.tmp" "$out/libnvidia-ml.so.1"

repo=$here/../../../..
if [ ! -f "$here/../pynvml.py" ] && [ -f "$repo/packaging/deb/fetch-pynvml" ]; then
    sh "$repo/packaging/deb/fetch-pynvml" "$here/.." "$repo/.cache/wheels"
fi

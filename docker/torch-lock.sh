#!/usr/bin/env bash
# Writes docker/torch.lock: version and hash of torch's CPU wheel for each platform of the images.
#
#   docker/torch-lock.sh 2.13.0+cpu
#
# The wheels (some 200 MB each) come from wherever pip is configured to look (PIP_FIND_LINKS, PIP_EXTRA_INDEX_URL). A
# platform whose wheel is not found there is left out, and images cannot be built for it.
set -euo pipefail
version=${1:?version of torch, such as 2.13.0+cpu}
cd "$(dirname "$0")"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
hashes=()
for platform in x86_64 aarch64; do
  if python3 -m pip download --quiet --no-deps --only-binary :all: --python-version 3.11 --dest "$folder/$platform" \
    --platform "manylinux_2_28_$platform" "torch===$version"; then
    hashes+=("    --hash=sha256:$(sha256sum "$folder/$platform"/*.whl | cut -d ' ' -f 1)")
    echo "$platform: $(ls "$folder/$platform")"
  else
    echo "$platform: no wheel of torch $version was found, so it is left out" >&2
  fi
done
((${#hashes[@]})) || { echo "error: no wheel at all was found; docker/torch.lock stays as it is" >&2; exit 1; }
{
  echo "torch==$version \\"
  printf '%s \\\n' "${hashes[@]}" | sed '$ s/ \\$//'
} >torch.lock.new
mv torch.lock.new torch.lock

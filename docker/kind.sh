#!/usr/bin/env bash
# A training of four ranks on a real Kubernetes, for users with Docker, kind and kubectl:
#
#   make setup                             # pbg itself, in .venv
#   docker/kind.sh graph.yaml 2026-11-20
#
# The graph's store must be one that pods can reach too: s3://, with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, if it
# is not AWS, AWS_ENDPOINT_URL set here; its number of partitions at least 8. What the tests show against a double of
# the API is shown here against the API itself: scheduler, DNS, security contexts, the Job controller.
set -euo pipefail
spec=${1:?graph spec} snapshot=${2:?snapshot} cluster=pbg image=pbg-train:kind
[[ $spec == /* ]] || spec=$PWD/$spec
cd "$(dirname "$0")/.."
pbg=.venv/bin/pbg python=.venv/bin/python
[[ -x $pbg ]] || { echo "error: $PWD/$pbg is missing; run make setup first" >&2; exit 2; }
: "${AWS_ACCESS_KEY_ID:?}" "${AWS_SECRET_ACCESS_KEY:?}"

base=${PYTHON_IMAGE:-docker.io/library/python:3.11-slim-bookworm} torch=${TORCH-torch==2.13.0}  # a trial: by name
docker build --file docker/Dockerfile --target train --tag "$image" --build-arg UNPINNED=1 \
  --build-arg PYTHON_IMAGE="$base" --build-arg TORCH="$torch" .
kind get clusters | grep --quiet --line-regexp "$cluster" || kind create cluster --name "$cluster" --wait 120s
kind load docker-image "$image" --name "$cluster"
kubectl config use-context "kind-$cluster"
kubectl create namespace pbg --dry-run=client --output yaml | kubectl apply --filename -
env | grep '^AWS_' | kubectl create secret generic pbg-store --namespace pbg --from-env-file /dev/stdin \
  --dry-run=client --output yaml | kubectl apply --filename -

run=$("$pbg" plan "$spec" --snapshot "$snapshot" --json | "$python" -c 'import json, sys; print(json.load(sys.stdin)["run"])')
for task in validate partition bucket; do "$pbg" "$task" "$run"; done
"$python" -m tests.operators.kubernetes.kind "$run" "$image"

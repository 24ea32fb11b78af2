#!/usr/bin/env bash
# Build the wheel, install it into a clean environment, and run the first commands of a new user outside the sources.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

"$python" -m venv "$place/env"
"$place/env/bin/python" -m pip --quiet --disable-pip-version-check wheel --no-deps --wheel-dir "$place" "$root"
"$place/env/bin/python" -m pip --quiet --disable-pip-version-check install --constraint "$root/constraints.txt" "$place"/shadowprice-*.whl
"$place/env/bin/python" -m pip --disable-pip-version-check check
cp -r "$root/examples" "$place/examples"
cd "$place"

say() { echo "\$ shadowprice $*"; env -u PYTHONPATH PATH="$place/env/bin:$PATH" shadowprice "$@"; }
say --version
say policies >/dev/null
say compare -c examples/cluster.yaml -j examples/jobs.yaml --until '20 slots' -p oasis,fifo,drf,rrh --out compared
say explain compared/oasis sweep >/dev/null
say report compared/oasis --to page.html >/dev/null
grep -q '<h1>' page.html
say jobs compared/oasis -o csv | grep -q '^resnet50,'
say trace info swf:examples/lab.swf >/dev/null
say simulate --trace swf:examples/lab.swf --policy fifo --out run >/dev/null
test -s run/jobs.parquet
mkdir empty && cp examples/policy.py examples/cluster.yaml examples/jobs.yaml empty && cd empty
say policies ./policy.py:FirstFit | grep -q 'Number of workers of a job'
say simulate -c cluster.yaml -j jobs.yaml -p ./policy.py:FirstFit --set workers=most --out run >/dev/null
grep -q '"object": "FirstFit"' run/run.json
cd ..
say cloning --help >/dev/null
say experiment --help >/dev/null
echo "the wheel works"

#!/usr/bin/env bash
# Build both wheels. In a clean environment, outside the sources, run the first commands of a new user. Then run a job in
# an environment with only the wheel for jobs, and check that each wheel works without the other.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

"$python" -m venv "$folder/env"
pip() { # ENVIRONMENT WORDS...
	local environment=$1
	shift
	"$folder/$environment/bin/python" -m pip --quiet --disable-pip-version-check "$@"
}
pip env wheel --no-deps --wheel-dir "$folder" "$root" "$root/packages/training"
pip env install --constraint "$root/constraints.txt" "$folder"/shadowprice-*.whl
pip env check
cp -r "$root/examples" "$folder/examples"
cd "$folder"

say() { echo "\$ shadowprice $*"; env -u PYTHONPATH PATH="$folder/env/bin:$PATH" shadowprice "$@"; }
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
say simulate -c cluster.yaml -j jobs.yaml -p ./policy.py:FirstFit --set workers=max --out run >/dev/null
grep -q '"object": "FirstFit"' run/run.json
cd ..
say cloning --help >/dev/null
say experiment --help >/dev/null

"$python" -m venv "$folder/jobs"
pip jobs install "$folder"/shadowprice_training-*.whl
pip jobs check
pip env install --constraint "$root/constraints.txt" "$(echo "$folder"/shadowprice-*.whl)[service]"
env -u PYTHONPATH "$folder/env/bin/python" "$root/tools/smoke_job.py" "$folder/env/bin/shadowprice" "$folder/jobs/bin/python"

# Both wheels install into the package `shadowprice`: check them together, and after the removal of each.
run() { env -u PYTHONPATH "$folder/env/bin/python" -c "$1"; }
pip env install "$folder"/shadowprice_training-*.whl
run 'from shadowprice import jobs, simulate'
pip env uninstall --yes shadowprice-training
run 'from importlib.util import find_spec; from shadowprice import simulate; assert find_spec("shadowprice.jobs") is None'
pip env install "$folder"/shadowprice_training-*.whl
pip env uninstall --yes shadowprice
run 'from importlib.util import find_spec; from shadowprice import jobs; assert find_spec("shadowprice.core") is None'
echo "the wheels work"

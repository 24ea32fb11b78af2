#!/usr/bin/env bash
# Build both wheels. Run the first commands of a new user in a clean environment, outside the sources. Then run a job in an
# environment that has the wheel for jobs only, and check that either wheel works without the other.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

"$python" -m venv "$place/env"
pip() { # ENVIRONMENT WORDS...
	local environment=$1
	shift
	"$place/$environment/bin/python" -m pip --quiet --disable-pip-version-check "$@"
}
pip env wheel --no-deps --wheel-dir "$place" "$root" "$root/packages/training"
pip env install --constraint "$root/constraints.txt" "$place"/shadowprice-*.whl
pip env check
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
say simulate -c cluster.yaml -j jobs.yaml -p ./policy.py:FirstFit --set workers=max --out run >/dev/null
grep -q '"object": "FirstFit"' run/run.json
cd ..
say cloning --help >/dev/null
say experiment --help >/dev/null

"$python" -m venv "$place/jobs"
pip jobs install "$place"/shadowprice_training-*.whl
pip jobs check
pip env install --constraint "$root/constraints.txt" "$(echo "$place"/shadowprice-*.whl)[service]"
env -u PYTHONPATH "$place/env/bin/python" "$root/tools/smoke_job.py" "$place/env/bin/shadowprice" "$place/jobs/bin/python"

# Both wheels share the package: installed together, and one removed.
run() { env -u PYTHONPATH "$place/env/bin/python" -c "$1"; }
pip env install "$place"/shadowprice_training-*.whl
run 'from shadowprice import jobs, simulate'
pip env uninstall --yes shadowprice-training
run 'from importlib.util import find_spec; from shadowprice import simulate; assert find_spec("shadowprice.jobs") is None'
pip env install "$place"/shadowprice_training-*.whl
pip env uninstall --yes shadowprice
run 'from importlib.util import find_spec; from shadowprice import jobs; assert find_spec("shadowprice.core") is None'
echo "the wheels work"

#!/usr/bin/env bash
# Tries the lower bounds in pyproject.toml: an environment with the lowest versions that they allow, the wheel in
# it, and a part of the tests. UV_TORCH_BACKEND=cpu saves the CUDA build where PyTorch's own index is in reach.
#
#   tools/lowest.sh [PYTHON] [TESTS ...]
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-python3.11}
shift || true
tests=("$@")
# What touches the libraries most: PyTorch and Triton, the command line, the server, ONNX, Optuna, scikit-learn.
[ ${#tests[@]} -gt 0 ] || tests=(tests/core/test_learner.py tests/core/test_rules.py tests/engine tests/cli/test_predict.py
    tests/serve/test_api.py tests/sweep/test_search.py tests/inference/test_export.py
    tests/inference/test_estimators.py)
root=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m venv "$work/uv"
"$work/uv/bin/pip" install --quiet --disable-pip-version-check uv
uv=$work/uv/bin/uv

# Of what is named in pyproject.toml the lowest, of what that requires in turn the newest.
"$uv" pip compile --quiet --no-header --no-annotate --resolution lowest-direct --only-binary :all: \
    --python "$python" --extra serve --extra onnx --extra search --extra cluster --extra test \
    -o "$work/lowest.txt" pyproject.toml
cat "$work/lowest.txt"

"$uv" venv --quiet --python "$python" "$work/venv"
export VIRTUAL_ENV=$work/venv PATH=$work/venv/bin:$PATH
"$uv" build --quiet --wheel --out-dir "$work" .
"$uv" pip install --quiet --no-deps -r "$work/lowest.txt" "$work"/pathaware-*.whl

# The package as installed, far from the sources.
cd "$work"
python -c "import pathaware, torch; print(pathaware.__file__, torch.__version__)"
python - << 'PICTURES'
from pathlib import Path

from PIL import Image, ImageDraw

# Two kinds of pictures, three of each: a circle and a cross, a little further down each time.
for number in range(3):
    for kind in ("circle", "cross"):
        picture = Image.new("L", (40, 40), 255)
        draw = ImageDraw.Draw(picture)
        if kind == "circle":
            draw.ellipse((8, 6 + number, 30, 28 + number), outline=0, width=3)
        else:
            draw.line((8, 6 + number, 30, 28 + number), fill=0, width=3)
            draw.line((30, 6 + number, 8, 28 + number), fill=0, width=3)
        folder = Path("support", kind) if number < 2 else Path("new", kind)
        folder.mkdir(parents=True, exist_ok=True)
        picture.save(folder / f"{number}.png")
PICTURES
pathaware predict glyphs --support support --images new --score
pathaware train sine --iterations 50

# Old versions warn of what newer Pythons and libraries changed; that is no fault of the package.
cp -r "$root/tests" "$root/tools" "$root/pyproject.toml" "$root/README.md" "$root/docs" "$root/results" .
python -m pytest -n 2 -m 'not slow' -o filterwarnings=default "${tests[@]}"
echo "The lowest versions work."

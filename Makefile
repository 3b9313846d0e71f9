# Every target sets up what it needs and does nothing twice.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test test-slow torture package-test oldest lint format bench docs web collections default-model evaluate comparison joint results clean

setup: $(READY)

# The pinned torch goes first: it is the CPU build, and everything after it is satisfied by it.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check $$(grep '^torch==' constraints.txt)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/python -m cnaps.demo

test: $(READY)
	CNAPS_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/pytest -m 'not slow' -n 2

test-slow: $(READY)
	$(BIN)/pytest -m slow

# Faults of every kind, for some minutes; writes docs/reliability.md.
torture: $(READY)
	$(BIN)/python tests/torture/run.py

# Wheel and sdist, in an empty environment too.
package-test: $(READY)
	$(BIN)/pytest tests/packaging

# The oldest versions that pyproject.toml allows, with the pinned torch, in an environment of their own.
OLDEST := .venv-oldest
oldest:
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/pip install --quiet --disable-pip-version-check $$(grep '^torch==' constraints.txt)
	$(OLDEST)/bin/python tests/packaging/oldest.py > $(OLDEST)/oldest.txt
	$(OLDEST)/bin/pip install --quiet --disable-pip-version-check -r $(OLDEST)/oldest.txt pytest hypothesis httpx -e .
	CNAPS_THREADS=1 OMP_NUM_THREADS=1 $(OLDEST)/bin/pytest -m 'not slow' tests/properties tests/compatibility \
	  tests/classifier tests/data tests/studio/test_store.py tests/studio/test_safety.py -k 'not export and not onnx'

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/python -m benchmarks

docs: $(READY)
	test -x $(BIN)/mkdocs || $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open site/index.html"

# The page that learns in the browser itself; needs npm. `cnaps web` serves it.
web: $(READY)
	$(BIN)/python tools/build_web.py

# The data, the training and the evaluation of the default model; DATASETS is the folder of the archives.
DATASETS ?= ../shared/datasets
PREPARE = $(BIN)/cnaps data prepare --size 96

collections: $(READY)
	$(PREPARE) ilsvrc_2012 $(DATASETS)/ilsvrc-val.tar collections/ilsvrc_2012 --splits random
	$(PREPARE) folder $(DATASETS)/tiny-imagenet.tar collections/tiny_imagenet --splits random
	$(PREPARE) omniglot $(DATASETS) collections/omniglot
	$(PREPARE) cu_birds $(DATASETS)/cub-birds.tar collections/cu_birds
	$(PREPARE) vgg_flower $(DATASETS)/vgg-flower.tar collections/vgg_flower
	$(PREPARE) quickdraw $(DATASETS)/quickdraw.zip collections/quickdraw
	for name in caltech101 fruits pokemon fonts; do \
	  $(PREPARE) folder $(DATASETS)/$$name.tar collections/$$name --splits train || exit 1; done
	$(PREPARE) mnist $(DATASETS) collections/mnist
	$(PREPARE) cifar10 $(DATASETS)/cifar10.tar collections/cifar10
	$(PREPARE) traffic_sign $(DATASETS)/traffic-sign.tar collections/traffic_sign
	$(PREPARE) dtd $(DATASETS)/dtd.tar collections/dtd --splits test

default-model: collections
	$(BIN)/cnaps train configs/cnaps-lite0.toml --run runs/cnaps-lite0 --processes 2
	$(BIN)/cnaps train configs/cnaps-lite0-taught.toml --run runs/cnaps-lite0-taught --processes 2
	$(BIN)/cnaps ship runs/cnaps-lite0-taught/last src/cnaps/models/cnaps-lite0 --average runs/cnaps-lite0/last --shared 0.85
	$(BIN)/cnaps evaluate $(addprefix collections/,tiny_imagenet omniglot cu_birds vgg_flower quickdraw) --model cnaps-lite0 \
	  --learners cnaps --split valid --tasks 40 --seed 7 --max-ways 20 --max-context 200 --processes 2 --out out/valid
	$(BIN)/cnaps calibrate src/cnaps/models/cnaps-lite0 out/valid

UNSEEN := mnist,cifar10,traffic_sign,dtd
TESTED := ilsvrc_2012 tiny_imagenet omniglot cu_birds vgg_flower quickdraw mnist cifar10 traffic_sign dtd

evaluate: collections
	$(BIN)/cnaps evaluate $(addprefix collections/,$(TESTED)) --model cnaps-lite0 \
	  --learners cnaps,logreg,protonet,matchingnet \
	  --against logreg --max-ways 20 --max-context 200 --unseen $(UNSEEN) --processes 2 --out out/evaluation

# Every method of the paper's comparisons under one training budget, then on the same tasks. Rates are lower where all of
# theta is trained; Mahalanobis distances of raw features need a temperature in the loss.
TRAINED := cnaps cnaps-no-ar cnaps-no-film simple-cnaps versa tadam fomaml proto-maml
SET_simple-cnaps := --set model.features=last --set loss.temperature=50
SET_fomaml := --set optimiser.learning_rate=1e-4
SET_proto-maml := $(SET_fomaml)
# CNAPs with theta trained too; the second with batch statistics for the first half of its tasks only
SET_cnaps-joint := $(SET_fomaml) --set theta.mode=joint
SET_cnaps-warm-start := $(SET_fomaml) --set theta.mode=warm-start --set theta.warm_start_tasks=200
LEARNER_cnaps-joint := cnaps
LEARNER_cnaps-warm-start := cnaps
RUNS := runs/comparison
empty :=
comma := ,
listed = $(subst $(empty) $(empty),$(comma),$(strip $(1)))
COMPARE = $(BIN)/cnaps evaluate $(addprefix collections/,$(TESTED)) --model $(RUNS)/cnaps/last --unseen $(UNSEEN) \
  --against cnaps --max-ways 10 --max-context 50 --processes 2 --out out/comparison

$(RUNS)/%/last: | collections
	$(BIN)/cnaps train configs/comparison.toml --learner $(or $(LEARNER_$*),$*) --run $(RUNS)/$* $(SET_$*)

comparison: $(addprefix $(RUNS)/,$(addsuffix /last,$(TRAINED)))
	$(COMPARE) --tasks 100 --learners logreg,protonet,matchingnet,$(call listed,$(foreach n,$(filter-out %maml,$(TRAINED)),$n=$(RUNS)/$n/last))
	$(COMPARE) --tasks 25 --learners finetune,finetune-tuned,film-gradient,film-gradient-tuned,residual-adapters,$(call listed,$(foreach n,$(filter %maml,$(TRAINED)),$n=$(RUNS)/$n/last))

joint: $(RUNS)/cnaps/last $(RUNS)/cnaps-joint/last $(RUNS)/cnaps-warm-start/last
	$(BIN)/cnaps experiment joint $(addprefix collections/,$(TESTED)) --model $(RUNS)/cnaps/last --max-ways 10 \
	  --max-context 50 --processes 2 --out out/joint --learners cnaps@two-stage=$(RUNS)/cnaps/last,$(call listed,\
	  $(foreach n,joint warm-start,cnaps@$n=$(RUNS)/cnaps-$n/last))

# docs/results.md and its pictures, from the stored numbers in results/
results: $(READY)
	$(BIN)/python tools/results.py

clean:
	rm -rf web/node_modules web/public/model.safetensors $(VENV) $(OLDEST) build dist *.egg-info src/*.egg-info .pytest_cache .mypy_cache .ruff_cache

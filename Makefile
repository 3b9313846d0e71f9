# Every target sets up what it needs and does nothing twice.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup wheel demo test test-slow torture package-test oldest lint format bench docs collections overlaps default-model evaluate comparison joint results clean

setup: $(READY)

# The pinned torch goes first: it is the CPU build, and everything after it is satisfied by it.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check $$(grep '^torch==' constraints.txt)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# One file that installs anywhere: pipx install "dist/cnaps-....whl[serve]"
wheel: $(READY)
	$(BIN)/python -m build --wheel --outdir dist .
	@echo "install it: pipx install \"./$$(ls dist/*.whl | tail -1)[serve]\""

# What people install: no torch.
LIGHT := .venv-light
$(LIGHT)/.ready: pyproject.toml constraints.txt
	test -x $(LIGHT)/bin/python || $(PYTHON) -m venv $(LIGHT)
	$(LIGHT)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

demo: $(LIGHT)/.ready
	$(LIGHT)/bin/cnaps demo out/demo

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
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/python -m benchmarks

docs: $(READY)
	test -x $(BIN)/mkdocs || $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open site/index.html"

# The data, the training and the evaluation of the default model; DATASETS is the folder of the archives.
DATASETS ?= ../shared/datasets
REFERENCE ?= ../shared/reference
PREPARE = $(BIN)/cnaps data prepare --size 512
# Domains for training, and whole domains that only decide between models. Classes that show what is tested are left out
# by the files of configs/splits, which tools/overlaps.py writes.
TRAIN_DOMAINS := pokemon canteen-food chess-pieces coins-euro coins-jordan hiragana playing-cards seedlings
VALID_DOMAINS := food-bangla sports fish-market monkeys aerial-scenes leaves syllables
PARTED := caltech101 fruits fonts math-symbols plate-characters

collections: $(READY)
	$(PREPARE) ilsvrc_2012 $(DATASETS)/ilsvrc-val.tar collections/ilsvrc_2012 --splits random
	$(PREPARE) folder $(DATASETS)/tiny-imagenet.tar collections/tiny_imagenet --splits random
	$(PREPARE) omniglot $(DATASETS) collections/omniglot
	$(PREPARE) cu_birds $(DATASETS)/cub-birds.tar collections/cu_birds
	$(PREPARE) vgg_flower $(DATASETS)/vgg-flower.tar collections/vgg_flower
	$(PREPARE) quickdraw $(DATASETS)/quickdraw.zip collections/quickdraw
	for name in $(PARTED); do $(PREPARE) folder $(DATASETS)/$$name.tar collections/$$name \
	  --splits configs/splits/$$name.json || exit 1; done
	for name in $(TRAIN_DOMAINS); do \
	  $(PREPARE) folder $(DATASETS)/$$name.tar collections/$$name --splits train || exit 1; done
	for name in $(VALID_DOMAINS); do \
	  $(PREPARE) folder $(DATASETS)/$$name.tar collections/$$name --splits valid || exit 1; done
	$(PREPARE) mnist $(DATASETS) collections/mnist
	$(PREPARE) cifar10 $(DATASETS)/cifar10.tar collections/cifar10
	$(PREPARE) cifar100 $(DATASETS)/cifar100-test.zip collections/cifar100
	$(PREPARE) traffic_sign $(DATASETS)/traffic-sign.tar collections/traffic_sign
	$(PREPARE) dtd $(DATASETS)/dtd.tar collections/dtd --splits test

overlaps: $(READY)
	$(BIN)/python tools/overlaps.py $(DATASETS) $(REFERENCE) configs/splits

# Three parts of training; what ships lies between the second and the third (docs/default-model.md).
PYTHON_ONE = OMP_NUM_THREADS=1 $(BIN)/python
FEATURES = $(PYTHON_ONE) tools/cache_features.py
default-model: collections
	$(BIN)/cnaps train configs/cnaps-lite0.toml --run runs/cnaps-lite0 --processes 2
	$(BIN)/cnaps train configs/cnaps-lite0-taught.toml --run runs/cnaps-lite0-taught --processes 2
	$(BIN)/cnaps ship runs/cnaps-lite0-taught/last runs/cnaps-lite0-96 --average runs/cnaps-lite0/last --shared 0.85
	$(BIN)/cnaps train configs/cnaps-lite0-sizes.toml --run runs/sizes-1 --processes 2
	$(BIN)/python tools/interpolate.py runs/cnaps-lite0-96 runs/sizes-1/last 0.4 runs/between --shared 0.65 --last 1.6
	mkdir -p out/features
	$(FEATURES) out/features/128.pt --model runs/between --size 128 --tasks 8 \
	  $(patsubst %,collections/%:valid,plate-characters syllables omniglot quickdraw)
	$(FEATURES) out/features/224.pt --model runs/between --size 224 --tasks 10 \
	  $(patsubst %,collections/%:valid,sports monkeys food-bangla aerial-scenes)
	$(PYTHON_ONE) tools/calibrate_features.py runs/between out/features/128.pt,out/features/224.pt
	$(BIN)/cnaps ship runs/between src/cnaps/models/cnaps-lite0

UNSEEN := mnist,cifar10,traffic_sign,dtd
TESTED := ilsvrc_2012 tiny_imagenet omniglot cu_birds vgg_flower quickdraw mnist cifar10 traffic_sign dtd

evaluate: collections
	$(PYTHON_ONE) tools/evaluate_default.py run out/evaluation $(addprefix collections/,$(TESTED) cifar100) \
	  --precision bfloat16
	$(PYTHON_ONE) tools/evaluate_default.py report out/evaluation results/evaluation --unseen $(UNSEEN),cifar100

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
	rm -rf $(VENV) $(LIGHT) $(OLDEST) build dist *.egg-info src/*.egg-info .pytest_cache .mypy_cache .ruff_cache

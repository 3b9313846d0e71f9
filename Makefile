# Every target sets up what it needs and does nothing twice.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup wheel demo test test-slow coverage torture package-test oldest lint format bench docs web collections published-collections overlaps default-model evaluate comparison comparison-steps ladder joint adapters active unequal grid descent design-space full-size reviewer reviewer-status continual continual-networks continual-features continual-cnaps continual-stored continual-default active-default shots speed paper paper-collections results clean

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

# Lines of each package that the ordinary tests run, then those of the runtime in detail; fails below the share in pyproject.toml.
coverage: $(READY)
	CNAPS_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/pytest -m 'not slow' -n 2 --cov --cov-report= --cov-fail-under=0
	@for part in src/cnaps/*/__init__.py; do name=$$(basename $$(dirname $$part)); \
	  echo "$$name $$($(BIN)/coverage report --include="*/cnaps/$$name/*" --format=total --fail-under=0)%"; done
	$(BIN)/coverage report

# Faults of every kind, for some minutes; writes docs/reliability.md.
torture: $(READY)
	$(BIN)/python tests/torture/run.py

# Wheel and sdist, in an empty environment too.
package-test: $(READY)
	$(BIN)/pytest tests/packaging

# The oldest versions that pyproject.toml allows, torch too (gigabytes: it comes with CUDA), in an environment of their
# own. Writing ONNX graphs is left out: it needs a newer torch, and says so.
OLDEST := .venv-oldest
oldest:
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python tests/packaging/oldest.py > $(OLDEST)/oldest.txt
	$(OLDEST)/bin/pip install --quiet --disable-pip-version-check -r $(OLDEST)/oldest.txt pytest hypothesis httpx -e .
	CNAPS_THREADS=1 OMP_NUM_THREADS=1 $(OLDEST)/bin/pytest -m 'not slow' tests/properties tests/compatibility \
	  tests/runtime tests/cli/test_classify.py tests/cli/test_answers.py tests/images tests/data tests/nn \
	  tests/studio/test_store.py tests/serving/test_safety.py \
	  --ignore tests/runtime/test_estimator.py --ignore tests/runtime/test_hub.py -k 'not export and not onnx and not ship'

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

# The page that learns in the browser itself; needs npm. `cnaps web` serves it.
web: $(READY)
	$(BIN)/python tools/build_web.py

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

# ImageNet with its published split and hierarchy, for what is trained anew, and classes that do not show what it tests.
# (The default model was trained on a split by chance.)
published-collections: collections
	$(PREPARE) ilsvrc_2012 $(DATASETS)/ilsvrc-val.tar collections/published/ilsvrc_2012 --wordnet $(REFERENCE)
	$(PREPARE) folder $(DATASETS)/tiny-imagenet.tar collections/published/tiny_imagenet --wordnet $(REFERENCE) --splits published
	for name in caltech101 fruits; do $(PREPARE) folder $(DATASETS)/$$name.tar collections/published/$$name \
	  --splits configs/splits/published/$$name.json || exit 1; done

overlaps: $(READY)
	$(BIN)/python tools/overlaps.py $(DATASETS) $(REFERENCE) configs/splits
	$(BIN)/python tools/overlaps.py $(DATASETS) $(REFERENCE) configs/splits/published --published

# Three parts of training; what ships lies between the second and the third (docs/default-model.md).
PYTHON_ONE = CNAPS_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/python
FEATURES = $(PYTHON_ONE) tools/cache_features.py
VALID_FEATURES := --tasks 6 --max-context 100 --outside 3
default-model: collections
	$(BIN)/cnaps train configs/cnaps-lite0.toml --out runs/cnaps-lite0 --processes 2
	$(BIN)/cnaps train configs/cnaps-lite0-taught.toml --out runs/cnaps-lite0-taught --processes 2
	$(BIN)/cnaps ship runs/cnaps-lite0-taught/last runs/cnaps-lite0-96 --average runs/cnaps-lite0/last --lora 0.85
	$(BIN)/cnaps train configs/cnaps-lite0-sizes.toml --out runs/sizes-1 --processes 2
	$(BIN)/python tools/interpolate.py runs/cnaps-lite0-96 runs/sizes-1/last 0.4 runs/between --large 0.5 --last 1.6
	mkdir -p out/features
	$(FEATURES) out/features/auto.pt --model runs/between $(VALID_FEATURES) \
	  $(patsubst %,collections/%:valid,$(VALID_DOMAINS) plate-characters omniglot quickdraw tiny_imagenet)
	$(FEATURES) out/features/coarse.pt --model runs/between $(VALID_FEATURES) --coarse 32 --size 128 \
	  collections/tiny_imagenet:valid
	$(PYTHON_ONE) tools/compare_novelty.py out/features/auto.pt runs/between
	$(PYTHON_ONE) tools/compare_temperatures.py out/features/auto.pt,out/features/coarse.pt runs/between
	$(PYTHON_ONE) tools/calibrate_features.py runs/between out/features/auto.pt,out/features/coarse.pt
	$(BIN)/cnaps ship runs/between src/cnaps/models/cnaps-lite0

comma := ,
UNSEEN := mnist,cifar10,traffic_sign,dtd
TESTED := ilsvrc_2012 tiny_imagenet omniglot cu_birds vgg_flower quickdraw mnist cifar10 traffic_sign dtd

evaluate: collections
	$(PYTHON_ONE) tools/evaluate_default.py run out/evaluation $(addprefix collections/,$(TESTED) cifar100)
	$(PYTHON_ONE) tools/evaluate_default.py report out/evaluation results/evaluation --unseen $(UNSEEN),cifar100
	$(PYTHON_ONE) tools/film_table.py out/film $(addprefix collections/,$(subst $(comma), ,$(UNSEEN)) cifar100) --tasks 100
	$(PYTHON_ONE) tools/evaluate_default.py report out/film results/film --title 'FiLM of other tasks'
	$(BIN)/cnaps experiment trust $(addprefix collections/,$(subst $(comma), ,$(UNSEEN))) --model cnaps-lite0 --tasks 12 --out out/trust

# What follows is resumable: run again, it goes on where it was stopped, and ends with its numbers in results/. `make reviewer`
# runs all of it, one after the other; what is done and what is left, `make reviewer-status` says.
start = if test -d $(2); then $(BIN)/cnaps $(1) --resume $(2); else $(BIN)/cnaps $(1) $(3) --out $(2) $(4); fi

# Every method of the paper's comparisons, trained alike (configs/comparison.toml) and tested on the same tasks, on features of
# every stage and of the last one. Scores are kept in results/comparison.json and rates in results/grid.json: what is there is
# not done again, so more TASKS and SEEDS, now or on another machine, add to it. The first seed is tested on TASKS of each data
# set, further ones on SPREAD_TASKS. One core, one process.
SEEDS ?= 0,1,2
TASKS ?= 600
SPREAD_TASKS ?= 40
STEPPED_TASKS ?= 8
COMPARISON = $(PYTHON_ONE) tools/comparison.py
TEST = $(COMPARISON) run --seeds $(SEEDS) --tasks $(TASKS) --spread-tasks $(SPREAD_TASKS)
TAKE_IN = $(BIN)/python tools/results.py --made 'make $@ $(filter-out DATASETS=% REFERENCE=%,$(MAKEOVERRIDES))'
UNPACK = $(BIN)/python tools/results.py --unpack
FROZEN := logreg protonet matchingnet
ONE_PASS := cnaps cnaps-no-film protonet-trained simple-cnaps cnaps-linear tadam-style cnaps-no-ar versa matchingnet-trained
STEPPED := fomaml proto-maml proto-maml-fixed-norms
DESCENDED := film-gradient-tuned finetune-tuned finetune-long finetune

grid: published-collections
	$(COMPARISON) grid $(ONE_PASS)
comparison: grid
	$(TEST) $(FROZEN) $(ONE_PASS)
comparison-steps: published-collections
	$(COMPARISON) grid $(STEPPED)
	$(COMPARISON) run --seeds $(SEEDS) --tasks $(STEPPED_TASKS) $(DESCENDED) $(STEPPED)

# Steps and rates of methods that descend in every task, on validation classes and domains.
descent: collections
	$(PYTHON_ONE) tools/tune_descent.py out/descent finetune-tuned
	$(PYTHON_ONE) tools/tune_descent.py out/descent finetune-tuned --rates 1e-4,3e-4 --tasks 4
	$(PYTHON_ONE) tools/tune_descent.py out/descent finetune-tuned --rates 1e-4,3e-4 --tasks 4 --shots 90 --steps 25,100,200,400
	$(PYTHON_ONE) tools/tune_descent.py out/descent film-gradient-tuned residual-adapters --steps 25,100
	$(TAKE_IN) out/descent/descent.json

# What each step from the paper's model to the default one is worth; theta trained too; residual adapters as in the paper,
# from one pass of meta-trained networks, and learned anew in every task.
ladder: grid
	$(COMPARISON) grid cnaps-linear-no-film cnaps-linear-long cnaps-cosine cnaps-ridge
	$(TEST) cnaps-linear-no-film cnaps-linear-long cnaps-cosine cnaps-ridge cnaps cnaps-lora cnaps-taught
joint: grid
	$(TEST) cnaps cnaps-joint cnaps-warm-start
adapters: grid
	$(COMPARISON) grid residual-adapters-trained
	$(TEST) cnaps residual-adapters-trained
	$(COMPARISON) run --tasks $(STEPPED_TASKS) film-gradient-tuned residual-adapters

# Which labels to buy, for CNAPs and for prototypes that were trained alike.
ACTIVE_SEEDS ?= 3
active: grid
	ours=$$($(COMPARISON) train cnaps) && theirs=$$($(COMPARISON) train protonet-trained) && \
	$(BIN)/cnaps experiment active collections/vgg_flower collections/omniglot --model $$ours --out out/active \
	  --learners cnaps,protonet-trained=$$theirs --seeds $(ACTIVE_SEEDS)
	$(TAKE_IN) out/active/active.json active-trained

# Unequal numbers of examples and prediction sets: chosen on validation domains, measured on unseen data sets.
unequal: collections
	$(BIN)/python -m benchmarks.unequal collections
	$(TAKE_IN) out/unequal/unequal.json

# How many numbers a task has of its own, and how long it takes to find them: the paper's picture of the field.
design-space: grid
	model=$$($(COMPARISON) train cnaps) && \
	models=$$($(COMPARISON) train --named cnaps cnaps-no-ar cnaps-no-film simple-cnaps versa tadam-style fomaml proto-maml) && \
	CNAPS_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/cnaps experiment design-space collections/vgg_flower --model $$model --out out/design-space \
	  --learners protonet,matchingnet,logreg,$$models,film-gradient-tuned,residual-adapters,finetune-tuned,finetune
	$(TAKE_IN) out/design-space/design-space.json

# The default model and the probes on tasks of full size, at most 50 ways and 500 context images, at one size of images.
FULL_TASKS ?= 25
FULL_PIXELS ?= 96
full-size: collections
	$(PYTHON_ONE) tools/evaluate_default.py run out/full-size $(addprefix collections/,$(TESTED) cifar100) \
	  --max-ways 50 --max-context 500 --tasks $(FULL_TASKS) --size $(FULL_PIXELS) --probe-sizes $(FULL_PIXELS)
	$(PYTHON_ONE) tools/evaluate_default.py report out/full-size out/full-size/full-size --unseen $(UNSEEN),cifar100 \
	  --title 'Tasks of full size' --made 'make full-size'
	$(TAKE_IN) out/full-size/full-size.json

# Classes in steps on Split CIFAR-100: the same test images for all, and CNAPs without z_AR as in the paper. Networks learn from all
# images of a class; VCL takes ten times as long as the others. How strongly weights are held, tools/tune_continual.py has found.
CONTINUAL_RUNS ?= 30
VCL_RUNS ?= $(CONTINUAL_RUNS)
CIFAR := runs/cifar100
$(CIFAR)/collection/collection.json: $(READY)
	for part in train test; do $(BIN)/python -m zipfile -e $(DATASETS)/cifar100-$$part.zip $(CIFAR)/$$part || exit 1; done
	cd $(CIFAR) && find train test -name '*.jpg' | sort | awk -F/ '{print $$0 "," $$2}' > images.csv
	$(BIN)/cnaps data prepare folder $(CIFAR)/images.csv $(CIFAR)/collection --name cifar100 --size 32 --splits test

SPLIT_CIFAR = $(BIN)/cnaps experiment continual --benchmark split-cifar100 --data $(CIFAR)/collection --tests 20 --iterations 150 \
  --out out/continual-cifar100
continual: continual-networks continual-features continual-cnaps
	$(TAKE_IN) out/continual-cifar100/continual.json continual-cifar100
# What is stored is not done again.
continual-stored: $(READY)
	$(UNPACK) continual-cifar100 out/continual-cifar100
continual-networks: $(CIFAR)/collection/collection.json continual-stored
	$(SPLIT_CIFAR) --shots all --runs $(CONTINUAL_RUNS) --methods si,ewc,rwalk,finetune
	$(SPLIT_CIFAR) --shots all --runs $(VCL_RUNS) --methods vcl
# The rival that brings the same backbone: on its features at the size of the comparison, as it is.
continual-features: $(CIFAR)/collection/collection.json continual-stored
	$(SPLIT_CIFAR) --model cnaps-lite0 --size 64 --shots 1,5,10,25,all --runs $(CONTINUAL_RUNS) --methods ridge@features,class-means@features
	$(SPLIT_CIFAR) --model cnaps-lite0 --size 64 --shots all --runs $(CONTINUAL_RUNS) --methods si@features,ewc@features,rwalk@features,finetune@features
continual-cnaps: $(CIFAR)/collection/collection.json grid continual-stored
	model=$$($(COMPARISON) train cnaps-no-ar) && \
	$(SPLIT_CIFAR) --model $$model --shots 1,5,10,25,all --runs $(CONTINUAL_RUNS) --methods cnaps-fixed,cnaps-paper

# The default model learning on, each data set at the size that auto takes, and asking for labels. On Split MNIST beside networks that
# train on all images, on the same test images.
LEARNING_ON := cnaps-fixed,cnaps-paper,ridge@features
CONTINUAL_DEFAULT = $(BIN)/cnaps experiment continual --methods $(LEARNING_ON)
SPLIT_MNIST = $(BIN)/cnaps experiment continual --benchmark split-mnist --data collections/mnist --tests 100 --out out/continual-mnist
continual-default: collections
	for name in continual-mnist continual-cifar10 continual-tiny; do $(UNPACK) $$name out/$$name || exit 1; done
	$(SPLIT_MNIST) --methods $(LEARNING_ON) --shots 1,5,10,25,100 --runs 10 --size 96
	$(SPLIT_MNIST) --methods si,ewc,rwalk,finetune --shots all --runs 10
	$(SPLIT_MNIST) --methods vcl,vcl-coreset,joint --shots all --runs 3
	$(TAKE_IN) out/continual-mnist/continual.json continual-mnist
	$(CONTINUAL_DEFAULT) --benchmark split-cifar10 --data collections/cifar10 --shots 1,10,100 --runs 10 --tests 100 --size 128 --out out/continual-cifar10
	$(TAKE_IN) out/continual-cifar10/continual.json continual-cifar10
	$(CONTINUAL_DEFAULT) --benchmark split-collection --classes 20 --data collections/tiny_imagenet --shots 1,5,10 --runs 2 --tests 10 --size 160 --out out/continual-tiny
	$(TAKE_IN) out/continual-tiny/continual.json continual-tiny
active-default: collections
	$(BIN)/cnaps experiment active collections/vgg_flower collections/omniglot --model cnaps-lite0 --seeds 4 --size 96 --out out/active-default
	$(TAKE_IN) out/active-default/active.json active

# Accuracy against shots, ways and imbalance, and against time, for the default model at 96 pixels.
SHOTS_LEARNERS ?= cnaps,logreg,logreg@last,logreg-balanced,logreg-balanced@last,finetune-tuned@last,finetune-long@last,finetune-long-balanced@last
AXES ?= shots,ways,imbalance
SHOTS_TASKS ?= 25
shots: collections
	$(UNPACK) sizes out/sizes
	$(BIN)/cnaps experiment shots $(addprefix collections/,$(TESTED) cifar100) --model cnaps-lite0 --tasks $(SHOTS_TASKS) --size 96 \
	  --unseen $(UNSEEN),cifar100 --learners $(SHOTS_LEARNERS) --axes $(AXES) --out out/sizes
	$(TAKE_IN) out/sizes/sizes.json
speed: collections
	$(BIN)/cnaps experiment speed $(addprefix collections/,quickdraw mnist cifar10 dtd) --model cnaps-lite0 --tasks 25 \
	  --size 96 --shots 1,5,10,25 --learners cnaps,film-gradient-tuned,finetune-tuned --out out/speed
	$(TAKE_IN) out/speed/speed.json

# The paper's own model from start to finish: theta, phi in three variants, jointly and in two stages, on ILSVRC alone and on
# all data sets. BUDGET=full has the paper's numbers and needs a GPU. BUDGET=small takes some hours of a CPU: theta learns on
# small images first, the head by 40,000 tasks on features of the frozen theta, then FiLM for that head by 300 small tasks.
# BUDGET=smoke runs every step of the small one with next to nothing, in minutes: whether all of it works here.
BUDGET ?= small
SMOKE := $(filter smoke,$(BUDGET))
SMALL := $(filter small smoke,$(BUDGET))
PAPER := runs/paper/collections
PAPER_RUNS := runs/paper$(if $(SMOKE),-smoke)
PAPER_OUT := out/paper$(if $(SMOKE),-smoke)
WORDNET ?= ../shared/reference
OF_SMALL_IMAGES := --set image_size=40 --set epochs=12 --set batch=64 --set learning_rate=0.05 --set drop_every=8 --set validate_every=3
THETA_small := --set init=$(PAPER_RUNS)/theta-small-images/best --set epochs=2 --set batch=64 --set learning_rate=0.02 --set drop_every=1
THETA_full := --set validate_every=5
THETA_FEW := $(if $(SMOKE),--set 'data=["$(PAPER)/cu_birds:valid"]' --set epochs=1 --set validate_every=1)
THETA_smoke := $(THETA_small)
PHI_small := --set tasks.total=300 --set tasks.per_step=2 --set tasks.max_ways=10 --set tasks.max_context=30 \
  --set tasks.max_targets_per_class=2 --set validation.every=150 --set validation.tasks_per_set=5 \
  --set validation.max_ways=10 --set validation.max_context=50 --set optimiser.schedule.kind=cosine
FEW_TASKS := --set tasks.max_ways=5 --set tasks.max_context=20 --set tasks.total=4 --set validation.every=4 --set validation.tasks_per_set=1 \
  --set validation.max_ways=5 --set validation.max_context=20
PHI_smoke := $(PHI_small) $(FEW_TASKS)
PHI_full := --set validation.every=22000 --set validation.tasks_per_set=20
TAUGHT_small = --set init.head=$(PAPER_RUNS)/$(1)/best --set 'init.freeze=["head"]' --set optimiser.learning_rate=1e-3
TAUGHT_smoke = $(TAUGHT_small)
HEAD_small := --set memory.features=true --set tasks.total=40000 --set tasks.per_step=8 --set optimiser.schedule.kind=cosine \
  --set validation.every=8000 --set validation.tasks_per_set=20
HEAD_smoke := $(HEAD_small) $(FEW_TASKS)
HEAD_full := $(PHI_full)
TEST_small := --tasks 10 --max-ways 10 --max-context 50
TEST_smoke := --tasks 1 --max-ways 5 --max-context 20
TEST_full := --tasks 600
PAPER_RUN = $(call start,train,$(PAPER_RUNS)/$(1),configs/paper.toml,--set init.backbone=$(PAPER_RUNS)/theta $(2))
NO_FILM := --set model.adaptation=none --set model.embedding_size=0
WARM_small := 150
WARM_smoke := 2
WARM_full := 55000
PREPARE_PAPER = $(BIN)/cnaps data prepare --size 84
ONLY := --set 'data.train=["$(PAPER)/ilsvrc_2012"]' --set 'data.valid=["$(PAPER)/ilsvrc_2012"]'

paper-collections: $(READY)
	$(PREPARE_PAPER) ilsvrc_2012 $(DATASETS)/ilsvrc-val.tar $(PAPER)/ilsvrc_2012 --wordnet $(WORDNET)
	$(PREPARE_PAPER) folder $(DATASETS)/tiny-imagenet.tar $(PAPER)/tiny_imagenet --wordnet $(WORDNET) --splits published
	$(PREPARE_PAPER) omniglot $(DATASETS) $(PAPER)/omniglot
	$(PREPARE_PAPER) cu_birds $(DATASETS)/cub-birds.tar $(PAPER)/cu_birds
	$(PREPARE_PAPER) vgg_flower $(DATASETS)/vgg-flower.tar $(PAPER)/vgg_flower
	$(PREPARE_PAPER) quickdraw $(DATASETS)/quickdraw.zip $(PAPER)/quickdraw
	$(PREPARE_PAPER) mnist $(DATASETS) $(PAPER)/mnist
	$(PREPARE_PAPER) cifar10 $(DATASETS)/cifar10.tar $(PAPER)/cifar10
	$(PREPARE_PAPER) traffic_sign $(DATASETS)/traffic-sign.tar $(PAPER)/traffic_sign
	$(PREPARE_PAPER) dtd $(DATASETS)/dtd.tar $(PAPER)/dtd --splits test

paper: paper-collections
	$(if $(SMALL),$(call start,pretrain,$(PAPER_RUNS)/theta-small-images,configs/paper-theta.toml,$(OF_SMALL_IMAGES) $(THETA_FEW)))
	$(call start,pretrain,$(PAPER_RUNS)/theta,configs/paper-theta.toml,$(THETA_$(BUDGET)) $(THETA_FEW))
	$(call PAPER_RUN,none,$(NO_FILM) $(HEAD_$(BUDGET)))
	$(call PAPER_RUN,film+ar,$(PHI_$(BUDGET)) $(call TAUGHT_$(BUDGET),none))
	$(call PAPER_RUN,film,--set model.adaptation=film $(PHI_$(BUDGET)) $(call TAUGHT_$(BUDGET),none))
	$(if $(SMALL),$(call PAPER_RUN,two-stage,$(PHI_$(BUDGET))))
	$(if $(SMALL),$(call PAPER_RUN,ilsvrc-only-none,$(ONLY) $(NO_FILM) $(HEAD_$(BUDGET))))
	$(call PAPER_RUN,ilsvrc-only,$(ONLY) $(PHI_$(BUDGET)) $(call TAUGHT_$(BUDGET),ilsvrc-only-none))
	$(call PAPER_RUN,joint,--set init.backbone=random --set theta.mode=joint $(PHI_$(BUDGET)))
	$(call PAPER_RUN,warm-start,--set init.backbone=random --set theta.mode=warm-start \
	  --set theta.warm_start_tasks=$(WARM_$(BUDGET)) $(PHI_$(BUDGET)))
	$(BIN)/cnaps evaluate $(addprefix $(PAPER)/,$(filter-out tiny_imagenet,$(TESTED))) --model $(PAPER_RUNS)/film+ar/best \
	  --unseen $(UNSEEN) --published $(TEST_$(BUDGET)) --name paper --title "The paper's own model" --out $(PAPER_OUT) \
	  --learners cnaps=$(PAPER_RUNS)/film+ar/best,cnaps-no-ar=$(PAPER_RUNS)/film/best,cnaps-no-film=$(PAPER_RUNS)/none/best,cnaps@ilsvrc-only=$(PAPER_RUNS)/ilsvrc-only/best,$(if $(SMALL),cnaps@two-stage=$(PAPER_RUNS)/two-stage/best$(comma))cnaps@joint=$(PAPER_RUNS)/joint/best,cnaps@warm-start=$(PAPER_RUNS)/warm-start/best,logreg,protonet
	$(BIN)/python tools/paper_runs.py $(PAPER_OUT)/paper.json $(addprefix $(PAPER_RUNS)/,$(if $(SMALL),theta-small-images) theta none \
	  film+ar film $(if $(SMALL),two-stage ilsvrc-only-none) ilsvrc-only joint warm-start)
	$(if $(SMOKE),,$(TAKE_IN) $(PAPER_OUT)/paper.json)

# In this order, so that what others need comes first; MINUTES ends it in time (a training or an evaluation that was cut off
# goes on the next time).
REVIEWER := grid comparison ladder joint adapters descent comparison-steps active design-space full-size shots speed continual continual-default active-default paper
MINUTES ?=
reviewer: $(READY)
	$(BIN)/python tools/reviewer.py run out/reviewer $(REVIEWER) $(if $(MINUTES),--minutes $(MINUTES))
reviewer-status: $(READY)
	@$(BIN)/python tools/reviewer.py status out/reviewer $(REVIEWER)

# docs/results.md and its pictures, from the stored numbers in results/
results: $(READY)
	$(BIN)/python tools/results.py

clean:
	rm -rf web/node_modules web/public/model.safetensors web/public/licences.txt $(VENV) $(LIGHT) $(OLDEST) build dist *.egg-info src/*.egg-info .coverage .pytest_cache .mypy_cache .ruff_cache

# `make help` lists the targets. Each creates what it needs: Python >= 3.11 and pip are enough.

PYTHON ?= python3
VENV   ?= .venv
ENERGON_VENV ?= .venv-energon
UV_VENV ?= .venv-uv
DATA   := data
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist worksteal
MODEL := qwen2.5-vl

# Real data that pip can install; only their files are read, so they go without dependencies into a
# folder of their own, where nothing tries to import them.
CORPUS_PACKAGES := dashscope==2.0.2 easy-vqa==1.0 chitchat-dataset==0.9.0 \
                   scikit-image==0.26.0 scikit-learn==1.9.1

# Packers to compare with: functions are cut out of their files, nothing of them is imported.
PEERS := nemo-automodel==0.7.0 binpacking==2.0.1
# Its wheel has a folder `tests` of its own, so it is for the one bench that compares with it alone.
VERL := verl==0.9.1

# Equal plans are equal bytes on one release of pyarrow: this one, for tests that compare bytes.
PYARROW := pyarrow==26.0.*

# What the exports are tested with.
ENERGON := 7.4.1

# The release of transformers that the tests run with. A newer one is taken when they pass with it:
# 5.24.0 does not run Llama 4.
LATEST := 5.23.0

# The release of transformers between the lowest, which `make test-lowest` runs, and this environment's.
# It goes before $(VENV) on Python's path, with what it cannot use newer releases of.
OVERLAYS := .overlays
BETWEEN := 5.6.2
BESIDE_4 := huggingface-hub==0.36.2 tokenizers==0.22.2 datasets==4.4.1 httpx==0.28.1 httpcore==1.0.9
BESIDE_BETWEEN := huggingface-hub==1.33.0 tokenizers==0.22.2 httpx==0.28.1 httpcore==1.0.9

# The floors of pyproject.toml, in a folder of the same kind, with a pandas that goes with that NumPy and
# the `datasets` that goes with that huggingface-hub: the Trainer imports it.
BESIDE_LOWEST := pandas==2.2.3 pytz==2025.2 httpx==0.28.1 httpcore==1.0.9 datasets==4.4.1
LOWEST_TESTS := $(addprefix tests/,$(addsuffix .py,index/test_index cli/test_cli \
                  estimate/test_estimate inspect/test_verify \
                  format/test_schema plan/test_plan torch/sample/test_padding \
                  torch/test_sampler torch/test_dataset torch/test_collate \
                  records/media/test_media records/media/test_video export/test_wds \
                  inspect/test_sql_views))

# Trainers that the tests of the adapters run, each in a folder of the same kind with what it imports
# and $(VENV) has not: triton is for torchtitan alone, since NeMo's kernels ask for a release of it.
TRAINERS := huggingface lightning axolotl nemo torchtitan verl megatron_bridge
WITH_lightning := lightning==2.6.6 lightning-utilities==0.15.3 torchmetrics==1.9.0
WITH_axolotl := axolotl==0.19.0 transformers==5.16.1 huggingface-hub==1.33.0 tokenizers==0.23.1 \
                httpx==0.28.1 httpcore==1.0.9 trl==1.9.0 datasets==4.8.4 accelerate==1.13.0 addict==2.4.0 \
                colorama==0.4.6 evaluate==0.4.6 posthog==7.91.1 termcolor==3.3.0 distro==1.9.0 fsspec==2025.12.0 \
                triton==3.9.0 numba==0.68.1 llvmlite==0.50.0 wandb==0.31.0
WITH_nemo := nemo-automodel==0.7.0
WITH_torchtitan := torchtitan==0.3.0 triton==3.9.0
WITH_verl := $(VERL) transformers==4.57.6 $(BESIDE_4)
WITH_megatron_bridge := megatron-bridge==0.3.1 megatron-core==0.16.1
TRAINERS_NEED := absl-py==2.5.1 annotated-doc==0.0.7 antlr4-python3-runtime==4.9.3 cachetools==8.0.2 \
                 cloudpickle==3.1.3 codetiming==1.4.0 docstring-parser==0.18.0 einops==0.8.2 \
                 fastapi==0.165.0 h11==0.16.0 hydra-core==1.3.8 markdown==3.11.3 msgpack==1.2.4 \
                 omegaconf==2.4.0 peft==0.21.2 protobuf==7.36.2 pybase64==1.5.1 pyvers==0.2.3 \
                 shtab==1.13.0 spmd-types==0.3.1 starlette==1.10.0 tensorboard==2.21.0 \
                 tensordict==0.15.3 torchao==0.18.0 typeguard==4.6.1 tyro==1.0.17 uvicorn==0.54.0 \
                 werkzeug==3.1.9

.DEFAULT_GOAL := help
.PHONY: help plan test test-slow test-energon test-lowest test-transformers test-trainers check lint bench train models docs trainers wheels clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 19

plan: $(DATA)/processors/.done $(DATA)/corpus/.done  ## build the corpus, count its tokens, plan packs of 8,192 tokens
	@$(BIN)/packidx pack examples/recipe.yaml

test: $(VENV)/.dev  ## run the tests but the slow ones (installs torch and transformers)
	@$(PYTEST) -m "not slow"

test-slow: $(VENV)/.dev  ## random kills, fuzzers, Ray, training on several ranks, limits of memory
	@$(PYTEST) -m slow

test-energon: $(ENERGON_VENV)/.ready $(VENV)/.base  ## load both exports with Megatron-Energon, in an environment of its own
	@OMP_NUM_THREADS=1 PACKIDX=$(abspath $(BIN)/packidx) $(ENERGON_VENV)/bin/python -m pytest -q tests/energon

test-lowest: $(OVERLAYS)/lowest/.ready  ## the lowest releases that pyproject.toml admits
	@OMP_NUM_THREADS=1 PYTHONPATH=$(abspath $(OVERLAYS)/lowest) $(BIN)/python -m pytest -q tests/versions/test_lowest_releases.py
	@OMP_NUM_THREADS=1 PYTHONPATH=$(abspath $(OVERLAYS)/lowest) $(BIN)/python -m pytest -q -n auto -m "not slow" $(LOWEST_TESTS)
	@OMP_NUM_THREADS=1 PYTHONPATH=$(abspath $(OVERLAYS)/lowest) \
	    PACKIDX_TRANSFORMERS=$$($(BIN)/python tests/versions/floors.py pyproject.toml | sed -n 's/^transformers==//p') \
	    $(BIN)/python -m pytest -q -n auto -k 'models or test_ids' tests/versions/test_transformers*.py
	@OMP_NUM_THREADS=1 PACKIDX_OVERLAYS=$(abspath $(OVERLAYS)) $(BIN)/python -m pytest -q tests/versions/test_golden_ids.py

# Made by the tests that need them, and kept.
.SECONDARY: $(TRAINERS:%=$(OVERLAYS)/trainer-%/.ready)

test-transformers: $(OVERLAYS)/transformers/.ready  ## tiny models and processors under an older release of transformers
	@OMP_NUM_THREADS=1 PYTHONPATH=$(abspath $(OVERLAYS)/transformers) PACKIDX_TRANSFORMERS=$(BETWEEN) \
	    $(BIN)/python -m pytest -q -n auto tests/versions/test_transformers*.py

test-trainers: $(TRAINERS:%=test-trainers-%)  ## the adapters of trainers with the trainers' own packages

test-trainers-%: $(OVERLAYS)/trainer-%/.ready
	@echo "trainer $*"
	@OMP_NUM_THREADS=1 PYTHONPATH=$(abspath $(OVERLAYS)/trainer-$*) $(BIN)/python -m pytest -q -W ignore tests/trainers/test_$*.py

lint: $(VENV)/.dev
	$(BIN)/ruff check packidx cli tests examples bench tools
	$(BIN)/ruff format --check packidx cli tests examples bench tools
	$(BIN)/mypy
	$(BIN)/mypy --python-version 3.14
	$(BIN)/lint-imports

check: lint test test-slow  ## what CI runs: ruff, mypy, import-linter, then the tests

bench: $(VENV)/.dev plan $(OVERLAYS)/verl/.ready  ## measure speed as ratios, side by side in one run
	@$(BIN)/python bench/bench.py --large
	@$(BIN)/python bench/bench_reader.py
	@$(BIN)/python bench/bench_streams.py
	@PYTHONPATH=$(abspath $(OVERLAYS)/verl) $(BIN)/python bench/bench_micro_batches.py
	@$(BIN)/python bench/bench_packs.py $(DATA)
	@$(BIN)/python bench/bench_pixels.py $(DATA)
	@$(BIN)/python bench/bench_log.py $(DATA)
	@$(BIN)/python bench/bench_estimate.py $(DATA)
	@$(BIN)/python bench/bench_again.py $(DATA)
	@$(BIN)/python bench/bench_probes.py $(DATA)
	@$(BIN)/python bench/bench_remote.py

train: $(VENV)/.dev plan  ## train a tiny Qwen2.5-VL on the planned packs, on the CPU
	@$(BIN)/python examples/train_tiny.py --index $(DATA)/index --processor $(DATA)/processors/$(MODEL)

models: $(VENV)/.dev  ## count with a processor of every image-text model of transformers; write docs/models.md
	@OMP_NUM_THREADS=1 $(BIN)/python tools/models.py docs/models.md

docs: $(VENV)/.dev  ## build the documentation as a site, build/site; a link that leads nowhere is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

trainers: $(UV_VENV)/.ready  ## ask the package index beside which trainers packidx installs; write docs/trainers.md
	@$(UV_VENV)/bin/python tools/trainers.py docs/trainers.md

wheels: $(UV_VENV)/.ready  ## ask it for which Pythons there are wheels of what packidx needs; write docs/pythons.md
	@$(UV_VENV)/bin/python tools/wheels.py docs/pythons.md

clean:  ## remove the environment and all generated data
	rm -rf $(VENV) $(ENERGON_VENV) $(UV_VENV) $(OVERLAYS) $(DATA) build dist *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache

$(VENV)/.base: pyproject.toml setup.py Makefile
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing packidx and the corpus packages into $(VENV) (no torch) ..."
	@$(PIP) "$(PYARROW)" transformers==$(LATEST) -e ".[fast]"
	@$(PIP) --no-deps --upgrade --target $(VENV)/corpus-packages $(CORPUS_PACKAGES)
	@touch $@

# torch and torchvision are pinned as a pair; an index without CUDA builds may be set for pip.
$(VENV)/.dev: $(VENV)/.base
	@echo "installing torch, transformers and the test tools into $(VENV) ..."
	@$(PIP) torch==2.13.0
	@$(PIP) --no-deps torchvision==0.28.0
	@$(PIP) "$(PYARROW)" transformers==$(LATEST) -e ".[dev,train,video,fast,lmdb,ray,s3]"
	@$(PIP) --no-deps $(PEERS)
	@touch $@

# The resolver that `make trainers` and `make wheels` ask; they need the package index.
$(UV_VENV)/.ready: Makefile
	@test -x $(UV_VENV)/bin/python || $(PYTHON) -m venv $(UV_VENV)
	@$(UV_VENV)/bin/python -m pip install --quiet --disable-pip-version-check uv==0.13.9 packaging==26.0
	@touch $@

# Energon asks for versions of its own, so nothing of packidx is in there: the tests run its command.
$(ENERGON_VENV)/.ready: Makefile
	@test -x $(ENERGON_VENV)/bin/python || $(PYTHON) -m venv $(ENERGON_VENV)
	@echo "installing torch and Megatron-Energon into $(ENERGON_VENV) ..."
	@$(ENERGON_VENV)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	@$(ENERGON_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
	    megatron-energon==$(ENERGON) multi-storage-client==1.3.1 pytest==9.2.0
	@touch $@

$(OVERLAYS)/transformers/.ready: Makefile $(VENV)/.dev
	@echo "installing transformers $(BETWEEN) into $(@D) ..."
	@rm -rf $(@D)
	@$(PIP) --no-deps --no-compile --target $(@D) transformers==$(BETWEEN) $(BESIDE_BETWEEN)
	@touch $@

$(OVERLAYS)/trainer-%/.ready: Makefile $(VENV)/.dev
	@echo "installing the trainer $* into $(@D) ..."
	@rm -rf $(@D)
	@$(PIP) --no-deps --no-compile --target $(@D) $(WITH_$*) $(TRAINERS_NEED)
	@touch $@

$(OVERLAYS)/verl/.ready: Makefile $(VENV)/.dev
	@rm -rf $(@D)
	@$(PIP) --no-deps --no-compile --target $(@D) $(VERL)
	@touch $@

$(OVERLAYS)/lowest/.ready: pyproject.toml tests/versions/floors.py Makefile $(VENV)/.dev
	@echo "installing the lowest releases into $(@D) ..."
	@rm -rf $(@D)
	@$(PIP) --no-deps --no-compile --target $(@D) $(BESIDE_LOWEST) \
	    $$($(BIN)/python tests/versions/floors.py pyproject.toml)
	@touch $@

$(DATA)/processors/.done: tools/make_processors.py | $(VENV)/.base
	@$(BIN)/python tools/make_processors.py $(DATA)/processors
	@touch $@

$(DATA)/corpus/.done: tools/make_corpus.py | $(VENV)/.base
	@$(BIN)/python tools/make_corpus.py $(DATA)/corpus
	@touch $@

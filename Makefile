# Ebbtide. `make help` lists the targets.

GO      ?= go
# Nomad loads only plugins with a semantic version, so the commit is separate.
VERSION ?= $(patsubst v%,%,$(shell git describe --tags --exact-match --match 'v[0-9]*.[0-9]*.[0-9]*' 2>/dev/null))
COMMIT  ?= $(shell git describe --always --dirty --exclude '*' 2>/dev/null)
LDFLAGS := -s -w -X github.com/ebbtide/ebbtide/internal/version.Commit=$(COMMIT)
ifneq ($(VERSION),)
LDFLAGS += -X github.com/ebbtide/ebbtide/internal/version.Version=$(VERSION)
endif
BIN     := bin
BUNDLE  := $(BIN)/gpu-bundle
# `make release` builds for each of these architectures.
DIST    := dist
ARCHES  := amd64 arm64
# The time of all files in a release.
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null)
export SOURCE_DATE_EPOCH
CACHE   := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/ebbtide
NOMAD_VERSION := $(shell awk '$$1 == "github.com/hashicorp/nomad" { print $$2 }' go.mod)
export EBBTIDE_NOMAD ?= $(CACHE)/nomad-$(NOMAD_VERSION:v%=%)

# A failing test in a pipe must fail the target.
SHELL       := /bin/bash
.SHELLFLAGS := -o pipefail -c

.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: preload product ## build the plugins, the command, the trainer and the preload library into bin/
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o $(BIN)/trainer ./e2e/trainer

product:
	@[ -e $(BIN)/ebbtide-driver ] || echo "build: 2 to 4 minutes on two cores, the first time"
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/ebbtide-driver ./cmd/ebbtide-driver
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/ebbtide-gpu ./cmd/ebbtide-gpu
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/ebbtide ./cmd/ebbtide

preload: ## build the library that shares a GPU's memory (C, gcc)
	$(MAKE) -s -C device/preload/src OUT=$(CURDIR)/$(BIN)

fakes: ## build the CUDA driver, NVML and workload that tests use where there is no GPU
	$(MAKE) -s -C device/fake/src OUT=$(CURDIR)/$(BIN)/fakes

nomad: $(EBBTIDE_NOMAD) ## build the real Nomad agent with its web UI (3 to 6 minutes, once)
	@:

$(EBBTIDE_NOMAD): | e2e/nomad/go.mod
	@echo "nomad: building Nomad $(NOMAD_VERSION) with its web UI, once: 3 to 6 minutes on two cores"
	@mkdir -p $(@D)
	@total=$$($(GO) list -C e2e/nomad -tags ui -deps github.com/hashicorp/nomad 2>/dev/null | wc -l); \
	$(GO) build -C e2e/nomad -v -trimpath -tags ui -ldflags '-s -w' -o $@.tmp github.com/hashicorp/nomad 2>&1 | tools/progress nomad $$total packages '^[a-z0-9.]+(/[^ :]*)?$$'
	mv $@.tmp $@

docs: ## regenerate the tables of docs/reference.md
	$(GO) test ./internal/reference -run TestReference -update

demo: ## ten training jobs on a real Nomad, with and without Ebbtide's policy, and who lost (6 minutes, root)
	@tools/setup demo
	@$(MAKE) --no-print-directory build nomad
	$(GO) run ./e2e/demo

# The seed is chosen: a long job runs, and short ones come. Others show less, see docs/evaluation.md.
demo-queue: ## eight jobs with room for one, the longest first, on a real Nomad, as Nomad starts them and in the queue (5 minutes, root)
	@tools/setup demo
	@$(MAKE) --no-print-directory build nomad
	$(GO) run ./e2e/queue -seed 39

test: ## everything that CI runs; at the end what failed, and what was skipped and why (an hour, root; NOINSTALL=1: installs no packages)
	@tools/test

$(BIN)/gotestsum: tools/go.mod
	GOFLAGS= $(GO) build -C tools -o ../$@ gotest.tools/gotestsum

unit: $(BIN)/gotestsum ## unit tests with the race detector, fuzz seeds, and the coverage of policies and estimators
	@echo "unit: 8 minutes on two cores, 15 the first time"
	@mkdir -p out
	@$(BIN)/gotestsum --format standard-quiet --hide-summary skipped --jsonfile out/unit.json -- -race -timeout 30m ./... 2>&1 | \
		tools/progress unit "$$($(GO) list ./... | wc -l)" packages '^(ok|\?) '
	@$(GO) test -cover ./driver/policy/... ./driver/growth ./device/fairshare | awk '{ print } \
		match($$0, /coverage: [0-9.]+%/) { if (substr($$0, RSTART + 10) + 0 < 95) bad = bad " " $$2 } \
		END { if (bad) { print "coverage below 95 %:" bad; exit 1 } }'

# Only failures are printed; agents' logs are in out/e2e.log.
e2e: build nomad $(BIN)/gotestsum ## the end-to-end suites on a real Nomad, with both engines
	@echo "e2e: 20 minutes"
	@mkdir -p out
	@$(BIN)/gotestsum --format testname --hide-summary all --jsonfile out/e2e.json -- -tags e2e -count 1 -timeout 60m ./e2e 2>&1 | tee out/e2e.log | \
		grep --line-buffered -E '^(PASS|SKIP) e2e\.[^/]*$$|^ *--- FAIL|^DONE|^ *[a-z_]+_test\.go:[0-9]+: |^ *↪|^(panic|FAIL|ok|#)|^[^ ]+\.go:[0-9]+|^[[:space:]]+Test[^ ]* \(' | \
		tools/progress e2e $$(cat e2e/*_test.go | grep -c '^func Test.*testing\.T)') tests '^(PASS|SKIP) '

chaos: build nomad ## five minutes of moves on a real Nomad that is broken at random (CHAOS='-seed 2 -minutes 60')
	@echo "chaos: 6 minutes"
	$(GO) run ./e2e/chaos $(CHAOS)

test-cgroup2: ## the limits' kernel tests on cgroup v2, in a virtual machine
	$(GO) run ./e2e/cgroup2

# The test programs are next to the files they need. The fake card's libraries are in a separate
# directory, so its libcuda.so.1 does not shadow the driver's.
gpu-bundle: ## the tests of GPU sharing for a machine with a card, without Go and gcc, into bin/gpu-bundle/
	rm -rf $(BUNDLE)
	$(MAKE) -s -C device/fake/src OUT=$(abspath $(BUNDLE))/fake CFLAGS='-O2 -s'
	$(MAKE) -s -C device/preload/src OUT=$(abspath $(BUNDLE))/fake CFLAGS='-O2 -s'
	cp $(addprefix $(BUNDLE)/fake/,workload workload-linked libebbtide-cuda.so) device/real/bundle/run.sh $(BUNDLE)
	cp -r device/real/testdata $(BUNDLE)
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BUNDLE)/ebbtide-gpu-tests ./device/real/bundle
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BUNDLE)/ebbtide-gpu ./cmd/ebbtide-gpu
	$(GO) test -c -trimpath -ldflags '-s -w' -o $(BUNDLE)/real.test ./device/real
	$(GO) test -c -trimpath -ldflags '-s -w' -o $(BUNDLE)/preload.test ./device/preload
	@size=$$(du -sm $(BUNDLE) | cut -f 1); if [ $$size -ge 64 ]; then echo "$(BUNDLE) has $$size MiB; the limit is 64"; exit 1; fi

# From another directory and with an empty PATH, as on a bare machine.
test-bundle: gpu-bundle ## the bundle on the fake card, with nothing but what is in it
	@mkdir -p out
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && cp -r $(BUNDLE) "$$dir/bundle" && env -i PATH=/nonexistent "$$dir/bundle/run.sh" -fake -out $(CURDIR)/out/gpu-bundle \
		-run 'Plugin|Ledger|Addresses|Sizes|Resolve|Restore|PyTorch|Hooks'

test-gpu: gpu-bundle ## run that here, on a real NVIDIA card (8 minutes at most; EBBTIDE_TEST_GPU=fake: on the fake one)
	$(BUNDLE)/run.sh

# Debian's names of the compilers, which work on any machine. The version in the binaries is set
# here: Go's own (-buildvcs) depends on untracked files.
CC_amd64 := x86_64-linux-gnu-gcc
CC_arm64 := aarch64-linux-gnu-gcc

release: $(BIN)/nfpm ## archives, packages, an image, bills of materials, notes and checksums of this version, into dist/: the same bytes for a commit (ARCHES=amd64: for one architecture)
	@ARCHES='$(ARCHES)' tools/setup release
	$(foreach arch,$(ARCHES),$(MAKE) --no-print-directory release-$(arch) &&) true
	$(GO) run -buildvcs=false -ldflags '$(LDFLAGS)' ./packaging/release -nfpm $(BIN)/nfpm -out $(DIST) -arch $(subst $(eval) ,$(comma),$(strip $(ARCHES)))

comma := ,

release-%:
	GOARCH=$* CGO_ENABLED=1 CC=$(CC_$*) GOFLAGS='$(GOFLAGS) -buildvcs=false' $(MAKE) -s product BIN=out/release/$*
	$(MAKE) -s -B preload BIN=out/release/$* CC=$(CC_$*) CFLAGS='-O2 -s -ffile-prefix-map=$(CURDIR)=.'

# In a clone of the commit, under another path.
release-again: release ## the release a second time elsewhere: are the bytes the same?
	@git diff --quiet HEAD || { echo "there are changes that are not committed: a second release would lack them"; exit 1; }
	rm -rf out/again
	git clone --quiet --local . out/again/ebbtide
	$(MAKE) --no-print-directory -C out/again/ebbtide release VERSION='$(VERSION)'
	diff $(DIST)/SHA256SUMS out/again/ebbtide/dist/SHA256SUMS
	rm -rf out/again

# Builds two versions of the package for this machine: one is upgraded to the other.
test-release: build nomad ## the Debian package is installed, set up, upgraded under a running job and removed, on a copy of this Debian (root)
	for v in 1 2; do $(MAKE) --no-print-directory release VERSION=0.0.$$v-test ARCHES=$(shell $(GO) env GOARCH) DIST=out/test-release/$$v || exit 1; done
	EBBTIDE_DEB_BEFORE=$$(echo $(CURDIR)/out/test-release/1/*.deb) EBBTIDE_DEB=$$(echo $(CURDIR)/out/test-release/2/*.deb) \
		$(GO) test -tags e2e -count 1 -timeout 9m -v -run 'TestPackage$$' ./e2e

$(BIN)/nfpm: tools/go.mod
	GOFLAGS= $(GO) build -C tools -o ../$@ github.com/goreleaser/nfpm/v2/cmd/nfpm

screenshots: ## the pictures of the documentation that show the page (chromium, npm)
	npm --prefix e2e/ui ci --silent --no-audit --no-fund --ignore-scripts
	EBBTIDE_CHROMIUM=$$(command -v chromium) $(GO) run ./e2e/ui/pictures node e2e/ui/pictures/shoot.js docs/ui.png

lint: $(BIN)/misspell ## formatting, go vet, staticcheck; spelling, phrases, links, lengths and commands of the pages
	@echo "lint: 2 minutes on two cores, 5 the first time"
	@out=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$out" ]; then echo "not formatted:"; echo "$$out"; exit 1; fi
	$(GO) vet ./...
	$(GO) vet -tags e2e ./e2e/...
	GOFLAGS= $(GO) build -C tools -o ../$(BIN)/staticcheck honnef.co/go/tools/cmd/staticcheck
	$(BIN)/staticcheck -tags e2e ./...
	$(BIN)/misspell -error -i wrok $$(git ls-files '*.go' '*.c' '*.h' '*.hcl' '*.svg' '*.js' '*.sh')
	$(BIN)/misspell -error -locale UK -i minimize,color,initialize $$(git ls-files '*.md')
	$(GO) test ./internal/pages

$(BIN)/misspell: tools/go.mod
	GOFLAGS= $(GO) build -C tools -o ../$@ github.com/golangci/misspell/cmd/misspell

# BENCH selects the measurements, e.g. BENCH='-what train -jobs 10'; see -h.
bench: build nomad ## training jobs and services on a real Nomad, five seeds, into docs/results (hours, root; resumes where it was interrupted)
	$(GO) run ./e2e/bench -out docs/results $(BENCH)

report: ## make docs/evaluation.md, docs/gains.svg and the README's table from docs/results
	$(GO) run ./e2e/report

bench-cost: build nomad ## what policies, log reading and the plugin cost (20 minutes, root)
	$(GO) test -run '^$$' -bench . -benchmem ./driver/... ./device/...
	$(GO) run ./e2e/overhead

clean: ## remove what was built here (the cached Nomad agent stays)
	rm -rf $(BIN) $(DIST) out e2e/out

.PHONY: docs screenshots help build product preload fakes nomad demo demo-queue test unit e2e chaos test-cgroup2 gpu-bundle test-bundle test-gpu release release-again test-release lint bench report bench-cost clean

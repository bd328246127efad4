# `make help` lists what this file can do, from the comments behind ##.

GO      ?= go
PKG     ?= ./...# packages to test or measure
TIMEOUT ?= 15m# of the tests of one package
SIM_SEEDS ?= 2000# runs of `make sim`; FIRST=n for the first, else it is drawn and printed
FIRST   ?= 0
CHAOS_LAYOUT ?= scalable# of `make chaos`
CHAOS_ETCD ?= own# of `make chaos` and `make chaos-soak`: own, or inside for the members that nodes run
CHAOS_FOR ?= 60s# of `make chaos`: 105s has room for every fault of the short list
SOAK    ?= 8h# of `make chaos-soak`
WORKER_IDS ?= 10000000# of `make chaos-workers`
SEEDS   ?= 60# random lease schedules with -race, every night
RACED   ?= TestRealNodes|TestStart|TestDuplicate|TestReportedRevision|TestTwoDisagree# agreement tests run with -race too
RACED_MODULE ?= none# another module whose tests run with -race, as chaos/real does every night: what it calls does in the root module
UNRACED ?= TestMoreScripts|TestFiveMinutes|TestCallIt|TestBreakIt|TestGuide|TestRole|TestEtcd# tests of processes that are built without -race, or of hundreds of short ones
E2E_IDS ?= 10000000# of the end-to-end run by itself
MUTATED ?= gen lease lease/repair lease/keeper lease/catalog lease/protocol clock agreement node worker worker/broker quota feed adopt operate daemon server/resp server/respserver server/console agent unixsocket wire ./client ./embed ./worker# packages of `make mutation` without PKG, in internal unless they begin with ./
AT_ONCE ?= 2# steps of `make check` beside each other
FENCE_TIER ?= check# of `make fence-test`: check or nightly
AGENT_TIER ?= check# of `make agent-test`: check or nightly
LIMIT   ?= 0# mutants of each package, drawn by MUTATION_SEED; 0: all
MUTATION_SEED ?= 1
COUNT   ?= 1# runs of each Go benchmark
BENCH   ?= .# Go benchmarks to run, a regular expression
BENCH_ROUNDS ?= 5# rounds of `make bench`
BENCH_SLICE ?= 1s# how long each service is measured in a round
FUZZTIME ?= 10s# for each fuzz target

IMAGE   ?= allocator# name of the image; IMAGE_ARCH=arm64 for another machine's
IMAGE_ARCH ?= $(shell $(GO) env GOARCH)

TRIM ?= -trimpath# empty: `make build` takes from Go's cache what tests have compiled

BIN   := bin
TOOLS := $(CURDIR)/$(BIN)/tools
WAITING ?= 4# packages tested at once where most of the time is spent waiting
STEPS   ?= $(BIN)/steps# directory of what the steps print and find
SKIPPED ?= $(STEPS)/skipped# the reason why a step did not run
GOTEST := $(CURDIR)/$(BIN)/gotest
tests-of = $(GOTEST) -o $(CURDIR)/$(STEPS)/$(1).tests# go test, and what it did not run
race-of = CGO_ENABLED=1 $(tests-of) -race# the detector is the only thing that needs a C compiler

# run-steps makes each of $(1), $(2) beside each other. The output of a step is in bin, in a
# directory with the name of the target, and is printed if it fails.
define run-steps
@rm -rf $(BIN)/$@ && mkdir -p $(BIN)/$@; began=$$(date +%s); \
$(MAKE) --no-print-directory -k -j $(2) STEPS=$(BIN)/$@ $(addprefix step-,$(1)) && result="all passed" || result=failed; \
echo; echo "make $@: $$result in $$(( $$(date +%s) - began )) s"; [ "$$result" = "all passed" ]
endef

.DEFAULT_GOAL := help
.PHONY: help check abuse-test agent-test bench-agent fence-test build image image-twice compose-test test race lint model sim scale e2e chaos chaos-soak chaos-workers chaos-bugs mutation bench bench-redis bench-programs bench-peers bench-go gen fuzz clean tools \
        check-format check-vet check-static check-commits check-tests check-modules check-site check-openapi check-chaos check-abuse check-model check-generated

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build bin/allocator as it is released: static
	@echo "building $(BIN)/allocator; the first build downloads and compiles all modules: a few minutes without output"
	CGO_ENABLED=0 $(GO) build $(TRIM) -o $(BIN)/allocator ./cmd/allocator

# No Docker is needed: deploy/image packs what Go builds, with the flags of `make
# build`. The commit is stamped in, whatever GOFLAGS says, but not into etcd. Its image has
# the allocator too, which starts members.
IMAGES ?= $(BIN)/image
CROSS  := CGO_ENABLED=0 GOOS=linux GOARCH=$(IMAGE_ARCH)
STAMP  := -buildvcs=$(if $(wildcard .git),true,false)
# A program with its SBOM and licenses in the directory $(1), for the system $(2).
define program
@mkdir -p $(1) && cp LICENSE $(1)
CGO_ENABLED=0 GOOS=$(2) GOARCH=$(IMAGE_ARCH) $(GO) build -trimpath $(STAMP) $(if $(VERSION),-ldflags '-X main.version=v$(VERSION)') -o $(1)/allocator ./cmd/allocator
@$(BIN)/pack sbom $(if $(VERSION),--version v$(VERSION)) $(1)/allocator >$(1)/allocator.spdx.json
@$(BIN)/pack notice $(1)/allocator >$(1)/NOTICE
@{ printf '\nuPlot 1.6.32, in the pages for operators\n\n'; cat internal/server/console/static/uplot.LICENSE; echo; } >>$(1)/NOTICE
endef

.PHONY: pack programs
pack:
	@$(GO) -C deploy build -o $(CURDIR)/$(BIN)/pack ./image

programs: pack # the programs of the system IMAGE_OS, as a release has them, in IMAGES
	$(call program,$(IMAGES)/allocator,$(IMAGE_OS))

image: IMAGE_OS = linux
image: programs ## container images, their SBOMs and licenses, reproducible, without Docker: bin/image/*.tar for `docker load`
	@mkdir -p $(addprefix $(IMAGES)/,etcd/data allocator/data dev) && cp LICENSE $(IMAGES)/etcd && cp -R $(IMAGES)/allocator/* $(IMAGES)/dev
	cd chaos/real && $(CROSS) $(GO) build -trimpath -buildvcs=false -o ../../$(IMAGES)/etcd/etcd ./etcd && $(CROSS) $(GO) build -trimpath -buildvcs=false -o ../../$(IMAGES)/etcd/etcdctl go.etcd.io/etcd/etcdctl/v3
	@set -e; for b in etcd etcdctl; do $(BIN)/pack sbom $(IMAGES)/etcd/$$b >$(IMAGES)/etcd/$$b.spdx.json; done
	@cp $(addprefix $(IMAGES)/allocator/,allocator allocator.spdx.json) $(IMAGES)/etcd
	@$(BIN)/pack notice $(addprefix $(IMAGES)/etcd/,etcd etcdctl allocator) >$(IMAGES)/etcd/NOTICE
	@{ printf '\nuPlot 1.6.32, in the pages for operators\n\n'; cat internal/server/console/static/uplot.LICENSE; echo; } >>$(IMAGES)/etcd/NOTICE
	@$(BIN)/pack pack --file deploy/Dockerfile --context $(IMAGES)/allocator --binary $(IMAGES)/allocator/allocator $(if $(VERSION),--version $(VERSION)) --tag $(IMAGE):latest -o $(IMAGES)/allocator.tar
	@$(BIN)/pack pack --file deploy/dev/Dockerfile --context $(IMAGES)/dev --binary $(IMAGES)/dev/allocator $(if $(VERSION),--version $(VERSION)) --tag $(IMAGE):dev -o $(IMAGES)/dev.tar
	@$(BIN)/pack pack --file deploy/etcd/Dockerfile --context $(IMAGES)/etcd --binary $(IMAGES)/etcd/etcd \
		--version $$(cd chaos/real && $(GO) list -m -f '{{.Version}}' go.etcd.io/etcd/server/v3) --tag $(IMAGE)-etcd:latest -o $(IMAGES)/etcd.tar

# A snapshot has the version of the chart, which is that of the next release; at a tag the
# version is the tag's.
RELEASE  := $(BIN)/release
WORK     := $(BIN)/release-work
RELEASED := $(shell git describe --exact-match --tags --match 'v*' 2>/dev/null | sed 's/^v//')
SNAPSHOT = $(or $(VERSION),$(RELEASED),$(shell sed -n 's/^version: //p' deploy/helm/allocator/Chart.yaml)-snapshot)
PACK_RELEASE := $(BIN)/pack-release
.PHONY: release-snapshot release-images release-test release-push evidence pack-release
pack-release:
	@$(GO) -C deploy build -o $(CURDIR)/$(PACK_RELEASE) ./release

release-snapshot: pack-release ## all files of a release, reproducible, in bin/release: archives, packages, images, chart, site; 10 minutes; VERSION=0.1.0
	@rm -rf $(RELEASE) $(WORK) && mkdir -p $(WORK)
	@set -e; for arch in amd64 arm64; do $(MAKE) --no-print-directory image IMAGE=allocator VERSION=$(SNAPSHOT) IMAGE_ARCH=$$arch IMAGES=$(WORK)/linux-$$arch; done
	@$(MAKE) --no-print-directory programs VERSION=$(SNAPSHOT) IMAGE_OS=darwin IMAGE_ARCH=arm64 IMAGES=$(WORK)/darwin-arm64
	@if ! command -v npm >/dev/null; then echo "no site: npm is not installed"; \
	elif ! $(MAKE) --no-print-directory $(SITE)/installed; then echo "no site: npm cannot get its packages"; \
	else $(MAKE) --no-print-directory docs && cp -R $(BIN)/docs $(WORK)/site; fi
	@$(PACK_RELEASE) pack --version $(SNAPSHOT) --work $(WORK) --out $(RELEASE) $(if $(wildcard .git),--time $$(git show -s --format=%cI HEAD))
	@echo "$(RELEASE) has the files of version $(SNAPSHOT)"

release-test: ## install, start, upgrade, remove and purge the packages of bin/release, run what is for arm64, push and pull images and chart; 3 minutes
	$(GO) -C deploy test -count 1 -timeout 30m -v ./release -dir $(CURDIR)/$(RELEASE)

# The suites run on a commit without changes, and what they leave is kept under its name: what
# is stated of a commit was seen of it. EVIDENCE_BUGS and a longer EVIDENCE_FOR show more.
EVIDENCE_FOR  ?= 60s# how long chaos and the simulation run in `make evidence`
EVIDENCE_BUGS ?= ^ceiling-is|^guard-off# planted bugs of `make evidence`, a regular expression; . for all
COMMIT := $(shell git rev-parse HEAD 2>/dev/null)
SEEN   := $(BIN)/evidence/$(COMMIT)
evidence: pack-release ## what tests show of the images of bin/release, as in-toto statements on their digest: 9 minutes, EVIDENCE_FOR=1h
	@[ -e $(RELEASE)/images.json ] || { echo "evidence: there is no $(RELEASE): run make release-snapshot"; exit 1; }
	@[ -z "$$(git status --porcelain)" ] || { echo "evidence: there are uncommitted changes, and statements are of a commit; commit first"; exit 1; }
	@mkdir -p $(SEEN)
	@[ -e $(SEEN)/chaos/results.json ] || { $(GO) -C chaos/real build -o $(CHAOS) . && $(CHAOS) run --for $(EVIDENCE_FOR) --dir $(SEEN)/chaos; } || true
	@[ -e $(SEEN)/sim-campaign.json ] || $(MAKE) --no-print-directory BIN=$(SEEN) SIM_FOR=$(EVIDENCE_FOR) sim-campaign || true
	@[ -e $(SEEN)/model.log ] || ! command -v spin >/dev/null || { chaos/model/run.sh short >$(SEEN)/model.new || true; mv $(SEEN)/model.new $(SEEN)/model.log; }
	@[ -e $(SEEN)/planted-bugs.md ] || $(GO) run ./chaos/planted -bugs '$(EVIDENCE_BUGS)' -write $(SEEN)/planted-bugs.md || true
	@given() { [ ! -e "$$2" ] || printf '%s %s ' "$$1" "$$2"; }; \
	$(PACK_RELEASE) evidence --dir $(RELEASE) --commit $(COMMIT) $$(given --chaos $(SEEN)/chaos/results.json) \
		$$(given --sim $(SEEN)/sim-campaign.json) $$(given --model $(SEEN)/model.log) $$(given --bugs $(SEEN)/planted-bugs.md)

# What a tag has to agree with: the change log, the chart, the files of the released contracts.
.PHONY: release-ready release-notes nightly-release
release-ready: ## whether the change log, the chart and testdata/released are those of VERSION
	@[ -n "$(VERSION)" ] || { echo "release-ready: VERSION is not set"; exit 1; }
	@grep -q '^## \[$(VERSION)\] - [0-9][0-9-]*$$' CHANGELOG.md || { echo "CHANGELOG.md has no section [$(VERSION)] with a date"; exit 1; }
	@grep -q '^version: $(VERSION)$$' deploy/helm/allocator/Chart.yaml && grep -q '^appVersion: "$(VERSION)"$$' deploy/helm/allocator/Chart.yaml || { echo "deploy/helm/allocator/Chart.yaml has another version"; exit 1; }
	@[ -e testdata/released/$(VERSION)/records.txt ] || { echo "there is no testdata/released/$(VERSION): run make released VERSION=$(VERSION)"; exit 1; }
	@[ -z "$$(git status --porcelain)" ] || { echo "there are uncommitted changes"; exit 1; }
	@echo "the change log, the chart and the contracts are those of $(VERSION)"

release-notes:
	@awk '/^## \[/ { found = index($$0, "## [$(VERSION)]") == 1; next } found' CHANGELOG.md

nightly-release:
	$(MAKE) --no-print-directory release-snapshot
	$(MAKE) --no-print-directory release-test

release-push: pack-release ## copy the images and the chart of bin/release to REGISTRY, such as registry.example.org/flakelease
	@[ -n "$(REGISTRY)" ] || { echo "release-push: REGISTRY is not set"; exit 1; }
	@$(PACK_RELEASE) push --dir $(RELEASE) $(REGISTRY)

image-twice: image ## build the images again in another directory with an empty cache, 4 minutes: the bytes have to be the same
	@[ -z "$$(git status --porcelain)" ] || { echo "image-twice: there are uncommitted changes, which are part of the version; commit first"; exit 1; }
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && git clone -q . "$$dir/elsewhere" && \
		GOCACHE="$$dir/cache" $(MAKE) --no-print-directory -C "$$dir/elsewhere" image IMAGE=$(IMAGE) IMAGE_ARCH=$(IMAGE_ARCH) && \
		for i in allocator etcd; do cmp $(IMAGES)/$$i.tar "$$dir/elsewhere/$(IMAGES)/$$i.tar" && echo "$$i: same bytes twice" || exit 1; done

# The image under test is that of `make image`. Nodes go from it to a second one, and back:
# the last release, built from its tag. As long as there is none, that is the same code under
# another version.
PREVIOUS = $(shell git describe --tags --abbrev=0 --match 'v*' HEAD^ 2>/dev/null)
PACK_TEST = $(BIN)/pack pack --context $(IMAGES)/$(1) --binary $(IMAGES)/$(1)/$(2) --file $(3) --tag $(4):compose-test$(5) -o $(IMAGES)
compose-test: image ## deploy/compose.yaml in Docker: kill, pause, disconnect and upgrade nodes with etcd inside while IDs are drawn, 4 minutes
	@mkdir -p $(IMAGES)/composetest $(IMAGES)/upgrade/data && cp $(addprefix $(IMAGES)/allocator/,LICENSE NOTICE allocator.spdx.json) $(IMAGES)/upgrade
	$(CROSS) $(GO) -C chaos/real build -trimpath -o $(CURDIR)/$(IMAGES)/composetest/composetest ./compose
	@set -e; rm -rf $(IMAGES)/previous; \
		if [ -n "$(PREVIOUS)" ]; then echo "the other version is the last release, $(PREVIOUS)"; git clone -q --branch $(PREVIOUS) . $(IMAGES)/previous; \
		else echo "there is no release yet: the other version is the same code"; ln -s $(CURDIR) $(IMAGES)/previous; fi; \
		$(CROSS) $(GO) -C $(IMAGES)/previous build -trimpath -buildvcs=false -ldflags '-X main.version=$(or $(PREVIOUS),compose-test-upgrade)' -o $(CURDIR)/$(IMAGES)/upgrade/allocator ./cmd/allocator
	@set -e; $(call PACK_TEST,allocator,allocator,deploy/Dockerfile,$(IMAGE))/allocator-test.tar; \
		$(call PACK_TEST,upgrade,allocator,deploy/Dockerfile,$(IMAGE),-upgrade)/allocator-upgrade.tar; \
		$(call PACK_TEST,composetest,composetest,chaos/real/compose/Dockerfile,$(IMAGE)-composetest)/composetest.tar
	$(IMAGES)/composetest/composetest run --images $(IMAGES) --other $(or $(PREVIOUS),compose-test-upgrade)

# Which tests run here and which in the others is said by package chaos/tier. Neither a C
# compiler nor the network is needed, once Go has the modules. What make check does without
# -race is compiled alike, so it takes that from Go's cache.
test: export TIER = test
test: export CGO_ENABLED = 0
test: check-format check-vet $(GOTEST) ## what to run after each change: format, vet, tests, README's commands; 2 to 3 minutes
	@echo "== go test ./..."
	@$(GOTEST) -o $(BIN)/$@/all.tests -p $(WAITING) -timeout $(TIMEOUT) ./...
	@echo && $(GOTEST) -report $(BIN)/$@/*.tests
	@echo "make test: passed. make check also runs all tests with -race, the other modules, staticcheck, real faults and attacks, and the model"

CHECKS := check-format check-vet check-static check-contracts check-tests check-modules check-site check-openapi check-chaos check-abuse check-model check-generated
check: export TIER = check
check: export CGO_ENABLED = 0
check: tools $(GOTEST) ## what must hold before a merge, all of the above with it: 40 minutes
	$(call run-steps,$(CHECKS),$(AT_ONCE))
	@echo && $(GOTEST) -report $(BIN)/$@/*.tests

# What takes long or needs more than CI has: one step after the other, since most of them
# measure time or take all of the machine.
NIGHTLY := check-static nightly-test nightly-check nightly-tests sim-campaign nightly-soak nightly-inside nightly-fence nightly-agent chaos-workers e2e nightly-abuse model nightly-bugs nightly-mutation fuzz \
	image-twice nightly-release contracts compose-test chart-test kube-test console-test docs-test
.PHONY: check nightly $(filter nightly-%,$(NIGHTLY))
nightly: export TIER = nightly
nightly: $(GOTEST) ## what finds more the longer it runs, and how long the other two take: hours
	$(call run-steps,$(NIGHTLY),1)
	@echo && $(GOTEST) -report $(BIN)/$@/*.tests

race: ## the Go tests alone, with -race; PKG=./internal/gen for some of them
	$(GO) test -race -timeout $(TIMEOUT) $(PKG)

lint: tools ## format, vet, staticcheck, and the messages of the commits since main
	$(call run-steps,check-format check-vet check-static check-commits,$(AT_ONCE))

model: ## the full Spin run of the lease protocol: 5 to 20 minutes, 2 GB
	chaos/model/run.sh full

.PHONY: play
play: ## the simulation as a page, in bin/play: any browser opens it
	@$(GO) run ./chaos/play -dir $(BIN)/play

sim: ## whole clusters in one goroutine, from seeds: SEEDS=10000 FIRST=1
	$(GO) test -timeout 0 -count 1 -v ./chaos/sim -run 'TestSim$$' -seeds $(if $(filter command%,$(origin SEEDS)),$(SEEDS),$(SIM_SEEDS)) -first $(FIRST)

SIM_FOR ?= 1h# of `make sim-campaign`
.PHONY: sim-campaign
sim-campaign: ## clusters from new seeds for SIM_FOR, on from where the last one stopped; bin/sim-campaign.json keeps the failures
	$(GO) test -timeout 0 -count 1 -v ./chaos/sim -run 'TestCampaign$$' -campaign $(CURDIR)/$(BIN)/sim-campaign.json -campaign-for $(SIM_FOR) -commit "$$(git rev-parse --short HEAD 2>/dev/null)"

scale: ## measure clusters of 3 to 128 nodes, and what 1,024 read, in virtual time, and compare with the calculation: 10 to 20 minutes
	$(GO) test ./chaos/virtual -run TestScale -scale 3,8,16,32,64,128 -timeout 60m
	$(GO) test ./chaos/virtual -run TestReads -reads 32,128,1024 -timeout 60m
	$(GO) test ./chaos/scale -run TestCalculation -v

e2e: ## the end-to-end run: real processes, E2E_IDS ids or more, etcd outages of 20 s and beyond the window
	$(GO) -C chaos/real test -timeout 60m -count 1 -v . -run TestEndToEnd -ids $(E2E_IDS) -outage 20s -long

chaos: ## real faults of every class on a real cluster for CHAOS_FOR; the report is in bin/chaos-…
	$(GO) -C chaos/real build -o $(CHAOS) . && $(CHAOS) run --for $(CHAOS_FOR) --layout $(CHAOS_LAYOUT) --etcd $(CHAOS_ETCD)

chaos-workers: ## real programs with worker numbers through faults, until they have used WORKER_IDS
	$(GO) -C chaos/real test -count 1 -v -timeout 30m ./workers -ids $(WORKER_IDS)

chaos-soak: ## all faults in turn for SOAK
	$(GO) -C chaos/real build -o $(CHAOS) . && $(CHAOS) soak --for $(SOAK) --etcd $(CHAOS_ETCD)

abuse-test: ## attack a node in 256 MiB while honest callers use it, and write bin/abuse.md: 8 minutes; ABUSE='--memory 512 --only resets-8'
	$(GO) -C chaos/real build -o $(CURDIR)/$(BIN)/abuse ./abuse && $(BIN)/abuse $(if $(ABUSE),$(ABUSE),--write $(BIN)/abuse.md)

.PHONY: console-test
fence-test: ## readers of fenced tables beside readers that lose rows, on real nodes and PostgreSQL: 3 minutes; FENCE_TIER=nightly for 20
	TIER=$(FENCE_TIER) $(GO) -C chaos/real test -count=1 -v ./fence

agent-test: ## PHP-FPM, gunicorn and redis-cli at an agent that is killed, with nodes that fail: 1 minute; AGENT_TIER=nightly for 5
	TIER=$(AGENT_TIER) $(GO) -C chaos/real test -count=1 -timeout 30m -v ./agent

bench-agent: ## an agent on a Unix socket beside Redis on one and a node over TCP, by redis-benchmark, PHP-FPM and Python: 3 minutes
	GO="$(GO)" bench/agent.sh

console-test: ## the pages for operators in Chromium, with 1,000 streams; bin/console has screenshots
	cd chaos/real && $(GO) test -count 1 -timeout 60m -v ./console -long -shots $(CURDIR)/$(BIN)/console

chaos-bugs: ## plant each known bug, see which test catches it and how soon, and write bin/planted-bugs.md
	$(GO) run ./chaos/planted -write $(BIN)/planted-bugs.md

# The site has no text of its own: its pages are the Markdown files, in the order in which
# docs/README.md links to them, and the references that the program prints.
SITE := $(BIN)/site
SITE_FILES := '*.md' '*.svg' '*.png' ':!testdata' ':!.github'
.PHONY: docs docs-serve docs-test
docs: $(SITE)/installed ## a site of the Markdown files, with search, in bin/docs; needs Node.js 20 with npm
	@rm -rf $(SITE)/src $(SITE)/.vitepress && mkdir -p $(SITE)/src && cp -R deploy/site/.vitepress deploy/site/tree.mjs $(SITE)
	@git ls-files -co --exclude-standard $(SITE_FILES) | while read -r f; do [ ! -e "$$f" ] || echo "$$f"; done | tar -cf - -T - | tar -xf - -C $(SITE)/src
	@for page in cli metrics; do CGO_ENABLED=0 $(GO) run $(TRIM) ./cmd/allocator docs $$page >$(SITE)/src/docs/reference/$$page.md || exit 1; done
	cd $(SITE) && node node_modules/vitepress/bin/vitepress.js build .
	@$(GO) run ./chaos/play -dir $(BIN)/docs/play
	@echo "$(BIN)/docs has the site: make docs-serve shows it"

$(SITE)/installed: deploy/site/package.json deploy/site/package-lock.json
	@command -v npm >/dev/null || { echo "npm is not installed: install Node.js 20 or later"; exit 1; }
	@mkdir -p $(SITE) && cp $^ $(SITE)
	npm ci --prefix $(SITE) --ignore-scripts --no-audit --no-fund
	@touch $@

docs-serve: docs ## the site on this machine, at http://127.0.0.1:8088/
	$(GO) -C deploy run ./site -dir $(CURDIR)/$(BIN)/docs

docs-test: docs ## links, search and looks of the site, in Chromium: some minutes; bin/docs-shots has screenshots
	cd deploy && $(GO) test -count 1 -timeout 30m ./site -long -shots $(CURDIR)/$(BIN)/docs-shots

mutation: ## change one operator or statement at a time and run the package's tests: PKG=./internal/gen LIMIT=50; all takes hours
	@$(GO) build -o $(BIN)/planted ./chaos/planted; failed=0; \
	for p in $(if $(filter ./...,$(PKG)),$(foreach p,$(MUTATED),$(if $(filter ./%,$(p)),$(p),./internal/$(p))),$(PKG)); do \
		$(BIN)/planted -mutate $$p -limit $(LIMIT) -seed $(MUTATION_SEED) || failed=1; \
	done; exit $$failed

bench: ## measure everything, peers beside us; from a clean commit on a quiet machine write bin/benchmarks.md: some minutes; BENCH_ROUNDS=9 for more
	$(MAKE) --no-print-directory bench-programs
	$(BIN)/bench-run -allocator $(CURDIR)/$(BIN)/bench-allocator -rounds $(BENCH_ROUNDS) -slice $(BENCH_SLICE) -json $(BIN)/bench -o $(BIN)/benchmarks.md

bench-redis: ## the Redis protocol beside Redis by redis-benchmark, on TCP and Unix sockets, and write bin/redis.md: 4 minutes
	$(MAKE) --no-print-directory bench-programs
	$(BIN)/bench-run -allocator $(CURDIR)/$(BIN)/bench-allocator -rounds $(BENCH_ROUNDS) -slice $(BENCH_SLICE) -only redis-benchmark -json $(BIN)/bench -o $(BIN)/redis.md

bench-programs:
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o $(BIN)/bench-allocator ./cmd/allocator
	cd bench && CGO_ENABLED=0 $(GO) build -trimpath -o ../$(BIN)/bench-run ./run

bench-peers: ## our codecs and generators beside other libraries alone, in one run; fails where a goal is missed
	cd bench && $(GO) run ./ratios

bench-go: ## the Go benchmarks of our own packages with -benchmem; COUNT=10 for benchstat, BENCH=Next1 for some
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -count $(COUNT) \
		$$(git grep -l '^func Benchmark' -- '*_test.go' ':!bench/' | xargs -n 1 dirname | sort -u | sed 's|^|./|')

gen: tools ## regenerate api/ and the reasons of refusals from the proto file; protoc must be on PATH
	PATH="$(TOOLS):$$PATH" protoc $(call PROTOC_FLAGS,.) api/allocator/v1/allocator.proto
	$(GO) test -count 1 ./api -update

chart-test: ## the Helm chart through Helm 3 and 4, kubeconform and promtool, each built once
	deploy/helm/chart-test.sh
	@$(MAKE) --no-print-directory monitoring-test

.PHONY: kube-test
kube-test: ## the chart in a real Kubernetes, built here: 10 minutes, the first time 20; KUBE_ARGS='--only objects'
	@mkdir -p $(BIN)/kube
	cd chaos/kube && CGO_ENABLED=0 nice -n 10 $(GO) build -trimpath -p 2 -o ../../$(BIN)/kube/kubetest .
	$(BIN)/kube/kubetest --root . $(KUBE_ARGS)

monitoring-test: ## alerts through promtool, and a real Prometheus that has to raise them while etcd is cut off and a clock is wrong: 1 minute
	deploy/monitoring/test.sh

.PHONY: monitoring-test chart-test

fuzz: ## each fuzz target for FUZZTIME
	@git grep -l '^func Fuzz' -- '*_test.go' ':!bench/' | xargs -n 1 dirname | sort -u | while read -r dir; do \
		for f in $$(grep -ho '^func Fuzz[A-Za-z0-9_]*' $$dir/*_test.go | cut -c 6-); do \
			echo "$$dir $$f"; \
			$(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) ./$$dir || exit 1; \
		done; \
	done

clean: ## remove bin/
	rm -rf $(BIN)

# ---- the steps of `make check` and `make nightly` ----------------------------

step-%:
	@echo "  began    $*"; began=$$(date +%s); log=$(STEPS)/$*.log; \
	if $(MAKE) --no-print-directory $* SKIPPED=$(STEPS)/$*.skipped >$$log 2>&1; then code=0 result=passed; else code=1 result=FAILED; fi; \
	if [ -e $(STEPS)/$*.skipped ]; then result="skipped: $$(cat $(STEPS)/$*.skipped)"; fi; \
	[ $$code = 0 ] || cat $$log; \
	printf '  %5d s  %-15s %s\n' $$(( $$(date +%s) - began )) $* "$$result"; exit $$code

$(GOTEST): $(wildcard chaos/tier/*.go chaos/tier/gotest/*.go)
	@$(GO) build -o $@ ./chaos/tier/gotest

# A tier that became slow is seen here, and not by tests that measure time while other
# programs run.
within = began=$$(date +%s); GOFLAGS="$(GOFLAGS) -count=1" $(MAKE) --no-print-directory $(1) && \
	$(GOTEST) -report -each $(2) -all $(3) -took $$(( $$(date +%s) - began ))s $(BIN)/$(firstword $(1))/*.tests
nightly-test: $(GOTEST)
	$(call within,test,60s,3m)

nightly-check: $(GOTEST)
	$(call within,check RACED_MODULE=chaos/real,10m,30m)

nightly-tests: $(GOTEST)
	$(call tests-of,nightly) -count 1 -timeout 3h ./...
	$(call race-of,nightly-race) -timeout $(TIMEOUT) ./internal/lease/protocol -seeds $(SEEDS) -skip TestEveryCallFails

nightly-soak:
	$(MAKE) --no-print-directory chaos-soak SOAK=2h

nightly-inside: # Each fault of the list fits in.
	$(MAKE) --no-print-directory chaos-soak SOAK=10m CHAOS_ETCD=inside

nightly-fence:
	$(MAKE) --no-print-directory fence-test FENCE_TIER=nightly

nightly-agent:
	$(MAKE) --no-print-directory agent-test AGENT_TIER=nightly

nightly-abuse:
	$(MAKE) --no-print-directory abuse-test ABUSE='--for 8s'
	$(MAKE) --no-print-directory abuse-test ABUSE='--for 8s --memory 512'

nightly-bugs:
	$(GO) run ./chaos/planted

nightly-mutation:
	$(MAKE) --no-print-directory mutation LIMIT=20 MUTATION_SEED=$$(date +%Y%m%d)

PROTOC_FLAGS = --go_out=$(1) --go_opt=paths=source_relative --go-grpc_out=$(1) --go-grpc_opt=paths=source_relative

check-commits:
	tools/check-commits

check-format:
	@echo "== gofmt"
	@bad=$$(git ls-files -co --exclude-standard '*.go' | grep -v '\.pb\.go$$' | while read -r f; do [ ! -e "$$f" ] || echo "$$f"; done | xargs gofmt -l); \
		[ -z "$$bad" ] || { echo "not formatted, run gofmt -w on:"; echo "$$bad"; exit 1; }

check-vet:
	@echo "== go vet"
	$(GO) vet ./...

# Modules of few lines with much to link, which staticcheck reads for minutes: that is for the night.
FEW_LINES = chaos/kube deploy
check-static: tools
	@echo "== actionlint"
	$(TOOLS)/actionlint .github/workflows/*.yml
	@failed=0; for m in . $(if $(filter check,$(TIER)),$(filter-out $(FEW_LINES),$(MODULES)),$(MODULES)); do \
		echo "== staticcheck $$m"; (cd $$m && $(TOOLS)/staticcheck ./...) || failed=1; done; exit $$failed

# The lease schedules, the simulation and its page run in one goroutine, where -race finds nothing
# and costs tenfold: they run without it here, and some schedules with it every night. Of the agreement of
# whole nodes in simulated time, hours of it, some run with it. Whole nodes in testing/synctest run
# on one processor with -race (-cpu 1): the timers of a bubble share one context of the
# race detector, and two threads that look at their channels at once corrupt it (Go 1.26;
# a SIGSEGV outside Go code). Timed tests share the machine badly, so packages run
# two at a time. What reads the source and the documents has no goroutines of its own.
check-tests: $(GOTEST)
	@echo "== go test -race"
	@failed=0; \
	$(call tests-of,tests-1) -p 2 -timeout $(TIMEOUT) ./internal/lease/protocol ./chaos/agreement ./chaos/sim ./chaos/play/player ./chaos/archtest ./chaos/planted || failed=1; \
	$(call race-of,tests-2) -cpu 1 -timeout $(TIMEOUT) ./chaos/agreement -run '$(RACED)' || failed=1; \
	$(call race-of,tests-3) -cpu 1 -timeout $(TIMEOUT) ./chaos/virtual || failed=1; \
	$(call tests-of,tests-4) -timeout $(TIMEOUT) ./cmd/allocator -run '$(UNRACED)' || failed=1; \
	$(call race-of,tests-5) -p 2 -timeout $(TIMEOUT) -skip '$(UNRACED)|TestReadme$$' $$($(GO) list ./... | grep -v -e '/internal/lease/protocol$$' -e '/chaos/agreement$$' -e '/chaos/virtual$$' -e '/chaos/sim$$' -e '/chaos/play/player$$' -e '/chaos/archtest$$' -e '/chaos/planted$$') || failed=1; \
	exit $$failed

# The public packages and openapi.yaml, beside those of the last release: what is printed could
# break a program. contracts compares the proto, too; buf takes two minutes to compile, so CI
# runs it beside `make check` and not in it.
PUBLIC_API := api api/allocator/v1 client client/clienttest client/prom embed flake ulid worker
LAST := testdata/released/$(shell ls testdata/released | sort -V | tail -n 1)
CONTRACT_TOOLS := $(CURDIR)/$(BIN)/contract-tools
.PHONY: contracts released vulnerabilities check-contracts
check-contracts: tools $(CONTRACT_TOOLS)/oasdiff
	@echo "== apidiff with $(LAST)"
	@failed=0; for p in $(PUBLIC_API); do \
		broken=$$($(TOOLS)/apidiff -incompatible $(LAST)/api/$$(echo $$p | tr / -).export ./$$p) || failed=1; \
		[ -z "$$broken" ] || { echo "$$p:"; echo "$$broken"; failed=1; }; \
	done; exit $$failed
	@echo "== oasdiff"
	$(CONTRACT_TOOLS)/oasdiff breaking --fail-on ERR $(LAST)/openapi.yaml api/openapi.yaml

contracts: check-contracts $(CONTRACT_TOOLS)/buf ## compare the public packages, openapi.yaml and the proto with the last release: apidiff, oasdiff, buf
	@echo "== buf"
	$(CONTRACT_TOOLS)/buf lint api
	$(CONTRACT_TOOLS)/buf breaking api --against $(LAST)/proto

$(CONTRACT_TOOLS)/buf: tools/contracts/go.mod tools/contracts/go.sum
	cd tools/contracts && $(GO) build -o $@ github.com/bufbuild/buf/cmd/buf

$(CONTRACT_TOOLS)/oasdiff: tools/contracts/go.mod tools/contracts/go.sum
	cd tools/contracts && $(GO) build -o $@ github.com/oasdiff/oasdiff

released: tools ## keep the contracts and the stored forms of VERSION in testdata/released, which later releases are compared with
	@[ -n "$(VERSION)" ] || { echo "released: VERSION is not set"; exit 1; }
	@mkdir -p testdata/released/$(VERSION)/api testdata/released/$(VERSION)/proto/allocator/v1
	@for p in $(PUBLIC_API); do $(TOOLS)/apidiff -w testdata/released/$(VERSION)/api/$$(echo $$p | tr / -).export ./$$p || exit 1; done
	@cp api/allocator/v1/allocator.proto testdata/released/$(VERSION)/proto/allocator/v1/ && cp api/openapi.yaml testdata/released/$(VERSION)/
	$(GO) test -count 1 ./internal/lease ./internal/cluster ./cmd/allocator/internal/worker -run TestReleased -released $(VERSION)

vulnerabilities: tools ## known vulnerabilities in code that is reached, in each module; needs the internet
	@failed=0; for m in . $(MODULES); do echo "== govulncheck $$m"; (cd $$m && $(TOOLS)/govulncheck ./...) || failed=1; done; exit $$failed

# Modules of their own: what they need shall not become what the product needs. Their tests
# read files outside of them, which Go's test cache ignores: hence -count 1. Those of the site
# are in check-site, and those in tools have no packages.
MODULES = $(filter-out . tools tools/contracts,$(patsubst %/,%,$(dir $(shell git ls-files '*go.mod'))))
check-modules: $(GOTEST)
	@failed=0; for m in $(MODULES); do \
		echo "== $$m"; case $$m in $(RACED_MODULE)) race=-race cgo=1;; *) race= cgo=$$CGO_ENABLED;; esac; \
		(cd $$m && $(GO) vet ./... && CGO_ENABLED=$$cgo $(call tests-of,$$(echo $$m | tr / -)) $$race -count 1 -timeout $(TIMEOUT) $$($(GO) list ./... | grep -v '/deploy/site$$')) || failed=1; \
	done; exit $$failed

check-site: $(GOTEST)
	@if ! command -v npm >/dev/null; then echo "npm is not installed" | tee $(SKIPPED); \
	elif ! $(MAKE) --no-print-directory $(SITE)/installed; then echo "npm cannot get its packages" | tee $(SKIPPED); \
	else export DOCS_BASE=/allocator/; $(MAKE) --no-print-directory docs && cd deploy && $(call tests-of,site) -count 1 -timeout $(TIMEOUT) ./site; fi

# Redocly is what editors and documentation sites read the contract with.
REDOCLY := npm exec --yes --package @redocly/cli@1.34.5 -- redocly
check-openapi:
	@echo "== api/openapi.yaml"
	@if ! command -v npm >/dev/null; then echo "not run: npm is not installed"; \
	elif ! REDOCLY_TELEMETRY=off $(REDOCLY) --version >/dev/null 2>&1; then echo "not run: npm cannot get @redocly/cli"; \
	else REDOCLY_TELEMETRY=off $(REDOCLY) lint --max-problems 0 --format summary api/openapi.yaml 2>&1 | tee $(BIN)/redocly.txt; \
		! grep -Eq '[1-9][0-9]* (warning|error)|[1-9][0-9]* problem' $(BIN)/redocly.txt; fi

# A run that could not decide, because the machine was stalled or a fault was not injected, shows
# nothing either way. It does not pass, and is not run again: its report says what was unknown.
CHAOS := $(CURDIR)/$(BIN)/chaos
check-chaos:
	@echo "== chaos"
	$(GO) -C chaos/real build -o $(CHAOS) .
	@rm -rf $(BIN)/chaos-ci; $(CHAOS) run --for $(CHAOS_FOR) --dir $(BIN)/chaos-ci; code=$$?; \
		[ $$code != 3 ] || echo "no verdict: the run shows nothing, so this step does not pass"; \
		echo "see $(BIN)/chaos-ci/report.html"; exit $$code

check-abuse:
	@echo "== attacks"
	$(GO) -C chaos/real build -o $(CURDIR)/$(BIN)/abuse ./abuse && $(BIN)/abuse --short --for 4s

check-model:
	@echo "== model"
	@if missing=$$(for t in spin gcc; do command -v $$t >/dev/null || echo $$t; done) && [ -n "$$missing" ]; then \
		echo "not installed:" $$missing "(Debian: apt-get install spin gcc)" | tee $(SKIPPED); \
	else \
		chaos/model/run.sh short; \
	fi

# The version of protoc itself is in the generated files, and need not be ours.
check-generated: tools
	@echo "== generated code"
	@if ! command -v protoc >/dev/null; then \
		echo "protoc is not installed (Debian: apt-get install protobuf-compiler)" | tee $(SKIPPED); \
	else \
		rm -rf $(BIN)/gen && mkdir -p $(BIN)/gen && \
		PATH="$(TOOLS):$$PATH" protoc $(call PROTOC_FLAGS,$(BIN)/gen) api/allocator/v1/allocator.proto && \
		for f in allocator.pb.go allocator_grpc.pb.go; do \
			diff -u -I '^//.*protoc  *v' api/allocator/v1/$$f $(BIN)/gen/api/allocator/v1/$$f || \
			{ echo "api/ is not what allocator.proto gives: run make gen"; exit 1; }; \
		done; \
		rm -rf $(BIN)/gen; \
	fi

tools: $(TOOLS)/stamp

$(TOOLS)/stamp: tools/go.mod tools/go.sum
	@mkdir -p $(TOOLS)
	cd tools && GOBIN=$(TOOLS) $(GO) install tool
	@touch $@

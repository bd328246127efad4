# `make help` lists what this file can do, from the comments behind ##. What takes more than a few lines is a
# program or a script: chaos/tier/ci has the table of the steps of check and nightly.

GO  ?= go
BIN := bin
CI   = echo "make $@: starting; the first time its own program is compiled for half a minute" && $(GO) run ./chaos/tier/ci

# The version of what is built: nodes of two commits show different ones, also where Go does not ask git (-buildvcs=false).
STAMP = $(addprefix -X main.version=,$(shell git describe --tags --always --dirty 2>/dev/null))

# Arguments of targets, such as PKG=./internal/gen. An empty one means what the list says.
PKG  ?=# packages, as directories: ./internal/gen, ./internal/...
STEP ?=# steps of check or nightly
ARGS ?=# of the program that a target runs
DO   ?=# what image and release do
WHAT ?=# what bench measures

# Targets that read an argument. The others refuse it, since it would be ignored without a word. What a step of
# check or nightly runs inherits the STEP of its make.
PKG_OF  := test race fuzz bench
STEP_OF := check nightly
ARGS_OF := chaos abuse bugs kube
DO_OF   := image release
WHAT_OF := bench
FOR_OF := sim release
SEEDS_OF  := sim
FIRST_OF  := sim
FUZZTIME_OF := fuzz
COUNT_OF  := bench
ROUNDS_OF := bench
BENCH_OF  := bench
SLICE_OF  := bench
SERVE_OF  := docs
TIER_OF   := test race
ifeq ($(MAKELEVEL),0)
$(foreach v,PKG STEP ARGS DO WHAT FOR SEEDS FIRST FUZZTIME COUNT ROUNDS BENCH SLICE SERVE TIER,$(if $(filter command,$(origin $v)),$(foreach t,$(filter-out $($v_OF),$(MAKECMDGOALS)), \
	$(error $t: $v is an argument of $($v_OF)))))
endif

.DEFAULT_GOAL := help
.PHONY: help build test check nightly lint race fuzz gen clean model sim chaos abuse bugs bench docs play image chart kube compose release contracts vulnerabilities

help: ## show this list
	@echo "Each target says what it does while it does it. After a change: make test"
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build bin/allocator, static, with the etcd of dev in it
	@echo "building $(BIN)/allocator: 1 to 3 minutes the first time, without output"
	CGO_ENABLED=0 $(GO) build -ldflags '$(STAMP)' -o $(BIN)/allocator ./cmd/allocator

test: ## after a change: all tests; PKG=./internal/gen for some
	@$(CI) test $(PKG)

check: ## before a merge: -race, all modules, faults, attacks, model; STEP=model for one
	@$(CI) check $(STEP)

nightly: ## what finds more the longer it runs, for hours; STEP=night-soak for one
	@$(CI) nightly $(STEP)

lint: ## what only reads: format, vet, staticcheck, actionlint, commits
	@$(CI) lint

race: ## tests with the race detector; PKG=./internal/gen for some
	@$(CI) test -race $(PKG)

FUZZTIME ?= 10s
fuzz: ## each fuzz target of PKG, or of all, for FUZZTIME=10s
	@dirs=$$(git grep -l '^func Fuzz' -- $(if $(PKG),'$(PKG)/*_test.go','*_test.go') ':!bench/' | xargs -r -n 1 dirname | sort -u); \
	[ -n "$$dirs" ] || { echo "fuzz: there is no fuzz target in $(PKG): name one directory, such as ./flake"; exit 2; }; \
	for dir in $$dirs; do \
		for f in $$(grep -ho '^func Fuzz[A-Za-z0-9_]*' $$dir/*_test.go | cut -c 6-); do \
			echo "$$dir $$f"; $(GO) -C $$dir test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) . || exit 1; \
		done; \
	done

gen: ## regenerate api/ from the proto file; needs protoc
	tools/gen
	$(GO) test -count 1 ./api -update

clean: ## remove bin/
	rm -rf $(BIN)

model: ## the full Spin run of the protocol: 5 to 20 minutes, 2 GB
	chaos/model/run.sh full

SEEDS ?= 2000
FIRST ?= 0
sim: ## clusters in one goroutine, from seeds: SEEDS=2000 FIRST=1, or FOR=1h
ifdef FOR
	$(GO) test -timeout 0 -count 1 -v ./chaos/sim -run 'TestCampaign$$' -campaign $(abspath $(BIN))/sim-campaign.json -campaign-for $(FOR) -commit "$$(git rev-parse --short HEAD 2>/dev/null)"
else
	$(GO) test -timeout 0 -count 1 -v ./chaos/sim -run 'TestSim$$' -seeds $(SEEDS) -first $(FIRST)
endif

chaos: ## real faults on real processes: ARGS='run --for 60s', 'soak --for 8h'
	$(GO) -C chaos/real build -o $(CURDIR)/$(BIN)/chaos . && $(BIN)/chaos $(or $(ARGS),run --for 60s)

abuse: ## attacks on a node beside honest callers: 8 minutes; ARGS='--only resets-8'
	$(GO) -C chaos/real build -o $(CURDIR)/$(BIN)/abuse ./abuse && $(BIN)/abuse $(ARGS)

bugs: ## which test finds each known bug; ARGS='-mutate ./internal/gen' for mutants
	$(GO) run ./chaos/planted $(or $(ARGS),-write $(BIN)/planted-bugs.md)

ROUNDS ?= 7
SLICE  ?= 1s
BENCH  ?= .
COUNT  ?= 1
bench: ## measure beside others; WHAT=redis, sql, failover, starts, dev, cores, curve, agent, peers, scale; go: our own
	$(if $(and $(PKG),$(filter-out go,$(or $(WHAT),services))),$(error bench: PKG is an argument of WHAT=go))
	@case "$(WHAT)" in ''|redis|sql|failover|starts|dev|cores|curve) \
		echo "bench: compiling: 1 to 5 minutes the first time, without output"; \
		CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o $(BIN)/bench-allocator ./cmd/allocator && \
		CGO_ENABLED=0 $(GO) -C bench build -trimpath -o $(CURDIR)/$(BIN)/bench-run ./run && \
		$(BIN)/bench-run -allocator $(CURDIR)/$(BIN)/bench-allocator -rounds $(ROUNDS) -slice $(SLICE) -json $(BIN)/bench \
			$(if $(filter starts,$(WHAT)),-o $(BIN)/starts.svg) $(if $(filter sql failover starts dev cores curve,$(WHAT)),-$(WHAT),$(if $(WHAT),-only redis-benchmark -o $(BIN)/redis.md,-o $(BIN)/benchmarks.md));; \
	agent) GO="$(GO)" bench/agent.sh;; \
	peers) $(GO) -C bench run ./run -peers;; \
	scale) $(GO) test ./chaos/virtual -run TestScale -scale 3,8,16,32,64,128 -timeout 60m && \
		$(GO) test ./chaos/scale -run TestCalculation -v;; \
	go) $(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -count $(COUNT) \
		$(or $(PKG),$$(git grep -l '^func Benchmark' -- '*_test.go' ':!bench/' | xargs -n 1 dirname | sort -u | sed 's|^|./|'));; \
	*) echo "bench: there is no WHAT=$(WHAT): use redis, sql, failover, starts, dev, cores, curve, agent, peers, scale or go, or nothing for all services"; exit 2;; esac

# The site has no text of its own: its pages are the Markdown files, in the order in which docs/README.md links to
# them, and the references that tests write.
SITE := $(BIN)/site
docs: $(SITE)/installed ## a site with search, in bin/docs; SERVE=1 shows it; needs Node.js 20
	@rm -rf $(SITE)/src $(SITE)/.vitepress && mkdir -p $(SITE)/src && cp -R deploy/site/.vitepress deploy/site/tree.mjs $(SITE)
	@git ls-files -co --exclude-standard '*.md' '*.svg' '*.png' ':!testdata' ':!.github' | while read -r f; do [ ! -e "$$f" ] || echo "$$f"; done | tar -cf - -T - | tar -xf - -C $(SITE)/src
	CGO_ENABLED=0 $(GO) test -count 1 ./cmd/allocator -run TestReference -page $(abspath $(SITE))/src/docs/reference/cli.md
	CGO_ENABLED=0 $(GO) test -count 1 ./internal/daemon/metrics -run TestReference -page $(abspath $(SITE))/src/docs/reference/metrics.md
	cd $(SITE) && node node_modules/vitepress/bin/vitepress.js build .
	@$(GO) run ./chaos/play -site -dir $(BIN)/docs/play
	@echo "$(BIN)/docs has the site"
	$(if $(SERVE),$(GO) -C deploy run ./site -dir $(CURDIR)/$(BIN)/docs)

$(SITE)/installed: deploy/site/package.json deploy/site/package-lock.json
	@command -v npm >/dev/null || { echo "npm is not installed: install Node.js 20 or later"; exit 1; }
	@mkdir -p $(SITE) && cp $^ $(SITE)
	npm ci --prefix $(SITE) --ignore-scripts --no-audit --no-fund
	@touch $@

play: ## the simulation as a page, in bin/play: any browser opens it
	@echo "play: compiling: up to a minute the first time, without output"
	@$(GO) run ./chaos/play -dir $(BIN)/play

image: ## container images without Docker, in bin/image; DO=twice compares two builds
	@deploy/image/build.sh $(DO)

chart: ## the chart and alerts by Helm and Prometheus
	deploy/helm/chart-test.sh && { deploy/monitoring/test.sh || [ $$? = 77 ]; }

kube: ## the chart in a real Kubernetes, which is built first: 10 to 20 minutes
	@mkdir -p $(BIN)/kube
	cd chaos/kube && CGO_ENABLED=0 nice -n 10 $(GO) build -trimpath -p 2 -o ../../$(BIN)/kube/kubetest .
	$(BIN)/kube/kubetest --root . $(ARGS)

compose: image ## deploy/compose.yaml in Docker: faults, and an upgrade: 4 minutes
	deploy/compose-test.sh

release: ## DO=snapshot, test, evidence, ready, notes or push: docs/RELEASING.md
	@deploy/release/release.sh $(DO)

contracts: ## public packages, openapi.yaml and the proto beside those of the last tag
	@tools/contracts proto

vulnerabilities: ## known vulnerabilities in code that is reached; needs the internet
	@echo "vulnerabilities: compiling govulncheck"
	@$(GO) -C tools build -o $(CURDIR)/$(BIN)/tools/govulncheck golang.org/x/vuln/cmd/govulncheck
	@failed=0; for m in $$(git ls-files '*go.mod' ':!tools' | xargs -n 1 dirname); do \
		echo "== govulncheck $$m"; (cd $$m && $(CURDIR)/$(BIN)/tools/govulncheck ./...) || failed=1; done; exit $$failed

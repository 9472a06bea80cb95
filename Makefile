# Development commands. `make help` lists them.
GO       ?= go
TOOL     := $(GO) tool -modfile=tools/go.mod
PACKAGES ?= ./...
CLAIM    ?= range
FUZZTIME ?= 30s
SOAK     ?= 2h

.PHONY: help
help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

.PHONY: demo
demo: ## run the demo; nothing to install
	$(GO) run ./cmd/relay demo

.PHONY: up
up: ## start PostgreSQL, Redis, NATS, the relay and a producer in containers
	docker compose up --build

.PHONY: build
build: ## build bin/relay; TAGS=slim without SQLite and the demo, RELEASE=v1.2.3 to set the version
	CGO_ENABLED=0 $(GO) build -trimpath -tags "$(TAGS)" -ldflags "-s -w -X main.release=$(RELEASE)" -o bin/relay ./cmd/relay

.PHONY: release
release: ## build the files of a release into dist/ twice and compare them; RELEASE=v1.2.3
	release/build.sh "$(RELEASE)" dist
	$(GO) test -tags release ./release -count=1 -v -timeout 60m -release.dist "$(CURDIR)/dist"

.PHONY: servers
servers: ## install PostgreSQL, Redis, Valkey, PgBouncer, Sidekiq and Prometheus for the tests, if missing
	@sh internal/testserver/install.sh

.PHONY: test
test: servers ## run every test on real servers
	$(GO) test -timeout 60m $(PACKAGES)

.PHONY: race
race: servers ## run every test under the race detector
	$(GO) test -race -timeout 60m $(PACKAGES)

.PHONY: examples
examples: servers ## run the examples in other languages whose interpreters are installed
	$(GO) test -v -count=1 -tags examples -run TestLanguages ./examples

.PHONY: lint
lint: manifests ## run golangci-lint and gofumpt, check the files of deploy/, and the modules against go.sum
	$(GO) mod verify
	$(TOOL) golangci-lint run

.PHONY: manifests
manifests: ## check the Compose, Kubernetes, Helm and systemd files
	@sh deploy/check.sh

.PHONY: fmt
fmt: ## format the code
	$(TOOL) golangci-lint fmt

.PHONY: fuzz
fuzz: ## run every fuzz test for FUZZTIME (30s)
	@set -e; for package in $$($(GO) list $(PACKAGES)); do \
	  for name in $$($(GO) test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
	    $(GO) test -run '^$$' -fuzz "^$$name$$" -fuzztime $(FUZZTIME) $$package; \
	  done; \
	done

.PHONY: chaos
chaos: servers ## run ten minutes of kills, restarts and cut connections; CLAIM=range|stamp CHAOS="-chaos.for 1h -chaos.seed N"
	$(GO) test ./chaos -run 'TestChaos|TestFault' -count=1 -v -timeout 180m -chaos.for 10m -chaos.claim $(CLAIM) $(CHAOS)

.PHONY: soak
soak: servers ## run one relay for SOAK (2h) with outages; memory, files, connections and tables must not grow; samples in soak.csv, a chart in soak.svg
	$(GO) test ./chaos -run TestSoak -count=1 -v -timeout 0 -soak.for $(SOAK) -soak.csv "$(CURDIR)/soak.csv"

.PHONY: bench
bench: servers ## measure the figures of docs/performance.md; BENCH="-scale 0.1" for a quick look
	$(GO) test -run '^$$' -bench 'Drain|Strategies|Cost|Projection|JQ|Sizes|Traces|Replay' -benchtime 3x -v -timeout 60m ./bench $(BENCH)
	$(GO) test -run '^$$' -bench 'Steady|Pinned|TenMillion|Latency|Process|Pipelines|Recovery' -benchtime 1x -v -timeout 30m ./bench $(BENCH)

.PHONY: mutants
mutants: servers ## check that the tests fail for each deliberate mistake
	$(GO) run ./internal/mutants

.PHONY: verify
verify: lint test ## run what a change must pass

.PHONY: vuln
vuln: ## check for known vulnerabilities (needs their database)
	$(GO) run golang.org/x/vuln/cmd/govulncheck@latest ./...

# The commands of development. `make help` lists them.
GO       ?= go
TOOL     := $(GO) tool -modfile=tools/go.mod
PACKAGES ?= ./...
CLAIM    ?= range
FUZZTIME ?= 30s

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

.PHONY: demo
demo: ## the whole way of an event, nothing to install
	$(GO) run ./cmd/relay demo

.PHONY: up
up: ## PostgreSQL, Redis, NATS, the relay and a producer, in containers
	docker compose up --build

.PHONY: build
build: ## bin/relay
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/relay ./cmd/relay

.PHONY: servers
servers: ## install PostgreSQL, Redis, PgBouncer and Sidekiq for the tests, where they are missing
	@sh internal/testserver/install.sh

.PHONY: test
test: servers ## every test, on real servers
	$(GO) test -timeout 20m $(PACKAGES)

.PHONY: race
race: servers ## every test under the race detector
	$(GO) test -race -timeout 40m $(PACKAGES)

.PHONY: examples
examples: servers ## the examples in other languages, where their interpreters are installed
	$(GO) test -v -count=1 -tags examples -run TestLanguages ./examples

.PHONY: lint
lint: ## golangci-lint and gofumpt
	$(TOOL) golangci-lint run

.PHONY: fmt
fmt: ## format the code
	$(TOOL) golangci-lint fmt

.PHONY: fuzz
fuzz: ## every fuzz test for FUZZTIME (30s) each
	@set -e; for package in $$($(GO) list $(PACKAGES)); do \
	  for name in $$($(GO) test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
	    $(GO) test -run '^$$' -fuzz "^$$name$$" -fuzztime $(FUZZTIME) $$package; \
	  done; \
	done

.PHONY: chaos
chaos: servers ## ten minutes of kills, restarts and cut wires; CLAIM=range|stamp|optimistic CHAOS="-chaos.for 1h -chaos.seed N"
	$(GO) test ./chaos -run TestChaos -count=1 -v -timeout 180m -chaos.for 10m -chaos.claim $(CLAIM) $(CHAOS)

.PHONY: bench
bench: servers ## the figures of docs/performance.md, on this machine; BENCH="-scale 0.1" for a quick look
	$(GO) test -run '^$$' -bench 'Drain|Strategies|Cost|Projection|JQ' -benchtime 3x -v -timeout 30m ./bench $(BENCH)
	$(GO) test -run '^$$' -bench 'Pinned|TenMillion|Latency|Process|Recovery' -benchtime 1x -v -timeout 30m ./bench $(BENCH)

.PHONY: mutants
mutants: servers ## break the relay on purpose, place by place, and see the tests fail
	$(GO) run ./internal/mutants

.PHONY: verify
verify: lint test ## what a change must pass

.PHONY: vuln
vuln: ## known vulnerabilities, where their database can be reached
	$(GO) run golang.org/x/vuln/cmd/govulncheck@latest ./...

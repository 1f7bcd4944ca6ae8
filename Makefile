# Every target is one command that can be typed by hand; `make` prints them.

GOLANGCI ?= golangci-lint
REDIS    ?=
PKG      ?= ./...

.DEFAULT_GOAL := help
.PHONY: help demo test race stress bars servers lint fmt bench cover ci

help: ## print this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## show the locks at work; REDIS=redis://localhost:6379 for a real server
	go run ./cmd/redlatch demo --all $(if $(REDIS),--redis $(REDIS))

test: ## run the tests; PKG=./primitives for one package. Without redis-server or Java those that need them are skipped
	go test $(PKG)

race: ## run the tests under the race detector
	go test -race -p 2 $(PKG)

stress: ## run one package's tests 20 times in a row: make stress PKG=./watchdog
	go test -race -count=20 -timeout 30m $(PKG)

bars: ## run the tests of the bars in tests/bars.md at full size, half an hour; BARS="4 6" for some of them
	bash .ci/bars $(BARS)

servers: ## run tests on each Redis and Valkey that is available, and print rows for the table in tests/topology/servers.md
	bash .ci/servers

lint: ## gofmt, go vet and golangci-lint
	@test -z "$$(gofmt -l .)" || { gofmt -l .; exit 1; }
	go vet ./...
	$(GOLANGCI) run ./...
	for dir in bench certmagiclock examples/libraries examples/sqlite examples/vault gocronlock otel playground prometheus sim tests/fence; do (cd $$dir && $(GOLANGCI) run ./...) || exit; done

fmt: ## gofmt all files
	gofmt -w .

bench: ## run the benchmarks
	go test -run '^$$' -bench . -benchmem $(PKG)

cover: ## test coverage, in coverage.html
	go test -coverpkg=./primitives,./pubsub,./scripts,./watchdog -coverprofile=coverage.out $(PKG)
	go tool cover -html=coverage.out -o coverage.html

ci: ## all that CI checks
	bash .ci/run

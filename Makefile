# The commands of the project. `make test` is the one that tells whether it works.

GO ?= go
# The modules below that of the library which go.work puts beside it.
NESTED = cmd/dsync contrib/asynqlock contrib/consullock contrib/cronlock contrib/natslock contrib/riverlock examples/observability internal/guardtest internal/sqltest internal/telemetrytest
# What the tests run on, and extra flags for them: make test PKG=./drivers/redisson TESTFLAGS='-run Cancel -v'
# Packages begin in this order: those that take longest, which mostly wait, come first.
PKG ?= ./drivers/zk ./drivers/etcd ./drivers/redisson ./drivers/pglock ./drivers/redlock ./... $(filter-out ./contrib/% ./internal/sqltest/%,$(NESTED:%=./%/...))
TESTFLAGS ?=
# Packages of the library are tested with what its go.mod says, without go.work, in which some versions are newer.
OF_NESTED = $(filter $(NESTED:%=./%%),$(PKG))
OF_ROOT = $(filter-out $(OF_NESTED),$(PKG))
# The version of Redisson, where one is wanted: make interop REDISSON=4.2.0
export REDISSON
# How many tests of `make interop` run side by side. They mostly wait.
INTEROP_TESTS ?= 8
# How often `make flaky-long` runs each test.
COUNT ?= 20

# runs in which the check of a mistake has to fail
REPEAT ?= 1
# How many trials `make run-long` makes on each backend.
TRIALS ?= 200
# Tests that compute, in fake time or on no backend, and take five to ten times as long with the race detector. They run without it.
# COMPUTE_FORM= runs them in their long form.
COMPUTE = TestMutants|TestMistakes|TestModel.*|TestGoodDriverPasses|TestSlowDriversPass|TestJudgeOfRandom.*|TestCapacityPage|TestConformanceInFakeTime.*
COMPUTE_FORM ?= -short
# Where `make man` writes to.
MAN ?= cmd/dsync/dist/man
# How many storms of migration run side by side: two for each processor, as they mostly wait.
PAIRS ?= $(shell expr 2 '*' $$(getconf _NPROCESSORS_ONLN))
# How many backends `make stress` tests side by side. They mostly wait.
STRESS_BEDS ?= 8
# Where its build finds package time with a wall clock that can jump.
STRESS_BUILD ?= /tmp/dsync-stress-build

# The modules with code of the project.
MODULES = . $(NESTED) test/bench test/interop test/stress

# How long `make fuzz` looks for an input that breaks something, for each target.
FUZZTIME ?= 30s

.PHONY: help test test-library test-nested test-compute test-long test-contrib test-oldest test-newest test-servers newest tidy migration-long model-long servers demo demo-leader demo-migration demo-java interop interop-soak stress stress-long bench bench-peers bench-peers-short bench-gates lint flaky flaky-long fuzz vulncheck release run-long cross packages man completions mistakes

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

# Tests on real servers wait most of the time, so several packages run side by side. `make lint` vets.
RUN_TESTS = GO=$(GO) $(CURDIR)/.ci/test $(GO) test -json -race -vet=off -p 4

# The stages of the tests, of which each runs a part of them. FORM and SKIP are those of the short form, unless LONG is set.
FORM = $(if $(LONG),-timeout 60m,-short -timeout 30m)
SKIP = $(if $(LONG),TestPairs|)$(COMPUTE)
# There are no tests that compute in other packages.
OF_COMPUTE = $(if $(filter ./...,$(PKG)),./conformance/... ./driver/cas ./drivers/etcd ./drivers/memory ./drivers/migrate ./internal/capacity)
# The stages run one after the other: side by side they keep two processors busy all the time, and servers then answer too late for some tests.
STAGES = --no-print-directory -j1 $(if $(OF_ROOT),test-library) $(if $(OF_NESTED),test-nested) $(if $(OF_COMPUTE),test-compute)

test-library:
	GOWORK=off $(RUN_TESTS) $(FORM) -skip '^($(SKIP))$$' $(TESTFLAGS) $(OF_ROOT)

test-nested:
	$(RUN_TESTS) $(FORM) $(TESTFLAGS) $(OF_NESTED)

test-compute:
	GOWORK=off $(RUN_TESTS) -race=false -timeout 30m -run '^($(COMPUTE))$$' $(if $(LONG),,$(COMPUTE_FORM)) $(TESTFLAGS) $(OF_COMPUTE)

test: servers ## run all tests in their short form, on real servers, with the race detector; none may show a password
	@$(MAKE) $(STAGES)

test-long: servers ## run all tests in their long form, with all that `make test` leaves out, a minute beside ShedLock, and 15 s of migration between every two backends
	@$(MAKE) $(STAGES) LONG=yes
	cd internal/sqltest && GOWORK=off $(RUN_TESTS) -timeout 15m -run '^TestFleet$$' -v $(TESTFLAGS) .
	GOWORK=off $(RUN_TESTS) -timeout 30m -run '^TestPairs$$' -parallel $(PAIRS) -v $(TESTFLAGS) ./drivers/migrate -pairs 15s

test-contrib: servers ## run the suite on the drivers of contrib and on databases, on real servers: five minutes, and five more of a processor to build Consul once
	cd internal/sqltest && GOWORK=off $(GO) test -timeout 15m $(TESTFLAGS) ./...
	for module in asynqlock cronlock riverlock; do (cd contrib/$$module && GOWORK=off $(GO) test $(TESTFLAGS) ./...) || exit 1; done
	for module in consullock natslock; do (cd contrib/$$module && GOWORK=off $(GO) test -short -timeout 15m $(TESTFLAGS) ./...) || exit 1; done

migration-long: servers ## six processes follow the runbook from one backend to another, back, and there again, on six pairs, while each backend is killed in each step: ten minutes
	cd cmd/dsync && $(GO) test -race -timeout 30m -count=1 -run '^TestFleetOfSix$$' -parallel 3 -v $(TESTFLAGS) . -fleet

run-long: servers ## dsync run: 200 trials on each backend of a holder that is frozen, cut off, forced or killed, and a job of 20 periods: ten minutes
	cd cmd/dsync && $(GO) test -timeout 60m -count=1 -run '^(TestNoTwoCommands|TestRunOncePerPeriod)$$' -v $(TESTFLAGS) . -trials $(TRIALS)

cross: ## vet the library and the command with their tests for other systems
	@for target in linux/386 darwin/arm64 windows/amd64; do \
		echo "vet for $$target"; \
		export GOOS=$${target%/*} GOARCH=$${target#*/}; \
		GOWORK=off $(GO) vet ./... && (cd cmd/dsync && $(GO) vet ./...) || exit 1; \
	done

packages: ## build the packages of the command for all systems, as a release does, into dist, and try the one for Debian
	@.ci/packages

man: ## write a man page of each command of the command line tool to MAN
	cd cmd/dsync && $(GO) test -count=1 -run '^TestManPages$$' . -man '$(abspath $(MAN))'

completions: ## write completion scripts to cmd/dsync/dist/completions
	cd cmd/dsync && mkdir -p dist/completions && for shell in bash zsh fish; do $(GO) run . completion $$shell > dist/completions/dsync.$$shell || exit 1; done

test-oldest: servers ## run the tests of the library with the oldest versions of all that it requires, as its go.mod says
	GOWORK=off $(RUN_TESTS) -short -timeout 30m $(TESTFLAGS) $(OF_ROOT)
	cd internal/telemetrytest && GOWORK=off $(GO) test -short $(TESTFLAGS) ./...

# Flags and environment that build the library with the newest versions.
NEWEST = GOWORK=off GOFLAGS="$$GOFLAGS -modfile=$(CURDIR)/test/newest.mod"

# Not by GOFLAGS, which the go commands that tests start would inherit.
test-newest: servers ## run them with the newest versions, as test/newest.mod says
	GOWORK=off $(RUN_TESTS) -modfile=$(CURDIR)/test/newest.mod -short -timeout 30m $(TESTFLAGS) $(OF_ROOT)

test-servers: servers ## run the suite on the other versions of the servers, and write into README.md which passed: ten minutes, the first time twenty
	.ci/servers

newest: ## raise test/newest.mod to the newest version of all that the library requires
	cp go.mod test/newest.mod && cp go.sum test/newest.sum
	$(NEWEST) $(GO) get $$(GOWORK=off $(GO) list -m -f '{{if not (or .Main .Indirect)}}{{.Path}}@latest{{end}}' all)
	$(NEWEST) $(GO) mod tidy

# cmd/dsync may have no replace, since `go install` refuses one, so it is tidied with the library of this tree in a copy.
tidy: ## make go.mod and go.sum of all modules what the code needs
	@for module in $(filter-out cmd/dsync,$(MODULES)); do (cd $$module && GOWORK=off $(GO) mod tidy) || exit 1; done
	cd cmd/dsync && export GOWORK=off && trap 'rm -f tidy.mod tidy.sum' EXIT && cp go.mod tidy.mod && cp go.sum tidy.sum && \
	$(GO) mod edit -replace github.com/go-dsync/dsync=../.. tidy.mod && $(GO) mod tidy -modfile=tidy.mod && \
	$(GO) mod edit -dropreplace github.com/go-dsync/dsync tidy.mod && cp tidy.mod go.mod && cp tidy.sum go.sum

model-long: ## search the model of etcd's waiting for ten minutes, where `make test` takes seconds
	$(GO) test -timeout 60m -run '^TestModelKeepsItsPromises$$' -v $(TESTFLAGS) ./drivers/etcd -model.runs 30000 -model.walks 2000

servers: ## install the servers that the tests need, where they are missing
	@internal/testenv/install.sh

demo: ## a shop sells coupons without and with the lock: needs nothing but Go
	$(GO) run ./examples/coupon

demo-leader: servers ## three nodes elect a leader, which is ended in three ways: in one process, and then as processes on an etcd
	$(GO) run ./examples/leader
	$(GO) run ./examples/leader -etcd

demo-migration: servers ## a shop moves its lock from Redis to etcd, step by step, and sells all the while
	$(GO) run ./examples/migration

bench: servers ## run the benchmarks
	$(GO) test -run '^$$' -bench . -benchmem $(TESTFLAGS) $(PKG)

# The benchmark beside peers, compiled.
BENCH = cd test/bench && $(GO) test -c -o bench.test . && ./bench.test

bench-peers: servers ## compare with other libraries on all backends, with a disk and without, into docs/bench: this takes an hour
	$(BENCH) -test.run '^TestPeers$$' -test.v -test.timeout 3h -full -storage disk,memory -out ../../docs/bench $(TESTFLAGS)

bench-gates: servers ## measure the ratios to the floor that docs/performance.md states: fails if half of one is lost
	$(BENCH) -test.run 'Gate' -test.v -test.timeout 20m $(TESTFLAGS)

bench-peers-short: servers ## minutes of both, which show that nothing fails, that no two hold a lock at once, and that the gates are open
	$(BENCH) -test.timeout 20m $(TESTFLAGS)

lint: ## check format and code, the library also with the oldest and the newest versions of what it requires
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "gofmt would change:"; echo "$$unformatted"; exit 1; }
	@long=$$(git ls-files '*.go' | xargs awk 'length > 100 && /^[ \t]*\/\/ / && !/:\/\// { print FILENAME ":" FNR }'); \
		test -z "$$long" || { echo "comments of more than 100 columns:"; echo "$$long"; exit 1; }
	@bad=$$(git log --no-merges --format=%s v0.1.0..HEAD 2>/dev/null | grep -v -e '^Revert "' -e '^[^ :]*[^ ,:]\(, [^ :]*[^ ,:]\)*: [^ ]'); \
		test -z "$$bad" || { echo "commit subjects without \"package: \":"; echo "$$bad"; exit 1; }
	@for module in $(MODULES); do \
		echo "vet and staticcheck of $$module"; \
		(cd $$module && $(GO) vet ./... && $(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...) || exit 1; \
	done
	GOWORK=off $(GO) vet ./...
	$(NEWEST) $(GO) vet ./...

flaky: ## run the suite 200 times on drivers/memory, which must never fail
	$(GO) test -timeout=2h -run GoodDriver ./conformance -repeat 200

mistakes: ## run the suite on each mistake of conformance/testdata/mistakes.txt, and compare what it catches with the file: half an hour; with REPEAT=5 a mistake is caught if its check fails in 5 of 5 runs
	$(GO) test -timeout 3h -count=1 -run '^TestMistakes$$' -v $(TESTFLAGS) ./conformance -mistakes -mistakes.repeat=$(REPEAT)

flaky-long: servers ## run all tests COUNT times, in random order: this takes hours
	$(GO) test -race -shuffle=on -count=$(COUNT) -timeout=20h $(TESTFLAGS) $(PKG)

fuzz: ## look for names, URLs and answers of servers that break something: FUZZTIME for each target
	@grep -rl --include='*_test.go' '^func Fuzz' . | while read -r file; do \
		for target in $$(sed -n 's/^func \(Fuzz[A-Za-z]*\).*/\1/p' $$file); do \
			$(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 100x $$(dirname $$file) || exit 1; \
		done; done

interop: servers ## prove drivers/redisson against Java's Redisson, and drivers/zk against Curator (needs a JDK 17 and Maven)
	cd test/interop && $(GO) test -p 1 -timeout 10m -parallel $(INTEROP_TESTS) $(TESTFLAGS) ./...

interop-soak: servers ## the parts of interop with faults, for five minutes, and one for permits beside Curator
	cd test/interop && $(GO) test -timeout 10m -run TestSoak -v $(TESTFLAGS) . -soak 5m
	cd test/interop && $(GO) test -timeout 10m -run TestPermitsOfFleet -v $(TESTFLAGS) ./curator -soak 1m

stress: servers ## let servers, networks, clocks and processes fail under load: every backend by every fault
	cd test/stress && $(GO) vet ./... && $(GO) test $$($(GO) run ./overlay $(STRESS_BUILD)) -timeout 30m -parallel $(STRESS_BEDS) $(TESTFLAGS) . -injections 3 -minfaults 400 -minoperations 200000

stress-long: servers ## the same with at least 2,000 faults, and write docs/stress.md
	cd test/stress && $(GO) test $$($(GO) run ./overlay $(STRESS_BUILD)) -timeout 3h -parallel $(STRESS_BEDS) -run TestStress $(TESTFLAGS) . -long -injections 15 \
		-minfaults 2000 -minoperations 1000000 -table $(CURDIR)/docs/stress.md

demo-java: servers ## the coupon shop with buyers, and a writer of prices, in Java and in Go (needs a JDK 17 and Maven)
	@cd test/interop && $(GO) run ./shop

release: ## check whether VERSION=v0.1.0 can be released, with .ci/run and test-long, and print the commands that do it
	@.ci/release $(VERSION)

vulncheck: ## look for known weaknesses that this code can reach (needs vuln.go.dev)
	GOWORK=off $(GO) run golang.org/x/vuln/cmd/govulncheck@v1.1.4 ./...

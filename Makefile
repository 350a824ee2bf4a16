# Everything starts here. `make` lists it; CONTRIBUTING.md says what lies where.

# Not quiet: the first build takes minutes. Without `--package`, so that the tests need no other build of what the tools depend on.
TOOL := cargo run --locked --bin
TRIPLE := $(shell uname -m)-unknown-linux-gnu
# YES=1 says yes to what the demo asks. RDMA=1: over RDMA, between two virtual machine nodes of the local Kubernetes.
DEMO := $(TOOL) demo -- $(if $(RDMA),--rdma) $(if $(CONTEXT),--context $(CONTEXT)) $(if $(REGISTRY),--registry $(REGISTRY)) $(if $(YES),--yes)

help: ## This list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 20

demo: ## A local Kubernetes, the chart, a pool and two stock pods. RDMA=1: over Soft-RoCE. CONTEXT=… REGISTRY=…: your cluster
	@$(DEMO) up

demo-down: ## Removes what `make demo` made. CONTEXT=…: from your cluster
	@$(DEMO) down

test: ## Every suite, reduced counts; prints the time of each beside its budget
	@$(TOOL) suites -- test

soak: ## Every suite at full counts, for hours; docs/soak.md keeps the results. ONLY=a,b: some suites
	@$(TOOL) suites -- soak $(if $(ONLY),--only $(ONLY))

lint: ## Format and lints only
	@$(TOOL) suites -- test --only lint

BENCH := cargo run --quiet --release --package mooncake-bench --
bench: ## Figures: ours beside stock and bare sockets, on loopback and on a cluster, and both masters; what it costs at work and at rest
	@$(BENCH) goals
	@$(BENCH) store
	@$(TOOL) figures

cli: ## kubectl-mooncake, one static binary; prints its path. docs/cli.md says what it shows
	@RUSTC_WORKSPACE_WRAPPER=$(CURDIR)/e2e/src/product/rustc.sh cargo build --quiet --release --locked --package mooncake-cli \
		--bin kubectl-mooncake --target $(TRIPLE)
	@echo $${CARGO_TARGET_DIR:-target}/$(TRIPLE)/release/kubectl-mooncake

images: ## The images as OCI archives. REGISTRY=…: pushes them and writes images.yaml for helm install
	@$(TOOL) demo -- images $(if $(REGISTRY),--push $(REGISTRY))

.PHONY: help demo demo-down test soak lint bench cli images
.DEFAULT_GOAL := help

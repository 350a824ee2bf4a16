# Everything starts here. `make` lists it; CONTRIBUTING.md says what lies where.

TOOL := cargo run --quiet --package mooncake-e2e --bin
# The unmodified wheel, unpacked.
STOCK := $(HOME)/.cache/mooncake-k8s/stock-0.3.13.post1
# YES=1 says yes to what the demo asks.
DEMO := $(TOOL) demo -- $(if $(CONTEXT),--context $(CONTEXT)) $(if $(REGISTRY),--registry $(REGISTRY)) $(if $(YES),--yes)

help: ## This list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 20

demo: ## A local Kubernetes, the chart, a pool and two stock pods. CONTEXT=… REGISTRY=…: your cluster
	@$(DEMO) up

demo-down: ## Removes what `make demo` made. CONTEXT=…: from your cluster
	@$(DEMO) down

test: ## Every suite, reduced counts, within the budgets that it prints
	@$(TOOL) suites -- test

soak: ## Every suite at full counts, for hours; writes docs/soak.md
	@$(TOOL) suites -- soak

lint: ## Format and lints only
	@$(TOOL) suites -- test --only lint

bench: $(STOCK) ## Figures: a stock client against our segment, a stock one and a bare socket
	@cargo run --quiet --release --package mooncake-bench -- --stock $(STOCK)

$(STOCK):
	@python3 -m pip install --quiet --no-deps --target $@ mooncake-transfer-engine-non-cuda==0.3.13.post1

images: ## The images as OCI archives; prints their paths
	@$(TOOL) demo -- images

.PHONY: help demo demo-down test soak lint bench images
.DEFAULT_GOAL := help

//! Grants, maps, places and releases the memory of a pool.

use std::sync::Arc;

use crds::cluster;
use crds::node::PoolAssignment;
use crds::pool_memory::MOST_LEDGER;
use crds::reason::Reason;
use store::Ledger;
use sys::mem::{PageSize, Region};

use crate::control::message::MemoryReport;
use crate::pod::failure::Failure;
use crate::pod::ledger::LedgerMemory;
use crate::pod::numa;
use crate::pod::step::Step;
use crate::pod::{Pod, Served};
use pool::handover::EXTENT_LIMIT;
use pool::handover::message::{ExtentState, Request};

impl Pod {
    /// Returns what the pod has of the node's memory.
    pub(in crate::pod) fn memory_report(&self) -> MemoryReport {
        let refused = matches!(&self.failure, Some((_, failure)) if failure.is_refusal());
        let left = |extent: &ExtentState| extent.length.saturating_sub(extent.touched);
        let left = if refused {
            // A rejected pod touches nothing.
            0
        } else if self.holds && self.extents.is_empty() {
            // Its extents are not known yet.
            self.assignment.size.0
        } else {
            self.extents.iter().map(left).sum()
        };
        MemoryReport {
            holds: self.holds,
            untouched: to_touch(&self.assignment, left),
            mapped: !self.memory.is_empty() || self.still_mapped() > 0,
        }
    }

    fn still_mapped(&self) -> usize {
        let mapped = self.mapped.iter();
        mapped.filter(|region| region.strong_count() > 0).count()
    }

    fn page_size(&self) -> PageSize {
        match self.assignment.page_size {
            cluster::PageSize::Base => PageSize::Base,
            cluster::PageSize::Huge2Mi => PageSize::Huge2Mi,
            cluster::PageSize::Huge1Gi => PageSize::Huge1Gi,
        }
    }

    fn plan(&self) -> Vec<numa::Extent> {
        let policy = self.assignment.numa_policy;
        let nodes = &self.context.memory_nodes;
        numa::plan(self.assignment.size.0, self.page_size(), policy, nodes)
    }

    pub(super) async fn grant(&mut self, step: &Step) -> Result<(), Failure> {
        let touch = to_touch(&self.assignment, self.assignment.size.0);
        if let Some(held) = self.context.agent.grant(touch).await? {
            self.predecessor.get_or_insert_with(std::time::Instant::now);
            return Err(Failure::new(step.reason, held));
        }
        self.predecessor = None;
        self.holds = true;
        let lengths: Vec<u64> = self.plan().iter().map(|extent| extent.length).collect();
        let page_bytes = self.page_size().bytes();
        let extents = lengths.clone();
        self.request(Request::Grant {
            extents,
            page_bytes,
        })
        .await?;
        tracing::info!(
            extents = lengths.len(),
            bytes = self.assignment.size.0,
            "memory granted"
        );
        self.extents = lengths
            .into_iter()
            .map(|length| ExtentState { length, touched: 0 })
            .collect();
        Ok(())
    }

    /// Receives the extents, checks and maps them, and sets their preferred NUMA nodes.
    pub(super) async fn map(&mut self) -> Result<(), Failure> {
        let declared: Vec<u64> = self.extents.iter().map(|extent| extent.length).collect();
        let sum = declared
            .iter()
            .try_fold(0_u64, |sum, length| sum.checked_add(*length));
        if sum != Some(self.assignment.size.0) || declared.len() > EXTENT_LIMIT {
            let message = format!(
                "the pool process has {} extents with {sum:?} bytes in total; {} bytes were granted",
                declared.len(),
                self.assignment.size.0
            );
            return Err(Failure::new(Reason::DescriptorWrongSize, message));
        }
        let page = self.page_size();
        let mut memory = Vec::with_capacity(declared.len());
        for (index, length) in declared.iter().enumerate() {
            let request = Request::Extent { index };
            let answer = self.client()?.descriptors::<1>(request).await;
            let [fd] = self.checked_answer(answer)?;
            memory.push(Arc::new(Region::map(fd, *length, page)?));
        }
        let plan = self.plan();
        let same_shape = plan.iter().map(|extent| extent.length).eq(declared);
        for (extent, region) in plan.iter().zip(&memory) {
            if let (Some(node), true) = (extent.node, same_shape) {
                region.prefer_numa_node(node)?;
            }
        }
        self.ledger = self.open_ledger().await?;
        self.mapped = memory.iter().map(Arc::downgrade).collect();
        self.memory = memory;
        Ok(())
    }

    /// Receives the ledger. A pool without one, or with one that cannot be read, is served: its keys are lost with the
    /// index of the master.
    async fn open_ledger(&mut self) -> Result<Option<Arc<Ledger>>, Failure> {
        let Some(bytes) = self.attached.as_ref().and_then(|attached| attached.ledger) else {
            tracing::warn!(
                "the pool pod has no ledger: its keys are lost when the master restarts. Replace the pod to get one"
            );
            return Ok(None);
        };
        let answer = self.client()?.descriptors::<1>(Request::Ledger).await;
        let [fd] = self.checked_answer(answer)?;
        if !(1..=MOST_LEDGER).contains(&bytes) {
            tracing::error!(
                bytes,
                most = MOST_LEDGER,
                "the pool pod has handed over a ledger of a wrong size: it is not used, and keys are lost when the master restarts. Use pool and agent images of one release"
            );
            return Ok(None);
        }
        let region = Region::map(fd, bytes, PageSize::Base)?;
        let memory = LedgerMemory::new(region);
        match memory.map_err(Into::into).and_then(Ledger::open) {
            Ok(ledger) => {
                tracing::info!(bytes, records = ledger.records(), "ledger opened");
                Ok(Some(Arc::new(ledger)))
            }
            Err(error) => {
                tracing::error!(%error, "the ledger is not used: keys are lost when the master restarts");
                Ok(None)
            }
        }
    }

    pub(super) fn lengths(&self) -> Vec<u64> {
        self.extents.iter().map(|extent| extent.length).collect()
    }

    /// Stops serving and unmaps the memory when no transfer can touch it.
    pub(super) async fn release(&mut self) -> Result<(), Failure> {
        let registering = self.registering.as_ref();
        if let Some(running) = registering.filter(|one| one.running().is_some()) {
            running.stop();
            return Err(Failure::new(
                Reason::PreviousPoolNotReleased,
                "RDMA devices still register an extent of this pod",
            ));
        }
        *self.context.counted.lock() = None;
        self.withdraw().await;
        let mut unfenced = None;
        let unregistered = self.registering.take().map(|one| Served {
            regions: one.regions(),
            endpoint: one.endpoint,
        });
        // Devices may have registered a part of what was not served over them yet.
        if let Some(served) = self.served.take().or(unregistered) {
            for region in &served.regions {
                // A device takes up to a minute to end its access, or does not end it.
                let removed = self.with_heartbeats(served.endpoint.remove_region(*region));
                if let Err(error) = removed.await {
                    unfenced.get_or_insert(error);
                }
            }
        }
        self.mounted.set(Vec::new());
        self.memory.clear();
        self.ledger = None;
        self.admitted = None;
        if self.unmounted && !self.draining && self.context.pool.runs() {
            // The pod may be listed again. A successor would take the unmounted segments over.
            if let Err(failure) = self.change_master().await {
                tracing::warn!("no new epoch after the unmount: {}", failure.message);
            }
        }
        if let Some(error) = unfenced {
            // A pod that drains is not listed again: the memory ends with its processes.
            if !self.draining {
                return Err(Failure::unfenced("releasing the memory", &error));
            }
            tracing::warn!(%error, "an RDMA device may use the memory until this process ends");
        }
        match self.still_mapped() {
            0 => {
                tracing::info!("memory released");
                Ok(())
            }
            left => Err(Failure::new(
                Reason::PreviousPoolNotReleased,
                format!("transfers still use {left} extents of this pod"),
            )),
        }
    }
}

/// Returns how many of `bytes` are touched page by page: huge pages are already reserved.
fn to_touch(assignment: &PoolAssignment, bytes: u64) -> u64 {
    match assignment.page_size {
        cluster::PageSize::Base => bytes,
        cluster::PageSize::Huge2Mi | cluster::PageSize::Huge1Gi => 0,
    }
}

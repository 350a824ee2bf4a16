//! A pool's memory: granted, taken over, placed, mapped, and given back.

use std::path::Path;
use std::sync::Arc;

use crds::cluster;
use crds::node::PoolAssignment;
use crds::reason::Reason;
use sys::mem::{NumaPolicy, PageSize, Region};

use crate::agent::ledger::Refusal;
use crate::agent::pool::driver::Pod;
use crate::agent::pool::failure::Failure;
use crate::agent::pool::step::Step;
use crate::agent::{numa, room};
use crate::handover::EXTENT_LIMIT;
use crate::handover::message::{ExtentState, Request};

/// How much of so many bytes is touched page by page: huge pages were set aside for pools before.
pub(in crate::agent::pool) fn to_touch(assignment: &PoolAssignment, bytes: u64) -> u64 {
    match assignment.page_size {
        cluster::PageSize::Base => bytes,
        cluster::PageSize::Huge2Mi | cluster::PageSize::Huge1Gi => 0,
    }
}

impl Pod {
    /// Tells the ledger how much of the memory that it has is still to be touched.
    pub(in crate::agent::pool) fn count_untouched(&self) {
        let left = |extent: &ExtentState| extent.length.saturating_sub(extent.touched);
        let left = self.extents.iter().map(left).sum();
        let left = to_touch(&self.assignment, left);
        self.context.ledger.untouched(&self.uid, left);
    }

    fn page_size(&self) -> PageSize {
        match self.assignment.page_size {
            cluster::PageSize::Base => PageSize::Base,
            cluster::PageSize::Huge2Mi => PageSize::Mib2,
            cluster::PageSize::Huge1Gi => PageSize::Gib1,
        }
    }

    fn plan(&self) -> Vec<numa::Extent> {
        let nodes = numa::nodes_with_memory(Path::new("/sys"));
        let policy = self.assignment.numa_policy;
        numa::plan(self.assignment.size.0, self.page_size(), policy, &nodes)
    }

    pub(super) async fn grant(&mut self, step: &Step) -> Result<(), Failure> {
        let context = Arc::clone(&self.context);
        let touch = to_touch(&self.assignment, self.assignment.size.0);
        let available = || room::available(&context.proc);
        let granted = context.ledger.grant(&self.uid, touch, available);
        if let Err(refusal @ Refusal::Held(_)) = &granted {
            self.predecessor.get_or_insert_with(std::time::Instant::now);
            return Err(Failure::new(step.reason, refusal));
        }
        self.predecessor = None;
        granted.map_err(|refusal| Failure::new(Reason::MemoryUnavailable, refusal))?;
        let lengths: Vec<u64> = self.plan().iter().map(|extent| extent.length).collect();
        let page_bytes = self.page_size().bytes();
        let extents = lengths.clone();
        self.ask(Request::Grant {
            extents,
            page_bytes,
        })
        .await?;
        tracing::info!(
            pod = self.assignment.pod_name,
            uid = self.uid,
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

    /// Takes the extents, checks and maps them, and says where their pages shall lie.
    pub(super) async fn map(&mut self) -> Result<(), Failure> {
        let declared: Vec<u64> = self.extents.iter().map(|extent| extent.length).collect();
        let sum = declared
            .iter()
            .try_fold(0_u64, |sum, length| sum.checked_add(*length));
        if sum != Some(self.assignment.size.0) || declared.len() > EXTENT_LIMIT {
            let message = format!(
                "the pool has {} extents of {sum:?} bytes together, {} bytes were granted",
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
            let [fd] = self.heard(answer)?;
            memory.push(Arc::new(Region::map(fd, *length, page)?));
        }
        let plan = self.plan();
        let same_shape = plan.iter().map(|extent| extent.length).eq(declared);
        for (extent, region) in plan.iter().zip(&memory) {
            if let (Some(node), true) = (extent.node, same_shape) {
                region.set_numa_policy(&NumaPolicy::Prefer(node))?;
            }
        }
        self.context.ledger.mapped(&self.uid, &memory);
        self.memory = memory;
        Ok(())
    }

    pub(super) fn lengths(&self) -> Vec<u64> {
        self.memory.iter().map(|region| region.length()).collect()
    }

    /// Serves no more, and unmaps once nothing can touch the memory.
    pub(super) async fn release(&mut self) -> Result<(), Failure> {
        if let Some(served) = self.served.take() {
            for region in &served.regions {
                if let Err(error) = served.host.remove_region(*region).await {
                    tracing::warn!(uid = self.uid, %error, "removing a region");
                }
            }
        }
        self.places.set(Vec::new());
        self.memory.clear();
        self.admission = None;
        self.admitted = None;
        match self.context.ledger.still_mapped(&self.uid) {
            0 => {
                tracing::info!(
                    pod = self.assignment.pod_name,
                    uid = self.uid,
                    "memory released"
                );
                Ok(())
            }
            left => Err(Failure::new(
                Reason::PreviousPoolNotReleased,
                format!("{left} extents of this pod are still in use by transfers"),
            )),
        }
    }
}

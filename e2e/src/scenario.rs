//! Parts that scenarios share: the test cluster, a namespace per scenario that is deleted afterwards, handles for
//! nodes, pools and policies, stock pods that carry out work, and waits that report what they saw last.

pub mod audit;
mod bounds;
mod charges;
mod cluster_access;
mod command_pod;
mod events;
mod eventually;
mod evidence;
mod in_namespace;
mod load;
pub mod master;
pub mod metadata;
pub mod metrics;
mod namespace;
mod node;
mod policy;
pub mod pool;
pub mod processes;
pub mod product;
pub mod reports;
mod stock_pod;
mod test_cluster;
mod watches;

pub use bounds::{Pace, within};
pub use charges::Charges;
pub use cluster_access::cluster_names;
pub use command_pod::CommandPod;
pub use eventually::{Seen, eventually};
pub use in_namespace::with_namespace;
pub use load::{Effort, Load, LoadReport};
pub use metrics::Metrics;
pub use namespace::{Namespace, is_ready};
pub use node::Node;
pub use policy::Policy;
pub use pool::Pool;
pub use product::Product;
pub use stock_pod::{Report, StockPod, StockWork};
pub use test_cluster::TestCluster;
pub use watches::watches_resume;

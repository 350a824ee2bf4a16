//! What the stories share: a stage (a cluster, found or made), a namespace for each story that cleans
//! up and shows its evidence when it fails, its nodes and what is said of them, stock peers under orders,
//! waits that say what they saw.

pub mod audit;
mod charges;
mod events;
mod evidence;
mod load;
pub mod master;
mod namespace;
mod node;
mod orders;
mod policy;
pub mod pool;
pub mod processes;
pub mod product;
mod scale;
mod stage;
mod stock;
mod turn;
mod wait;

pub use charges::Charges;
pub use load::{Effort, Load, LoadReport};
pub use namespace::{Namespace, with_namespace};
pub use node::Node;
pub use orders::Ordered;
pub use policy::Policy;
pub use pool::Pool;
pub use product::Product;
pub use scale::Scale;
pub use stage::Stage;
pub use stock::{Report, StockPod, StockWork};
pub use turn::names as stages;
pub use wait::{Seen, eventually};

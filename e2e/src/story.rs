//! What the stories share: a stage (a cluster, found or made), a namespace for each story that cleans
//! up and shows its evidence when it fails, stock peers under orders, waits that say what they saw.

mod evidence;
mod namespace;
mod stage;
mod stock;
mod wait;

pub use namespace::{Namespace, with_namespace};
pub use stage::Stage;
pub use stock::{Report, StockPod, StockWork};
pub use wait::{Seen, eventually};

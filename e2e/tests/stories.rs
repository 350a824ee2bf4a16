//! Everything that must end well, told on a real Kubernetes with the product installed by Helm and
//! stock pods as witnesses. Each needs root and 4 GiB; they take turns on one cluster.

mod stories {
    mod access;
    mod agent;
    mod control_plane;
    mod deletion;
    mod healthy;
    mod master;
    mod nodes;
    mod pool_pod;
    mod refusals;
}

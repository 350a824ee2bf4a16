//! Everything that must end well, told on a real Kubernetes with the product installed by Helm and
//! stock pods as witnesses. Each needs root and 4 GiB. They share one cluster; a story that disturbs
//! the others has it alone.

mod stories {
    mod access;
    mod agent;
    mod agent_away;
    mod ailing;
    mod api_server_away;
    mod at_rest;
    mod containers;
    mod control_plane;
    mod cut;
    mod deletion;
    mod devices;
    mod faults;
    mod generation;
    mod healthy;
    mod hugepages;
    mod inventory;
    mod ipv6;
    mod late;
    mod loaders;
    mod machine;
    mod master;
    mod nodes;
    mod operator_away;
    mod policy;
    mod pool_pod;
    mod preflight;
    mod rails;
    mod refusals;
    mod release;
    mod sick;
}

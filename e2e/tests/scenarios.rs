//! End-to-end scenarios on a real Kubernetes cluster, with the product installed by Helm and stock pods as clients. Each
//! needs root and 4 GiB. They share one cluster, which a scenario that disturbs others uses exclusively.

mod scenarios {
    mod access_control;
    mod access_grants;
    mod agent_missing;
    mod agent_restart;
    mod api_server_outage;
    mod api_validation;
    mod built_in_master;
    mod container_compatibility;
    mod deletion;
    mod engine_config_loaders;
    mod engine_process;
    mod engine_processor_time;
    mod etcd_tls;
    mod examples;
    mod helm_release;
    mod hugepages_policy;
    mod idle_cluster;
    mod injected_node_faults;
    mod inventory;
    mod master_findings;
    mod master_release_mismatch;
    mod master_restart;
    mod master_type;
    mod metadata_faults;
    mod metadata_service;
    mod network_partition;
    mod node_drain;
    mod node_policy;
    mod operator_failover;
    mod operator_outage;
    mod pool_pod_restart;
    mod pool_resize;
    mod pool_scheduling;
    mod preflight_checks;
    mod rdma_device_claims;
    mod rdma_port_ipv6;
    mod recorded_hardware_faults;
    mod replica_tasks;
    mod soft_roce_devices;
    mod stack_image;
    mod stale_clients;
    mod stock_engines;
    mod stock_operations;
    mod tenants;
    mod two_masters;
    mod unhealthy_device;
    mod version_skew;
    mod vm_node;
    mod vm_pool_memory;
    mod vm_rdma_kills;
    mod vm_rdma_pool;
    mod vm_second_engine;
    mod vm_systemd;
}

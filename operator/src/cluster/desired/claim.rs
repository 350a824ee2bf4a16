//! The ResourceClaimTemplate by which each injected pod of a cluster on RDMA gets a device.

use crds::names;
use k8s_openapi::api::resource::v1::{
    DeviceClaim, DeviceRequest, ExactDeviceRequest, ResourceClaimSpec, ResourceClaimTemplate,
    ResourceClaimTemplateSpec,
};

use crate::cluster::desired::metadata;
use crate::cluster::validate::Valid;

/// One device of the class. The spec of a ResourceClaimTemplate is immutable.
pub fn template(cluster: &Valid) -> ResourceClaimTemplate {
    let request = DeviceRequest {
        name: "hca".to_owned(),
        exactly: Some(ExactDeviceRequest {
            device_class_name: names::DEVICE_CLASS.to_owned(),
            allocation_mode: Some("ExactCount".to_owned()),
            count: Some(1),
            ..ExactDeviceRequest::default()
        }),
        ..DeviceRequest::default()
    };
    ResourceClaimTemplate {
        metadata: metadata(cluster, names::claim_template(&cluster.name)),
        spec: ResourceClaimTemplateSpec {
            metadata: None,
            spec: ResourceClaimSpec {
                devices: Some(DeviceClaim {
                    requests: Some(vec![request]),
                    ..DeviceClaim::default()
                }),
            },
        },
    }
}

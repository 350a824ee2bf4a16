//! The master instance in which a node mounts its segments, as written in MooncakeNode: the UID of the
//! master's pod and how often the node's segments were unmounted from it.
//!
//! A node must not reuse addresses that the master has dropped. So after an unmount it gets another
//! instance of the same master, and the agent starts a new epoch.

/// The name of an instance.
pub fn name(pod_uid: &str, removals: u32) -> String {
    if removals == 0 {
        pod_uid.to_owned()
    } else {
        format!("{pod_uid}/{removals}")
    }
}

/// The master pod of an instance.
pub fn pod_uid(instance: &str) -> &str {
    instance.split_once('/').map_or(instance, |(uid, _)| uid)
}

/// How often the node's segments were unmounted from that master.
pub fn removals(instance: &str) -> u32 {
    instance
        .split_once('/')
        .and_then(|(_, count)| count.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_read_back_as_it_was_named() {
        assert_eq!(name("m1", 0), "m1");
        assert_eq!(name("m1", 2), "m1/2");
        for count in [0, 1, 7] {
            let instance = name("m1", count);
            assert_eq!((pod_uid(&instance), removals(&instance)), ("m1", count));
        }
    }
}

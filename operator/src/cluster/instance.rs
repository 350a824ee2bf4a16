//! Which life of a master one node mounts in, as it stands in a MooncakeNode: the UID of the master's
//! pod and, after the node's segments were taken out of it, how often that happened.
//!
//! A node that was lost must not go on under addresses that the master has given up, so it is given
//! another instance of the same master: the agent begins a new data epoch there.

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

/// How often the node's segments were taken out of that master.
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

//! Takes every privilege from the calling thread.

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, Gid, Uid};

use super::{Error, Identity};

/// Changes the identity of the calling thread and empties all of its capability sets. Neither it nor a program that
/// it executes can get any back.
///
/// # Errors
/// [`Error::Identity`] for user or group 0 and for -1, which the kernel takes as "no change"; [`Error::Call`] without
/// the capabilities for the step.
pub(super) fn drop_all(identity: Identity) -> Result<(), Error> {
    let Identity { uid, gid } = identity;
    if [uid, gid].iter().any(|id| matches!(*id, 0 | u32::MAX)) {
        return Err(Error::Identity { uid, gid });
    }
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    rustix::process::setrlimit(Resource::Core, none)
        .map_err(Error::call("set the limit of core dumps to 0"))?;
    // First, while the process has the capability to do so.
    empty_bounding_set().map_err(Error::call("empty the bounding capability set"))?;
    rustix::thread::clear_ambient_capability_set()
        .map_err(Error::call("empty the ambient capability set"))?;
    rustix::thread::set_thread_groups(&[])
        .map_err(Error::call("leave the supplementary groups"))?;
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
    rustix::thread::set_thread_res_gid(group, group, group)
        .map_err(Error::call("change the group"))?;
    rustix::thread::set_thread_res_uid(user, user, user).map_err(Error::call("change the user"))?;
    let empty = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    // A change of user leaves the inheritable set, and with SECBIT_KEEP_CAPS also the permitted one.
    rustix::thread::set_capabilities(None, empty)
        .map_err(Error::call("empty the capability sets"))?;
    rustix::thread::set_no_new_privs(true).map_err(Error::call("set no_new_privs"))?;
    // Last, as a change of user may set it. A core dump that is piped to a program ignores the limit of
    // core dumps, but needs this.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(Error::call("make the process not dumpable"))
}

/// Drops each capability that the kernel knows, also those that this program does not.
fn empty_bounding_set() -> rustix::io::Result<()> {
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // Past the last capability of this kernel.
            Err(Errno::INVAL) if number > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

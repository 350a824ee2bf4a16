//! The pod and container of a process, from its cgroup, which the process cannot choose.

/// The pod and container in the text of `/proc/<pid>/cgroup`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub pod_uid: String,
    /// The runtime's name of the container; absent for a process outside of containers.
    pub container: Option<String>,
}

/// Parses the text of `/proc/<pid>/cgroup` for both cgroup drivers of the kubelet: `.../pod<uid>/...` and
/// `...-pod<uid with _ for ->.slice/...`. None for a process in the cgroups of two pods.
pub fn place(cgroup: &str) -> Option<Place> {
    let mut place: Option<Place> = None;
    for line in cgroup.lines() {
        let mut parts = line.split('/').peekable();
        while let Some(part) = parts.next() {
            let Some(pod_uid) = of_part(part) else {
                continue;
            };
            let container = parts.peek().filter(|next| !next.is_empty());
            let container = container.map(|next| (*next).to_owned());
            match &mut place {
                Some(known) if known.pod_uid != pod_uid => return None,
                Some(known) => known.container = known.container.take().or(container),
                None => place = Some(Place { pod_uid, container }),
            }
        }
    }
    place
}

/// One hierarchy of cgroups in which a process is below a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodCgroup<'a> {
    /// Controllers of a hierarchy of version 1, separated by commas; empty for version 2.
    pub controllers: &'a str,
    /// Path of the pod's cgroup.
    pub pod: &'a str,
    /// Path from there to the cgroup of the process; empty for the pod's own.
    pub container: &'a str,
}

/// Returns the pod's cgroup of each hierarchy from the text of `/proc/<pid>/cgroup`.
pub fn of_pod(cgroup: &str) -> Vec<PodCgroup<'_>> {
    let hierarchy = |line: &'_ str| -> Option<(usize, usize, usize)> {
        let mut fields = line.splitn(3, ':');
        let number = fields.next()?.len() + 1;
        let path = number + fields.next()?.len() + 1;
        let mut end = path;
        for part in fields.next()?.split('/') {
            end += part.len();
            if of_part(part).is_some() {
                return Some((number, path, end));
            }
            end += 1;
        }
        None
    };
    let pods = cgroup.lines().filter_map(|line| {
        let (number, path, end) = hierarchy(line)?;
        Some(PodCgroup {
            controllers: line.get(number..path - 1)?,
            pod: line.get(path..end)?,
            container: line.get(end..)?.trim_start_matches('/'),
        })
    });
    pods.collect()
}

fn of_part(part: &str) -> Option<String> {
    let part = part.strip_suffix(".slice").unwrap_or(part);
    let (before, uid) = part.rsplit_once("pod")?;
    let starts_a_word = before.is_empty() || before.ends_with('-');
    let uid = uid.replace('_', "-");
    (starts_a_word && is_uid(&uid)).then_some(uid)
}

/// A UUID, or the 32 hexadecimal digits of a static pod.
fn is_uid(text: &str) -> bool {
    let digits = text.bytes().filter(|byte| *byte != b'-');
    digits.clone().count() == 32 && digits.clone().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0b7c1a52-3d4e-4f60-8a9b-0c1d2e3f4a5b";

    #[test]
    fn the_pod_is_found_under_both_cgroup_drivers_and_both_cgroup_versions() {
        let slice = UID.replace('-', "_");
        for (text, container) in [
            (
                format!(
                    "12:memory:/kubepods/burstable/pod{UID}/abcdef\n11:cpu:/kubepods/burstable/pod{UID}/abcdef\n"
                ),
                Some("abcdef"),
            ),
            (
                format!(
                    "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice/cri-containerd-ab.scope\n"
                ),
                Some("cri-containerd-ab.scope"),
            ),
            (format!("0::/../../pod{UID}/abcdef/inner\n"), Some("abcdef")),
            (format!("2:cpu:/pod{UID}\n1:memory:/pod{UID}/x"), Some("x")),
            (format!("0::/kubepods-pod{slice}.slice"), None),
        ] {
            let place = place(&text).unwrap();
            assert_eq!(place.pod_uid, UID, "{text}");
            assert_eq!(place.container.as_deref(), container, "{text}");
        }
    }

    #[test]
    fn the_pod_and_the_rest_of_each_hierarchy_are_separated() {
        let text = format!(
            "5:cpu,cpuacct:/kubepods/burstable/pod{UID}/ab\n4:name=systemd:/kubepods/pod{UID}\n3:rdma:/\n0::/a/pod{UID}/x/y\n"
        );
        let found: Vec<_> = of_pod(&text)
            .into_iter()
            .map(|of| (of.controllers, of.pod.to_owned(), of.container))
            .collect();
        assert_eq!(
            found,
            [
                ("cpu,cpuacct", format!("/kubepods/burstable/pod{UID}"), "ab"),
                ("name=systemd", format!("/kubepods/pod{UID}"), ""),
                ("", format!("/a/pod{UID}"), "x/y"),
            ]
        );
    }

    #[test]
    fn a_path_that_only_resembles_a_pod_is_none() {
        let other = UID.replace('0', "1");
        for text in [
            String::new(),
            "0::/user.slice/session-1.scope".to_owned(),
            "0::/kubepods/burstable/podium".to_owned(),
            format!("0::/kubepods/tripod{UID}/x"),
            format!("1:a:/kubepods/pod{UID}/x\n2:b:/kubepods/pod{other}/x"),
            format!("0::/kubepods/pod{UID}/pod{other}/x"),
        ] {
            assert_eq!(place(&text), None, "{text}");
        }
    }
}

//! Formats ages as kubectl does.

use jiff::Timestamp;

/// `45s`, `12m`, `3h`, `9d`; `0s` for a time in the future.
pub fn age(then: Timestamp, now: Timestamp) -> String {
    let seconds = now.as_second().saturating_sub(then.as_second()).max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn age_has_the_format_of_kubectl() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        for (ago, text) in [
            (-5, "0s"),
            (45, "45s"),
            (130, "2m"),
            (8_000, "2h"),
            (400_000, "4d"),
        ] {
            let then = Timestamp::from_second(1_000_000 - ago).unwrap();
            assert_eq!(age(then, now), text);
        }
    }
}

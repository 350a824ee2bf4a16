//! Amounts of Kubernetes (`500m`, `0.5`, `1Gi`, `2e9`). The API server rewrites them, so they are compared by amount.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Billionths in one. Kubernetes has no smaller part.
const BILLION: u128 = 1_000_000_000;

/// The suffixes of Kubernetes, and how many billionths each is.
const SUFFIXES: [(&str, u128); 16] = [
    ("", BILLION),
    ("n", 1),
    ("u", 1_000),
    ("m", 1_000_000),
    ("k", BILLION * 1_000),
    ("M", BILLION * 1_000_000),
    ("G", BILLION * 1_000_000_000),
    ("T", BILLION * 1_000_000_000_000),
    ("P", BILLION * 1_000_000_000_000_000),
    ("E", BILLION * 1_000_000_000_000_000_000),
    ("Ki", BILLION << 10),
    ("Mi", BILLION << 20),
    ("Gi", BILLION << 30),
    ("Ti", BILLION << 40),
    ("Pi", BILLION << 50),
    ("Ei", BILLION << 60),
];

/// The amount in billionths, rounded up as the API server does. `None` where the text is no amount, or is negative or too large.
pub fn billionths(text: &str) -> Option<u128> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, suffix) = text.split_at(end.unwrap_or(text.len()));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    // An empty part is zero. Another point in the fraction is no digit.
    let digits: u128 = format!("0{whole}{fraction}").parse().ok()?;
    let (scale, power) = match SUFFIXES.iter().find(|(known, _)| *known == suffix) {
        Some((_, scale)) => (*scale, 0),
        None => (BILLION, suffix.strip_prefix(['e', 'E'])?.parse().ok()?),
    };
    let amount = digits.checked_mul(scale)?;
    let power = i32::checked_sub(power, i32::try_from(fraction.len()).ok()?)?;
    let factor = 10_u128.checked_pow(power.unsigned_abs())?;
    match power {
        0.. => amount.checked_mul(factor),
        _ => Some(amount.div_ceil(factor)),
    }
}

/// The amount in thousandths, rounded up.
pub fn thousandths(quantity: &Quantity) -> Option<u128> {
    Some(billionths(&quantity.0)?.div_ceil(BILLION / 1_000))
}

/// The amount in bytes, rounded up.
pub fn bytes(quantity: &Quantity) -> Option<u64> {
    u64::try_from(billionths(&quantity.0)?.div_ceil(BILLION)).ok()
}

/// A number of processors as the API server returns it: one text for each amount. What is no amount is returned as it is.
pub fn processors(quantity: &Quantity) -> Quantity {
    Quantity(match thousandths(quantity) {
        None => quantity.0.clone(),
        Some(amount) if amount.is_multiple_of(1_000) => (amount / 1_000).to_string(),
        Some(amount) => format!("{amount}m"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_parsed_as_in_kubernetes() {
        for (text, amount) in [
            ("0", 0),
            ("1", BILLION),
            ("500m", BILLION / 2),
            ("0.5", BILLION / 2),
            (".5", BILLION / 2),
            ("1.", BILLION),
            ("0.0000000001", 1),
            ("7n", 7),
            ("7u", 7_000),
            ("1.5Gi", (3 * BILLION) << 29),
            ("16Ei", BILLION << 64),
            ("1E", BILLION * 1_000_000_000_000_000_000),
            ("1E3", BILLION * 1_000),
            ("2e9", BILLION * 2_000_000_000),
            ("1.5e+3", BILLION * 1_500),
            ("5e-1", BILLION / 2),
        ] {
            assert_eq!(billionths(text), Some(amount), "{text}");
        }
    }

    #[test]
    fn other_texts_are_no_amounts() {
        let texts = [
            "", ".", "m", "Gi", "-1", "1GB", "1 Gi", " 1", "1.2.3", "e3", "1e", "1e999", "1e1.5",
            "one",
        ];
        for text in texts {
            assert_eq!(billionths(text), None, "{text}");
        }
    }

    #[test]
    fn each_number_of_processors_has_one_text() {
        for (text, canonical) in [
            ("250m", "250m"),
            ("500m", "500m"),
            ("1", "1"),
            ("64", "64"),
            ("0.5", "500m"),
            ("1.0", "1"),
            ("1000m", "1"),
            ("0500m", "500m"),
            ("1.25", "1250m"),
            ("many", "many"),
        ] {
            assert_eq!(
                processors(&Quantity(text.to_owned())).0,
                canonical,
                "{text}"
            );
        }
    }
}

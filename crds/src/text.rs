//! Texts of messages: the beginning of a list, and the beginning of a long text.

use std::fmt::Display;

/// Joins the first `max` names with `, `, and counts the others: `a, b and 3 more`.
pub fn first_names<T: Display>(names: impl IntoIterator<Item = T>, max: usize) -> String {
    first(names, max, ", ", " and")
}

/// Joins the first `max` clauses with `; `, and counts the others: `a: absent; b: busy; and 3 more`.
pub fn first_clauses<T: Display>(clauses: impl IntoIterator<Item = T>, max: usize) -> String {
    first(clauses, max, "; ", "; and")
}

fn first<T: Display>(
    items: impl IntoIterator<Item = T>,
    max: usize,
    separator: &str,
    and: &str,
) -> String {
    let mut items = items.into_iter();
    let shown: Vec<String> = items
        .by_ref()
        .take(max)
        .map(|item| item.to_string())
        .collect();
    let shown = shown.join(separator);
    match items.count() {
        0 => shown,
        more => format!("{shown}{and} {more} more"),
    }
}

/// Returns the text, or its beginning with `...` in `max` bytes.
pub fn shorten(text: &str, max: usize) -> String {
    const MARK: &str = "...";
    if text.len() <= max {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(max.saturating_sub(MARK.len()));
    format!("{}{MARK}", &text[..end])
}

/// Cuts a text to at most `max` bytes, at the boundary of a character.
pub fn clip_bytes(text: &mut String, max: usize) {
    text.truncate(text.floor_char_boundary(max));
}

/// Returns the first `max` characters. The schemas of the custom resources count characters, not bytes.
pub fn clip_chars(text: &str, max: usize) -> String {
    text.chars().take(max).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_counts_what_it_does_not_show() {
        assert_eq!(first_names(["a"; 0], 2), "");
        assert_eq!(first_names(["a", "b"], 2), "a, b");
        assert_eq!(first_names(["a", "b", "c"], 2), "a, b and 1 more");
        assert_eq!(first_clauses(["a", "b"], 2), "a; b");
        assert_eq!(first_clauses(["a", "b", "c", "d"], 2), "a; b; and 2 more");
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(shorten("üüü", 6), "üüü");
        assert_eq!(shorten("üüüü", 7), "üü...");
        assert_eq!(shorten("üüüü", 6), "ü...");
        assert_eq!(clip_chars("üüü", 2), "üü");
        let mut text = "üüü".to_owned();
        clip_bytes(&mut text, 9);
        assert_eq!(text, "üüü");
        clip_bytes(&mut text, 3);
        assert_eq!(text, "ü");
    }
}

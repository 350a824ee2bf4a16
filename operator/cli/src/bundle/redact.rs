//! Removes credentials from text, such as a log: the second line of defence behind what is never collected. Pure.

/// What replaces a credential.
const REDACTED: &str = "(redacted)";
/// Words before a credential, in lower case. `=`, `:`, quotes and spaces may be between.
const MARKS: [&str; 8] = [
    "bearer", "password", "passwd", "secret", "token", "apikey", "api_key", "api-key",
];
/// Shortest credential behind a mark; shorter words are prose.
const SHORTEST: usize = 8;

/// The text without private keys, JSON web tokens, passwords in URLs, and words behind `password=` and the like.
pub(super) fn redact(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut in_key = false;
    for line in text.split_inclusive('\n') {
        if line.contains("-----BEGIN") && line.contains("PRIVATE KEY") {
            in_key = true;
            out.push_str(REDACTED);
            out.push('\n');
        }
        if in_key {
            in_key = !line.contains("-----END");
            continue;
        }
        out.push_str(&redact_line(line));
    }
    out
}

fn redact_line(line: &str) -> String {
    let line = replace_after(line, "eyJ", 0, |word| word.matches('.').count() == 2);
    let mut line = without_url_password(&line);
    for mark in MARKS {
        line = replace_after(&line, mark, mark.len(), |word| word.len() >= SHORTEST);
    }
    line
}

/// Replaces the word that begins `skip` bytes after `start`, wherever `start` occurs and `is_credential`.
fn replace_after(
    line: &str,
    start: &str,
    skip: usize,
    is_credential: impl Fn(&str) -> bool,
) -> String {
    let (mut out, mut rest) = (String::new(), line);
    let in_lower_case = skip > 0;
    loop {
        let found = match in_lower_case {
            true => rest.to_ascii_lowercase().find(start),
            false => rest.find(start),
        };
        let Some(found) = found else {
            return out + rest;
        };
        let behind = &rest[found + skip..];
        let separators: &[char] = &['=', ':', '"', '\'', ' ', '\\'];
        let gap = match skip {
            0 => 0,
            _ => behind.len() - behind.trim_start_matches(separators).len(),
        };
        let word = &behind[gap..];
        let end = word.find(|c: char| !is_part(c)).unwrap_or(word.len());
        let (word, after) = word.split_at(end);
        out.push_str(&rest[..found + skip + gap]);
        // `the token expired`: a word behind a space alone is prose.
        let assigned = skip == 0 || start == "bearer" || behind[..gap].contains(['=', ':']);
        match assigned && is_credential(word) {
            true => out.push_str(REDACTED),
            false => out.push_str(word),
        }
        if word.is_empty() && gap + skip == 0 {
            return out + after;
        }
        rest = after;
    }
}

/// Characters of base64, JSON web tokens and passwords.
fn is_part(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.+/=~!@#$%^&*".contains(c)
}

/// `https://user:password@host` without the user and the password.
fn without_url_password(line: &str) -> String {
    let (mut out, mut rest) = (String::new(), line);
    while let Some(found) = rest.find("://") {
        let (before, behind) = rest.split_at(found + 3);
        out.push_str(before);
        let end = behind.find(|c: char| c == '/' || c.is_whitespace() || c == '"');
        let authority = &behind[..end.unwrap_or(behind.len())];
        rest = behind;
        if let Some(at) = authority.rfind('@') {
            out.push_str(REDACTED);
            rest = &behind[at..];
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_removed_and_prose_is_kept() {
        for (text, wanted) in [
            (
                "Authorization: Bearer abcdef0123456789 x",
                "Authorization: Bearer (redacted) x",
            ),
            ("a eyJhbGci.eyJpc3Mi.c2lnbmF0 b", "a (redacted) b"),
            ("PASSWORD=hunter2hunter2", "PASSWORD=(redacted)"),
            (
                r#"{"token":"0123456789abcdef"}"#,
                r#"{"token":"(redacted)"}"#,
            ),
            (
                "https://me:hunter2@registry/x",
                "https://(redacted)@registry/x",
            ),
            ("the token expired yesterday", "the token expired yesterday"),
            ("secret: no", "secret: no"),
            (
                "https://kv-master.team.svc:50051",
                "https://kv-master.team.svc:50051",
            ),
            ("eyJ is the start", "eyJ is the start"),
            (
                "a\n-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nb\n",
                "a\n(redacted)\nb\n",
            ),
        ] {
            assert_eq!(redact(text), wanted, "{text}");
        }
    }
}

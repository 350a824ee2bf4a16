//! Edits of bytes that stock engines have sent, or that programs of this project send: most of a message stays valid.

/// Applies edits of four bytes each: where, what, and a byte.
pub fn edited(captured: &[u8], edits: &[u8]) -> Vec<u8> {
    let mut stream = captured.to_vec();
    for edit in edits.chunks_exact(4) {
        let at = usize::from(u16::from_le_bytes([edit[0], edit[1]])) % stream.len();
        match edit[2] % 4 {
            0 => stream[at] = edit[3],
            1 => stream[at] ^= 1 << (edit[3] % 8),
            2 => stream.insert(at, edit[3]),
            // Some bytes stay.
            _ => stream.truncate(at.max(1)),
        }
    }
    stream
}

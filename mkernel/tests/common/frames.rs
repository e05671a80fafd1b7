//! What holds for any bytes that reach the decoder of bootstrap frames: the body of a fuzz target and of plain tests.

use mkernel::bootstrap::{Decoder, Fields, HEADER_BYTES, MAX_BLOB, Message};

/// The largest frame that a decoder may hold: that of a shared blob.
const MOST_HELD: usize = HEADER_BYTES + 12 + MAX_BLOB;

/// Decodes `stream` in pieces and returns how many messages it held and whether it ended in an error. The first byte
/// says whether the sender has proved itself, the second how the bytes are cut.
///
/// # Panics
/// A decoder held more than one frame, or a message did not encode to the very bytes that it came from.
pub(crate) fn decode(stream: &[u8]) -> (usize, bool) {
    let [mode, cut, bytes @ ..] = stream else { return (0, false) };
    let mut decoder = Decoder::default();
    if mode % 2 == 1 {
        decoder.trust();
    }
    let mut rest = bytes;
    let mut messages = 0;
    for piece in bytes.chunks(usize::from(*cut).max(1)) {
        decoder.push(piece);
        loop {
            match decoder.next_message() {
                Ok(Some(message)) => {
                    rest = check(&message, rest);
                    messages += 1;
                }
                Ok(None) => break,
                Err(_) => return (messages, true),
            }
        }
        assert!(decoder.held() <= MOST_HELD, "holds {} bytes", decoder.held());
    }
    assert_eq!(decoder.held(), rest.len());
    (messages, false)
}

/// What follows the bytes of `message` in `stream`.
fn check<'a>(message: &Message, stream: &'a [u8]) -> &'a [u8] {
    let encoded = message.encode();
    let (bytes, rest) = stream.split_at(encoded.len());
    assert_eq!(bytes, encoded, "{message:?}");
    if let Message::Share { blob, .. } | Message::Shared { blob, .. } = message
        && let Some(fields) = Fields::decode(blob)
    {
        assert_eq!(&fields.encode(), blob);
    }
    rest
}

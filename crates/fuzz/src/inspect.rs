//! Messages of the live inspection, as the other process would send them: what is accepted is
//! encoded as it was sent.

use adit::fuzzing;

/// Each kind of message.
pub(crate) fn target(data: &[u8]) {
    for again in fuzzing::decode_and_encode(data).into_iter().flatten() {
        assert!(again == data, "another message has the same meaning");
    }
}
